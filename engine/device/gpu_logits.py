"""Applies bias, penalties and min_tokens to logits on a GPU, for the rows that request them.

A row that needs any of them has an entry of vocabulary-sized state (bias, counts, prompt tokens, ending
tokens). Nothing waits for the device: counts follow the drawn ids on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from engine.device.sampling_rows import bias_of, ending_ids, has_penalties, penalties_of
from engine.protocol import SamplingParams
from kernels import sampling as ops

NO_ENTRY = -1
NO_TOKEN = -1
_IN_PROMPT = 1
_ENDS = 2


class _Uploads:
    """Uploads small tensors to the device without waiting.

    Pinned memory is allocated at once, because allocating it later waits for the device. It has two halves:
    one is written again only once the copies out of it have ended, which they have by the time the other is
    full.
    """

    def __init__(self, device: torch.device, half_bytes: int = 1 << 20) -> None:
        self._device = device
        self._half_bytes = half_bytes
        self._memory = torch.zeros(2, half_bytes, dtype=torch.uint8, pin_memory=True)
        self._copied = [torch.cuda.Event(), torch.cuda.Event()]
        self._half = self._used = 0

    def send(self, values: Tensor) -> Tensor:
        size = values.numel() * values.element_size()
        if size > self._half_bytes:
            return values.to(self._device)  # longer than any prompt: waiting is acceptable
        if self._used + size > self._half_bytes:
            self._copied[self._half].record()
            self._half, self._used = 1 - self._half, 0
            self._copied[self._half].synchronize()
        staged = self._memory[self._half, self._used : self._used + size].view(values.dtype)
        self._used += -(-size // 64) * 64
        return staged.copy_(values).to(self._device, non_blocking=True)


class ShapedRows:
    """Entries for some of `max_rows` rows; room grows with the most that were needed at a time."""

    def __init__(
        self, max_rows: int, vocab_size: int, eos_ids: Sequence[int], device: torch.device | str
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._device = torch.device(device)
        self.entry = np.full(max_rows, NO_ENTRY, np.int64)
        """By row; `NO_ENTRY`: nothing to shape."""
        self.always = np.zeros(max_rows, bool)
        """Rows that are shaped at any length: all but those with only min_tokens."""
        self._uploads = _Uploads(self._device) if self._device.type == "cuda" else None
        self._free: list[int] = []
        self._bias_EV = torch.zeros(0, vocab_size, device=device)
        self._counts_EV = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)
        self._marks_EV = torch.zeros(0, vocab_size, dtype=torch.uint8, device=device)
        self._penalties_E3 = torch.zeros(0, 3, device=device)

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        held = (self._bias_EV, self._counts_EV, self._marks_EV, self._penalties_E3)
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    @torch.inference_mode()
    def admit(
        self, row: int, params: SamplingParams, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> None:
        """Adds a row in whatever state the last one left it; `output_ids` were drawn before a preemption."""
        self.release(row)
        penalized = has_penalties(params)
        if not (params.logit_bias or penalized or params.min_tokens > 0):
            return
        if not self._free:
            self._grow()
        entry = self.entry[row] = self._free.pop()
        self.always[row] = bool(params.logit_bias) or penalized
        for held in (self._bias_EV, self._counts_EV, self._marks_EV):
            held[entry].zero_()
        if params.logit_bias:
            ids, values = bias_of(params, self._vocab_size)
            self._bias_EV[entry].index_copy_(0, self._sent(ids), self._sent(values, torch.float32))
        if penalized:
            # `marks[entry, ids] = number` would copy the number and wait for the device.
            self._marks_EV[entry].index_fill_(0, self._sent(prompt_ids), _IN_PROMPT)
            drawn = self._sent(output_ids)
            self._counts_EV[entry].index_add_(0, drawn, torch.ones_like(drawn, dtype=torch.int32))
        forbidden = self._sent(ending_ids(params, self._eos_ids, self._vocab_size))
        marked = self._marks_EV[entry].index_select(0, forbidden) | _ENDS
        self._marks_EV[entry].index_copy_(0, forbidden, marked)
        self._penalties_E3[entry] = self._sent(penalties_of(params), torch.float32)

    def release(self, row: int) -> None:
        """Frees a row, if it has an entry."""
        if self.entry[row] != NO_ENTRY:
            self._free.append(int(self.entry[row]))
            self.entry[row] = NO_ENTRY
            self.always[row] = False

    def count_more(self, row: int, token_ids: Sequence[int]) -> None:
        """Counts several tokens of one row, if it has an entry."""
        entry = int(self.entry[row])
        if entry == NO_ENTRY:
            return  # most rows: the mode below would take longer than all else
        with torch.inference_mode():
            drawn = self._sent(token_ids)
            self._counts_EV[entry].index_add_(0, drawn, torch.ones_like(drawn, dtype=torch.int32))

    def shape(
        self,
        logits_SV: Tensor,
        at_R: Tensor,
        entries_R: Tensor,
        young_R: Tensor,
        ahead_RD: Tensor | None = None,
    ) -> Tensor:
        """Semantics: out[r] = logits[at[r]] + bias, penalised, -inf where a young row's token would end it.

        A NaN or +inf of the row's own is NaN in the result, whatever is added to it: the row has failed.

        Args:
            at_R, entries_R, young_R: int32, on the device; young rows are below their min_tokens.
            ahead_RD: int32, drafts that count as drawn; `NO_TOKEN` beyond them.
        """
        entries_R = entries_R.long()
        logits_RV = logits_SV.index_select(0, at_R.long()).float()
        sound_RV = logits_RV < torch.inf
        marks_RV = self._marks_EV.index_select(0, entries_R)
        counts_RV = self._counts_EV.index_select(0, entries_R)
        if ahead_RD is not None:
            counts_RV.scatter_add_(1, ahead_RD.clamp(min=0).long(), (ahead_RD != NO_TOKEN).int())
        presence_R, frequency_R, repetition_R = self._penalties_E3.index_select(0, entries_R).unbind(-1)
        shaped_RV = ops.penalize(
            logits_RV + self._bias_EV.index_select(0, entries_R),
            counts_RV,
            (marks_RV & _IN_PROMPT).bool(),
            presence_R,
            frequency_R,
            repetition_R,
        )
        ends_RV = (marks_RV & _ENDS).bool() & young_R.bool()[:, None]
        return shaped_RV.masked_fill_(ends_RV, -torch.inf).masked_fill_(~sound_RV, torch.nan)

    def count(self, entries_R: Tensor, ids_R: Tensor, counts_R: Tensor | None = None) -> None:
        """Counts one more of each id for its entry, or as many as `counts_R` (int32) says."""
        places_R = entries_R.long() * self._vocab_size + ids_R.long()
        ones_R = torch.ones_like(ids_R) if counts_R is None else counts_R
        self._counts_EV.view(-1).index_add_(0, places_R, ones_R)

    def _grow(self) -> None:
        held = len(self._bias_EV)
        extra = max(4, held)
        self._free.extend(range(held + extra - 1, held - 1, -1))
        self._bias_EV, self._counts_EV, self._marks_EV, self._penalties_E3 = (
            torch.cat([tensor, tensor.new_zeros(extra, tensor.shape[1])])
            for tensor in (self._bias_EV, self._counts_EV, self._marks_EV, self._penalties_E3)
        )

    def _sent(self, values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        tensor = torch.tensor(values, dtype=dtype)
        return tensor if self._uploads is None else self._uploads.send(tensor)
