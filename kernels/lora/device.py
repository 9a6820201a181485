"""Applies the adapters of a model that runs in captured graphs: one capture serves any mix of adapters.

Holds the step's work lists and the partial sums between shrink and expand. The table must be right for every
slot that a row names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kernels.activation import AdapterDelta
from kernels.backend import uses_triton
from kernels.lora import tiling
from kernels.lora.device_work import DeviceWork
from kernels.lora.mailbox import Mailbox
from kernels.lora.scratch import Scratch
from kernels.lora.table import MAX_MODULES, AdapterTable
from kernels.lora.table_reference import expand_reference, shrink_reference
from kernels.step_inputs import StepInputs

LAST_NUMBER = 2**31 - 1
"""Of an exchange of words."""


class RankSums(Protocol):
    """Sums what the ranks of a tensor-parallel group have shrunk, each with its part of every A."""

    def part(self, shape: tuple[int, int]) -> Tensor:
        """Returns fp32 memory for this rank's part of the next sum."""
        ...

    def sum_parts(self, part: Tensor, out: Tensor) -> None:
        """Queues out = the sum of all ranks' parts."""
        ...

    def open_mailboxes(self, num_places: int, width: int) -> None:
        """Allocates mailboxes for so many rows, where the ranks read one another's memory. All ranks call it,
        before the first step.
        """
        ...

    def mailbox(self) -> Mailbox | None:
        """Returns the next mailbox; None where parts are summed by `sum_parts` alone."""
        ...


class DeviceLora:
    """LoRA of all layers over an `AdapterTable`.

    Of a row's bits: they depend on the bucket and, in buckets beyond 128, on how many rows of its own adapter
    are in the step (up to 2: vector units; up to 16, and in buckets of up to 256 always: tensor cores;
    beyond: other tiles), and on nothing else. With `batch_invariant` they depend on the row and its adapter
    alone.
    """

    def __init__(
        self,
        table: AdapterTable,
        inputs: StepInputs,
        max_tokens: int,
        widths_in: Sequence[int],
        *,
        width_out: int = 0,
        batch_invariant: bool = False,
        early: bool = True,
        sums: RankSums | None = None,
    ) -> None:
        """Registers fields: before `inputs.freeze`.

        Args:
            max_tokens: rows of the largest bucket.
            widths_in: columns of each group's input.
            width_out: columns of the widest group's output, where `delta` is to be used.
            batch_invariant: every product on tensor cores, in one tile shape.
            early: kernels may start before the last kernel of their stream has ended (`kernels/overlap.py`).
            sums: where the ranks of a group have a part of each A's inputs.
        """
        self._table = table
        self._work = DeviceWork(inputs, max_tokens, table.num_slots, batch_invariant)
        self._width_out = width_out if sums is None else 0
        rank_stride = MAX_MODULES * table.max_rank
        self._scratch = Scratch(self._work, rank_stride, widths_in, self._width_out, table.device)
        self._widths_in = frozenset(widths_in)
        num_places = table.num_layers * len(table.groups)
        self._numbers = inputs.field("lora_numbers", num_places)
        """Of the step's exchanges of words, by place."""
        self._next_number = 1
        self._early = early
        self._sums = sums
        if sums is not None:
            sums.open_mailboxes(min(max_tokens, tiling.TILES_FROM), self._scratch.rank_stride)
        self._shrunk: tuple[int, Tensor | Mailbox] | None = None
        """Place of the last shrink, and where it left what it computed."""

    @property
    def active(self) -> bool:
        """Whether any row of the step has an adapter; if not, the graphs without adapters will do."""
        return self._work.active

    @property
    def num_bytes(self) -> int:
        """Bytes of device memory for partial sums, words and deltas."""
        return self._scratch.num_bytes

    def begin(self, row_slots_T: npt.NDArray[np.integer]) -> None:
        """Before each step, between the inputs' `begin` and `send`: the slot of every row of the bucket.

        Args:
            row_slots_T: T is the bucket; negative for rows of the base alone and for padding.
        """
        self._work.build(row_slots_T)
        if self._width_out:
            self._number_exchanges()

    def _number_exchanges(self) -> None:
        numbers = self._numbers.host
        if self._next_number + len(numbers) > LAST_NUMBER:
            self._scratch.words.zero_()  # numbers come again: an old word would be taken for a new one
            self._next_number = 1
        numbers[:] = np.arange(self._next_number, self._next_number + len(numbers))
        self._next_number += len(numbers)

    def shrink(self, layer: int, group: str, x_TK: Tensor) -> None:
        """Projects the rows' inputs onto their adapters' ranks; may run beside the base product.

        Args:
            x_TK: T is the bucket, K one of `widths_in`; only rows with an adapter are read.
        """
        if x_TK.shape[1] not in self._widths_in or x_TK.shape[0] > self._work.max_tokens:
            raise ValueError(f"lora: x {tuple(x_TK.shape)}")
        place = self._place(layer, group)
        whole = self._scratch.shrunk[: len(x_TK)]
        mailbox = self._mailbox(x_TK)
        self._shrunk = place, mailbox or whole
        if mailbox is not None:
            self._run_shrink(x_TK, place, mailbox)
        elif self._sums is None:
            self._run_shrink(x_TK, place, whole)
        else:
            part = self._sums.part((len(whole), whole.shape[1]))
            self._run_shrink(x_TK, place, part)
            self._sums.sum_parts(part, whole)

    def expand(
        self,
        layer: int,
        group: str,
        out_TN: Tensor,
        widths: Sequence[int],
        scale_T: Tensor | None = None,
    ) -> None:
        """Adds the adapters of the group just shrunk to what the base wrote, in place.

        Args:
            out_TN: the bucket's rows; those without an adapter are neither read nor written.
            widths: columns of each module of the group, in order; they sum to N.
            scale_T: fp32; what is added to a row is divided by it.
        """
        if sum(widths) != out_TN.shape[1] or len(widths) > MAX_MODULES:
            raise ValueError(f"lora: out {tuple(out_TN.shape)}, widths {tuple(widths)}")
        place = self._place(layer, group)
        assert self._shrunk is not None, f"expand of {layer, group} at {place}, but not after shrink"
        (begun, shrunk), self._shrunk = self._shrunk, None
        assert begun == place, f"expand of {layer, group} at {place} after shrink at {begun}"
        arguments = (widths, scale_T, self._work, self._table, place, self._scratch)
        if uses_triton(out_TN):
            from kernels.lora.kernel import expand_triton

            expand_triton(out_TN, *arguments, shrunk, self._early)
        else:
            expand_reference(out_TN, *arguments)

    def runs_beside(self, num_rows: int) -> bool:
        """Whether `delta` may be used in a bucket of so many rows."""
        return self._width_out > 0 and self._early and num_rows <= tiling.MEDIUM_BUCKET

    def delta(self, layer: int, group: str, x_TK: Tensor, widths: Sequence[int]) -> AdapterDelta:
        """Computes what the adapters of a group add, while the base product that was queued last still runs:
        instead of `shrink` and `expand`, once for each group between two calls of `begin`.

        That product has let the next kernel start once `x_TK` is there. Nothing here waits for its end, but
        what is queued next can rely on it: the last kernel ends after it.

        Args:
            x_TK: as for `shrink`, in a bucket for which `runs_beside`.
            widths: columns of each module of the group, in order.

        Returns:
            What the op reads that is queued next. The next call overwrites it.
        """
        if sum(widths) > self._width_out or len(widths) > MAX_MODULES:
            raise ValueError(f"lora: widths {tuple(widths)}, made for {self._width_out} columns")
        if x_TK.shape[1] not in self._widths_in or not self.runs_beside(len(x_TK)):
            raise ValueError(f"lora: x {tuple(x_TK.shape)}")
        place = self._place(layer, group)
        out_TN = self._scratch.delta(len(x_TK), sum(widths))
        has_adapter_T = self._work.has_adapter.device[: len(x_TK)]
        of_step = (self._work, self._table, place, self._scratch)
        if uses_triton(x_TK):
            from kernels.lora.kernel import expand_triton, shrink_triton

            words = self._scratch.words
            mailbox = Mailbox(self._scratch.words_address, words, self._numbers.device[place:])
            shrink_triton(x_TK, *of_step, mailbox, self._early, apart=True)
            expand_triton(out_TN, widths, None, *of_step, mailbox, self._early, apart=True)
        else:
            shrink_reference(x_TK, self._work, self._table, place, self._scratch.shrunk)
            out_TN[has_adapter_T.bool()] = 0
            expand_reference(out_TN, widths, None, *of_step)
        return AdapterDelta(out_TN, has_adapter_T)

    def _mailbox(self, x_TK: Tensor) -> Mailbox | None:
        """Where the ranks send their parts; None where a launch between shrink and expand sums them, or where
        there is nothing to sum.
        """
        if self._sums is None or not uses_triton(x_TK) or len(x_TK) > tiling.TILES_FROM:
            return None
        return self._sums.mailbox()

    def _run_shrink(self, x_TK: Tensor, place: int, shrunk: Tensor | Mailbox) -> None:
        if uses_triton(x_TK):
            from kernels.lora.kernel import shrink_triton

            shrink_triton(x_TK, self._work, self._table, place, self._scratch, shrunk, self._early)
        else:
            assert isinstance(shrunk, Tensor)
            shrink_reference(x_TK, self._work, self._table, place, shrunk)

    def _place(self, layer: int, group: str) -> int:
        return layer * len(self._table.groups) + self._table.group_index(group)
