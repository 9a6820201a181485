"""Draws one token per row from its logits, on a CPU, by the row's sampling parameters.

Rows with a bias, min_tokens or penalties have vocabulary-sized state. Work is proportional to what rows need:
a step of plain greedy rows is one argmax. The scheduler handles stops and limits.

Order: logit_bias, penalties, min_tokens, temperature, top-k, top-p, min-p, draw. Log-probabilities are of the
unmodified logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch

from engine.device.batch_state import Draws
from engine.device.sampling_rows import SamplingRows, bias_of, ending_ids, has_penalties, penalties_of
from engine.protocol import SamplingParams, TokenLogprob, TopLogprob
from kernels import sampling as ops


@dataclass(slots=True)
class Sampled:
    """Parallel to the given rows; `logprobs` and `failed` by position, as in StepResult."""

    token_ids: np.ndarray
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)


class Sampler:
    """Sampling state of `max_rows` rows of the batch."""

    def __init__(
        self, max_rows: int, vocab_size: int, eos_ids: Sequence[int], device: torch.device | str = "cpu"
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._device = torch.device(device)
        self._rows = SamplingRows(max_rows, vocab_size)
        self._shaped = np.zeros(max_rows, bool)
        """Rows with a bias or penalties."""
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._forbidden: dict[int, torch.Tensor] = {}
        """Ids that would end the request, for rows with min_tokens."""
        self._counts = TokenCounts(max_rows, vocab_size, self._device)

    def admit(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Adds a row to the batch; `output_ids` were generated before a preemption."""
        self._rows.admit(row, params, seed)
        self._bias.pop(row, None)
        self._forbidden.pop(row, None)
        self._counts.discard(row)
        if params.logit_bias:
            ids, values = bias_of(params, self._vocab_size)
            self._bias[row] = (
                torch.tensor(ids, dtype=torch.int64, device=self._device),
                torch.tensor(values, dtype=torch.float32, device=self._device),
            )
        if params.min_tokens > 0:
            forbidden = ending_ids(params, self._eos_ids, self._vocab_size)
            self._forbidden[row] = torch.tensor(forbidden, dtype=torch.int64, device=self._device)
        if has_penalties(params):
            self._counts.add(row, params, prompt_ids, output_ids)
        self._shaped[row] = row in self._bias or row in self._counts

    def release(self, row: int) -> None:
        """Frees a row and its vocabulary-sized state."""
        self._bias.pop(row, None)
        self._forbidden.pop(row, None)
        self._counts.discard(row)
        self._shaped[row] = False

    def verified(self, row: int, token_ids: Sequence[int]) -> None:
        """Counts the tokens of a row with drafts, when it is known which of its draws count."""
        self._counts.count_more(row, token_ids)

    def sample(
        self,
        logits_SV: torch.Tensor,
        rows: np.ndarray,
        output_lens: np.ndarray,
        masks: ops.TokenMasks | None = None,
        draws: Draws | None = None,
    ) -> Sampled:
        """Draws one token per row of the logits.

        Args:
            logits_SV: fp32, not modified.
            rows: int [S], rows of the batch.
            output_lens: int [S], tokens that precede each draw in its row's output.
            masks: what constrained draws may draw.
            draws: which of the draws come after drafts, if any do.

        A draw whose largest logit is not finite, before or after shaping, is listed in `failed`; its token is
        meaningless.
        """
        best_S, finite_S = ops.greedy(logits_SV)
        token_ids, finite = best_S.cpu().numpy(), finite_S.cpu().numpy()
        random = self._rows.temperature[rows] > 0
        young = self._rows.min_tokens[rows] > output_lens
        constrained = False if masks is None else masks.masks_S.numpy() != ops.NO_MASK
        chosen = np.flatnonzero((random | young | constrained | self._shaped[rows]) & finite)
        if chosen.size:
            logits_RV = logits_SV
            if chosen.size < len(rows):
                logits_RV = logits_SV[torch.from_numpy(chosen).to(self._device)]
            ahead = None if draws is None else draws.ahead_at(chosen)
            shaped_RV = self._shape(logits_RV, rows[chosen], young[chosen], ahead)
            if masks is not None:
                shaped_RV = ops.allow(shaped_RV, masks.at(chosen))
            token_ids[chosen], finite[chosen] = self._pick(shaped_RV, rows[chosen], output_lens[chosen])
        failed = np.flatnonzero(~finite).tolist()
        plain = slice(None) if draws is None else ~draws.is_verified
        self._counts.count(rows[plain], token_ids[plain])
        logprobs = {}
        if (self._rows.num_logprobs[rows] >= 0).any():
            logprobs = self._logprobs(logits_SV, rows, token_ids, finite)
        return Sampled(token_ids, logprobs, failed)

    def _shape(
        self, logits_RV: torch.Tensor, rows: np.ndarray, young: np.ndarray, ahead: list[list[int]] | None
    ) -> torch.Tensor:
        """Returns logits after bias, penalties and min_tokens; a new tensor where anything changes."""
        biased = [(place, row) for place, row in enumerate(rows.tolist()) if row in self._bias]
        if biased or young.any():
            logits_RV = logits_RV.clone()
        if biased:
            places, ids, values = zip(*((place, *self._bias[row]) for place, row in biased), strict=True)
            at = torch.tensor(places).repeat_interleave(torch.tensor([*map(len, ids)])).to(self._device)
            logits_RV.index_put_((at, torch.cat(ids)), torch.cat(values), accumulate=True)
        logits_RV = self._counts.penalize(logits_RV, rows, ahead)
        for place in np.flatnonzero(young).tolist():
            logits_RV[place, self._forbidden[int(rows[place])]] = -torch.inf
        return logits_RV

    def _pick(
        self, logits_RV: torch.Tensor, rows: np.ndarray, output_lens: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns (ids, finite) from shaped logits: the largest at temperature 0, a draw above."""
        best_R, finite_R = ops.greedy(logits_RV)
        ids, finite = best_R.cpu().numpy(), finite_R.cpu().numpy()
        drawn = np.flatnonzero((self._rows.temperature[rows] > 0) & finite)
        if drawn.size:
            if drawn.size < len(rows):
                logits_RV = logits_RV[torch.from_numpy(drawn).to(self._device)]
            rows, output_lens = rows[drawn], output_lens[drawn]
            ids[drawn] = (
                ops.draw(
                    logits_RV,
                    self._on_device(self._rows.temperature[rows]),
                    self._on_device(self._rows.top_k[rows]),
                    self._on_device(self._rows.top_p[rows]),
                    self._on_device(self._rows.min_p[rows]),
                    ops.uniform(
                        self._on_device(self._rows.seed[rows]), self._on_device(output_lens.astype(np.int64))
                    ),
                )
                .cpu()
                .numpy()
            )
        return ids, finite

    def _logprobs(
        self, logits_SV: torch.Tensor, rows: np.ndarray, token_ids: np.ndarray, finite: np.ndarray
    ) -> dict[int, TokenLogprob]:
        wanted = self._rows.num_logprobs[rows]
        places = np.flatnonzero((wanted >= 0) & finite)
        if not places.size:
            return {}
        chosen_R, top_RK, top_ids_RK = ops.logprobs(
            logits_SV[self._on_device(places)], self._on_device(token_ids[places]), int(wanted[places].max())
        )
        found = {}
        everything = zip(
            places.tolist(), chosen_R.tolist(), top_RK.tolist(), top_ids_RK.tolist(), strict=True
        )
        for place, logprob, values, ids in everything:
            num = int(wanted[place])
            top = [TopLogprob(*pair) for pair in zip(ids[:num], values[:num], strict=True)]
            found[place] = TokenLogprob(int(token_ids[place]), logprob, top)
        return found

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


class TokenCounts:
    """Counts how often each token occurred, for rows with penalties: one vocabulary-sized entry each."""

    def __init__(self, max_rows: int, vocab_size: int, device: torch.device) -> None:
        self._entry = np.full(max_rows, -1, np.int64)
        self._free: list[int] = []
        self._vocab_size = vocab_size
        self._device = device
        self._output = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._penalties = torch.zeros(0, 3, device=device)
        """Presence, frequency, repetition, by entry."""

    def __contains__(self, row: int) -> bool:
        return bool(self._entry[row] >= 0)

    def add(
        self, row: int, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """Starts counting a row, from the tokens it already has."""
        if not self._free:
            self._grow()
        entry = self._free.pop()
        self._entry[row] = entry
        counts = np.bincount(np.asarray(output_ids, np.int64), minlength=self._vocab_size)
        self._output[entry] = torch.from_numpy(counts).to(self._device)
        self._in_prompt[entry] = False
        self._in_prompt[entry, torch.tensor(prompt_ids, dtype=torch.int64, device=self._device)] = True
        self._penalties[entry] = torch.tensor(penalties_of(params))

    def discard(self, row: int) -> None:
        """Stops counting a row, if it was counted."""
        if row in self:
            self._free.append(int(self._entry[row]))
            self._entry[row] = -1

    def count(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Counts one more token per row; rows that are not counted are skipped."""
        entries = self._entry[rows]
        places = np.flatnonzero(entries >= 0)
        if places.size:
            at = (torch.from_numpy(entries[places]), torch.from_numpy(token_ids[places]))
            self._output[at[0].to(self._device), at[1].to(self._device)] += 1

    def count_more(self, row: int, token_ids: Sequence[int]) -> None:
        """Counts several tokens of one row, if it is counted."""
        if row in self:
            ids = torch.tensor(token_ids, dtype=torch.int64, device=self._device)
            ones = torch.ones_like(ids, dtype=torch.int32)
            self._output[int(self._entry[row])].index_add_(0, ids, ones)

    def penalize(
        self, logits_RV: torch.Tensor, rows: np.ndarray, ahead: list[list[int]] | None = None
    ) -> torch.Tensor:
        """Returns logits with the penalties of the counted rows; the same tensor when none is.

        `ahead`: drafts that precede each draw, which count as drawn.
        """
        entries = self._entry[rows]
        places = np.flatnonzero(entries >= 0)
        if not places.size:
            return logits_RV
        at = torch.from_numpy(entries[places]).to(self._device)
        where = torch.from_numpy(places).to(self._device)
        presence, frequency, repetition = self._penalties[at].unbind(dim=-1)
        output_RV = self._output[at]
        if ahead is not None:
            _count_ahead(output_RV, [ahead[place] for place in places.tolist()])
        penalized = ops.penalize(
            logits_RV[where], output_RV, self._in_prompt[at], presence, frequency, repetition
        )
        return penalized if places.size == len(rows) else logits_RV.index_copy(0, where, penalized)

    def _grow(self) -> None:
        held = len(self._output)
        extra = max(4, held)
        self._free.extend(range(held + extra - 1, held - 1, -1))
        self._output, self._in_prompt, self._penalties = (
            torch.cat([tensor, tensor.new_zeros(extra, tensor.shape[1])])
            for tensor in (self._output, self._in_prompt, self._penalties)
        )


def _count_ahead(output_RV: torch.Tensor, ahead: list[list[int]]) -> None:
    """Counts drafts as drawn, in place."""
    lengths = np.fromiter(map(len, ahead), np.int64, len(ahead))
    rows = torch.from_numpy(np.arange(len(ahead)).repeat(lengths)).to(output_RV.device)
    ids = torch.tensor([*chain.from_iterable(ahead)], dtype=torch.int64, device=output_RV.device)
    ones = torch.ones_like(ids, dtype=output_RV.dtype)
    output_RV.index_put_((rows, ids), ones, accumulate=True)
