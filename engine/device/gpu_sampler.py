"""Draws one token per row from its logits, on the device; the host reads it a step later.

`prepare` writes a step's parameters among its inputs, `launch` queues the draws behind the logits; nothing
waits until `result`. The next step may be prepared before a launch, but its inputs are sent after it. Plain
rows (greedy, temperature, top-k, top-p, min-p) are drawn by fused kernels, rows with bias, penalties or
min_tokens by the same kernels from shaped copies of their logits. The scheduler handles stops and limits.

Draws equal those of `Sampler` (cpu_sampler.py), from the same definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.batch import MAX_DRAFTS, StepResult
from engine.device.batch_state import NO_PLACEHOLDERS, Draws, Guessing
from engine.device.gpu_logits import NO_TOKEN, ShapedRows
from engine.device.sampling_rows import SamplingRows
from engine.device.waiting import stay_awake_until
from engine.protocol import SamplingParams, TokenLogprob, TopLogprob
from kernels import sampling as ops
from kernels.step_inputs import StepInputs

Ints = np.ndarray
SHAPED_AT_A_TIME = 32
"""Shaped copies take some 20 bytes per token and row for a moment: 80 MB for a vocabulary of 128 thousand."""
USUAL_TOPS = 20
"""Log-probabilities beside the chosen token's that have room from the start."""
RING = 3
"""Steps whose results may be unread: one that runs, one launched, one being launched."""


class _SamplingFields:
    """Arrays of `ops.SamplingInputs` among a step's inputs."""

    def __init__(self, inputs: StepInputs, name: str, size: int, null_row: int) -> None:
        self._null_row = null_row
        self._temperature = inputs.field(f"{name}.temperature", size, torch.float32)
        self._top_k = inputs.field(f"{name}.top_k", size)
        self._top_p = inputs.field(f"{name}.top_p", size, torch.float32)
        self._min_p = inputs.field(f"{name}.min_p", size, torch.float32)
        self._seed = inputs.field(f"{name}.seed", size, torch.int64)
        self._position = inputs.field(f"{name}.position", size, torch.int64)
        self._row = inputs.field(f"{name}.row", size)
        self._place = inputs.field(f"{name}.place", size)
        self._mask = inputs.field(f"{name}.mask", size)

    def fill(self, params: SamplingRows, at: Ints, rows: Ints, lens: Ints, places: Ints, masks: Ints) -> None:
        """Sets position at[i] to draw for rows[i] with masks[i], into places[i]; all others are padding."""
        self._row.host[:] = self._null_row
        self._row.host[at] = rows
        self._place.host[at] = places
        self._temperature.host[at] = params.temperature[rows]
        self._top_k.host[at] = params.top_k[rows]
        self._top_p.host[at] = params.top_p[rows]
        self._min_p.host[at] = params.min_p[rows]
        self._seed.host[at] = params.seed[rows]
        self._position.host[at] = lens
        self._mask.host[at] = masks

    def add_likeliest(self, at: Ints, rows: Ints, places: Ints) -> None:
        """Sets position at[i] to give the likeliest token, of rows[i], into places[i]; after `fill`."""
        self._row.host[at] = rows
        self._place.host[at] = places
        for field in (self._temperature, self._top_k, self._min_p, self._seed, self._position):
            field.host[at] = 0
        self._top_p.host[at] = 1
        self._mask.host[at] = ops.NO_MASK

    def device(self, begin: int = 0) -> ops.SamplingInputs:
        """Returns the arrays as kernels read them, from a position on."""
        return ops.SamplingInputs(
            self._temperature.device[begin:],
            self._top_k.device[begin:],
            self._top_p.device[begin:],
            self._min_p.device[begin:],
            self._seed.device[begin:],
            self._position.device[begin:],
            self._row.device[begin:],
            self._place.device[begin:],
        )

    def masks(self, bits_MW: Tensor, begin: int = 0) -> ops.TokenMasks:
        """Returns the masks of the positions, from a position on."""
        return ops.TokenMasks(bits_MW, self._mask.device[begin:])


@dataclass(slots=True)
class PreparedDraws:
    """What the host remembers of a step whose draws are not queued yet."""

    rows: Ints
    plain: bool
    """Whether any row is drawn from its logits as they are."""
    draws: bool
    truncates: bool
    num_shaped: int
    has_ahead: bool
    """Whether any of those comes after drafts, or its row has some."""
    wanted: Ints
    """Positions whose log-probabilities are requested, and how many beside the chosen one's."""
    num_tops: Ints
    guessing: Guessing
    """The placeholders behind the draws."""
    is_awaited: bool
    """Whether nothing is launched before the host has read them: some come after drafts."""


class DeviceSampler:
    """Sampling state of `max_rows` rows of the batch, whose null row is row `max_rows`."""

    def __init__(
        self,
        inputs: StepInputs,
        max_rows: int,
        vocab_size: int,
        eos_ids: Sequence[int],
        device: torch.device | str,
        *,
        next_ids_R: Tensor | None = None,
    ) -> None:
        """Registers its fields among the inputs, which are frozen later. `next_ids_R`: int32 [max_rows + 1],
        where drawn ids go; by default memory of its own.
        """
        self._device = torch.device(device)
        if next_ids_R is None:
            next_ids_R = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self._params = SamplingRows(max_rows, vocab_size)
        self._shaping = ShapedRows(max_rows, vocab_size, eos_ids, device)
        self._plain = _SamplingFields(inputs, "sampler.plain", max_rows, max_rows)
        self._shaped = _SamplingFields(inputs, "sampler.shaped", max_rows, max_rows)
        self._shaped_at = inputs.field("sampler.shaped.at", max_rows)
        self._shaped_entry = inputs.field("sampler.shaped.entry", max_rows)
        self._shaped_young = inputs.field("sampler.shaped.young", max_rows)
        self._shaped_ahead = inputs.field("sampler.shaped.ahead", (max_rows, MAX_DRAFTS))
        self._shaped_counts = inputs.field("sampler.shaped.counts", max_rows)
        self._wanted_at = inputs.field("sampler.logprobs.at", max_rows)
        self._wanted_place = inputs.field("sampler.logprobs.place", max_rows)
        # Ids and flags side by side: one copy transfers both.
        self._results = torch.zeros(5 * max_rows, dtype=torch.uint8, device=device)
        self._drawn = ops.Drawn(
            self._results[: 4 * max_rows].view(torch.int32),
            self._results[4 * max_rows :],
            next_ids_R,
        )
        self._scratch = ops.Scratch(max_rows, vocab_size, self._device)
        self._ring = [LaunchedDraws(max_rows, self._device) for _ in range(RING)]
        self._turn = 0

    @property
    def next_ids_R(self) -> Tensor:
        """int32 by row, the null row last: the token drawn last, the input of the row's next step."""
        return self._drawn.next_ids_R

    def admit(
        self,
        row: int,
        params: SamplingParams,
        seed: int,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        """Adds a row to the batch; `output_ids` were generated before a preemption."""
        self._params.admit(row, params, seed)
        self._shaping.admit(row, params, prompt_ids, output_ids)

    def release(self, row: int) -> None:
        """Frees a row and its vocabulary-sized state."""
        self._shaping.release(row)

    def verified(self, row: int, token_ids: Sequence[int]) -> None:
        """Counts the tokens of a row with drafts, when it is known which of its draws count."""
        self._shaping.count_more(row, token_ids)

    def prepare(
        self,
        rows: Ints,
        output_lens: Ints,
        at: Ints | None = None,
        masks: Ints | None = None,
        draws: Draws | None = None,
        guessing: Guessing = NO_PLACEHOLDERS,
    ) -> PreparedDraws:
        """Writes a step's parameters, between `begin` and `send` of its inputs.

        Args:
            rows: int [S], rows of the batch that draw.
            output_lens: int [S], tokens that each has, pending ones included: the position drawn now.
            at: int [S + placeholders], their rows of the logits, then those of the placeholders; by default
                the first ones.
            masks: int [S], the mask of each in the table that `launch` is given; by default no row has one.
            draws: which of the draws come after drafts, if any do.
            guessing: the step's placeholders. What is written as such a row's next token means nothing: its
                draws are verified first.
        """
        params, num_rows = self._params, len(rows)
        everything = np.arange(num_rows + len(guessing.rows))
        places, behind = everything[:num_rows], everything[num_rows:]
        at = everything if at is None else at
        at, guessed_at = at[:num_rows], at[num_rows:]
        masks = np.full(num_rows, ops.NO_MASK) if masks is None else masks
        young = params.min_tokens[rows] > output_lens
        entries = self._shaping.entry[rows]
        shaped = self._shaping.always[rows] | (young & (entries >= 0))
        num_shaped = int(shaped.sum())
        ahead = None if draws is None else draws.ahead_at(np.flatnonzero(shaped))
        if draws is not None and ahead:
            self._prepare_ahead(ahead, draws.is_verified[shaped])
        if num_shaped:
            self._prepare_shaped(rows, output_lens, at, young, entries, masks, np.flatnonzero(shaped))
            plain = ~shaped
            self._plain.fill(params, at[plain], rows[plain], output_lens[plain], places[plain], masks[plain])
        else:
            self._plain.fill(params, at, rows, output_lens, places, masks)
        if behind.size:
            self._plain.add_likeliest(guessed_at, guessing.rows, behind)
        is_random = params.temperature[rows] > 0
        truncates = is_random & ((params.top_k[rows] > 0) | (params.top_p[rows] < 1))
        num_tops = params.num_logprobs[rows]
        wanted = np.flatnonzero(num_tops >= 0)
        if wanted.size:
            self._wanted_at.host[: wanted.size] = at[wanted]
            self._wanted_place.host[: wanted.size] = wanted
        return PreparedDraws(
            rows=rows,
            plain=num_shaped < num_rows or behind.size > 0,
            draws=bool(is_random.any()),
            truncates=bool(truncates.any()),
            num_shaped=num_shaped,
            has_ahead=bool(ahead),
            wanted=wanted,
            num_tops=num_tops[wanted],
            guessing=guessing,
            is_awaited=draws is not None and bool(draws.is_verified.any()),
        )

    def _prepare_shaped(
        self, rows: Ints, lens: Ints, at: Ints, young: Ints, entries: Ints, masks: Ints, places: Ints
    ) -> None:
        num = places.size
        self._shaped.fill(self._params, np.arange(num), rows[places], lens[places], places, masks[places])
        self._shaped_at.host[:num] = at[places]
        self._shaped_entry.host[:num] = entries[places]
        self._shaped_young.host[:num] = young[places]

    def _prepare_ahead(self, ahead: list[list[int]], is_verified: Ints) -> None:
        """Writes the drafts that count as drawn, and which rows' draws are counted later."""
        host = self._shaped_ahead.host
        host[: len(ahead)] = NO_TOKEN
        for index, token_ids in enumerate(ahead):
            host[index, : len(token_ids)] = token_ids
        self._shaped_counts.host[: len(ahead)] = ~is_verified

    @torch.inference_mode()
    def launch(self, step: PreparedDraws, logits_SV: Tensor, bits_MW: Tensor | None = None) -> LaunchedDraws:
        """Queues the draws of the step whose inputs were sent last, and their copy to the host.

        `bits_MW` is the table of masks that the step was prepared for. A row whose largest logit is not
        finite, before or after shaping and masking, is listed in `failed` and has token 0.
        """
        if step.plain:
            ops.sample(
                logits_SV,
                self._plain.device(),
                self._drawn,
                self._scratch,
                masks=None if bits_MW is None else self._plain.masks(bits_MW),
                draws=step.draws,
                truncates=step.truncates,
            )
        for begin in range(0, step.num_shaped, SHAPED_AT_A_TIME):
            end = min(begin + SHAPED_AT_A_TIME, step.num_shaped)
            self._launch_shaped(logits_SV, begin, end, step, bits_MW)
        launched = self._ring[self._turn]
        self._turn = (self._turn + 1) % RING
        launched.begin(step, self._results)
        if step.wanted.size:
            at_L = self._wanted_at.device[: step.wanted.size].long()
            places_L = self._wanted_place.device[: step.wanted.size].long()
            chosen_L, top_LK, top_ids_LK = ops.logprobs(
                logits_SV.index_select(0, at_L).float(),
                self._drawn.ids_S.index_select(0, places_L).long(),
                int(step.num_tops.max()),
            )
            launched.add_logprobs(
                torch.cat((chosen_L[:, None], top_LK, top_ids_LK.int().view(torch.float32)), dim=1)
            )
        launched.end()
        return launched

    def _launch_shaped(
        self, logits_SV: Tensor, begin: int, end: int, step: PreparedDraws, bits_MW: Tensor | None
    ) -> None:
        entries_R = self._shaped_entry.device[begin:end]
        shaped_RV = self._shaping.shape(
            logits_SV,
            self._shaped_at.device[begin:end],
            entries_R,
            self._shaped_young.device[begin:end],
            self._shaped_ahead.device[begin:end] if step.has_ahead else None,
        )
        parameters = self._shaped.device(begin)
        ops.sample(
            shaped_RV,
            parameters,
            self._drawn,
            self._scratch,
            masks=None if bits_MW is None else self._shaped.masks(bits_MW, begin),
            draws=step.draws,
            truncates=step.truncates,
        )
        places_R = parameters.places_S[: end - begin].long()
        counts_R = self._shaped_counts.device[begin:end] if step.has_ahead else None
        self._shaping.count(entries_R, self._drawn.ids_S.index_select(0, places_R), counts_R)


class LaunchedDraws:
    """A step's draws on their way to the host. Its memory serves another step once this one is read."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self._max_rows = max_rows
        self._on_gpu = device.type == "cuda"
        self._results = torch.zeros(5 * max_rows, dtype=torch.uint8, pin_memory=self._on_gpu)
        self._arrived = torch.cuda.Event() if self._on_gpu else None
        self._num_rows = 0
        self._guessing = NO_PLACEHOLDERS
        self._wanted = self._num_tops = np.zeros(0, np.int64)
        self._logprobs = torch.zeros(max_rows * (1 + 2 * USUAL_TOPS), pin_memory=self._on_gpu)
        self._width = 0
        self._unread = False
        self._is_awaited = False

    def begin(self, step: PreparedDraws, results: Tensor) -> None:
        """Queues the copy of ids and flags."""
        assert not self._unread, "the last result in this memory has not been read"
        self._unread = True
        self._num_rows, self._guessing = len(step.rows), step.guessing
        self._is_awaited = step.is_awaited
        self._wanted, self._num_tops = step.wanted, step.num_tops
        self._results.copy_(results, non_blocking=True)
        self._width = 0

    def add_logprobs(self, table_LW: Tensor) -> None:
        """Queues the copy of requested log-probabilities: chosen, K largest, the bits of their ids."""
        self._width = table_LW.shape[1]
        if table_LW.numel() > self._logprobs.numel():
            self._logprobs = torch.zeros(
                table_LW.numel(), pin_memory=self._on_gpu
            )  # happens once: waiting is acceptable
        self._table().copy_(table_LW, non_blocking=True)

    def _table(self) -> Tensor:
        num = len(self._wanted)
        return self._logprobs[: num * self._width].view(num, self._width)

    def end(self) -> None:
        """Marks that everything is queued."""
        if self._arrived is not None:
            self._arrived.record()

    def fill_masks(self) -> None:
        """Does nothing: everything is queued."""

    def result(self) -> StepResult:
        """Waits for the step and returns its draws. Call once: the memory is reused afterwards."""
        assert self._unread, "read twice"
        if self._arrived is not None:
            if self._is_awaited:
                stay_awake_until(self._arrived)
            self._arrived.synchronize()
        results = self._results.numpy()
        num_ids = self._num_rows + len(self._guessing.rows)
        all_ids = results[: 4 * self._max_rows].view(np.int32)[:num_ids].tolist()
        ids, guesses = all_ids[: self._num_rows], all_ids[self._num_rows :]
        finite = results[4 * self._max_rows :][: self._num_rows] > 0
        logprobs = self._read_logprobs(ids, finite) if self._width else {}
        self._unread = False
        failed = np.flatnonzero(~finite).tolist()
        return StepResult(ids, logprobs, failed, guesses=self._guessing.split(guesses))

    def _read_logprobs(self, ids: list[int], finite: Ints) -> dict[int, TokenLogprob]:
        table_LW = self._table()
        num_tops = self._width // 2
        chosen_L = table_LW[:, 0].tolist()
        top_LK = table_LW[:, 1 : 1 + num_tops].tolist()
        top_ids_LK = table_LW[:, 1 + num_tops :].view(torch.int32).tolist()
        found = {}
        for index, (place, num) in enumerate(
            zip(self._wanted.tolist(), self._num_tops.tolist(), strict=True)
        ):
            if finite[place]:
                pairs = zip(top_ids_LK[index][:num], top_LK[index][:num], strict=True)
                top = [TopLogprob(*pair) for pair in pairs]
                found[place] = TokenLogprob(ids[place], chosen_L[index], top)
        return found
