"""One run of a case on some device against the naive statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.lora.device_cases import DeviceCase, DeviceRun, make_table, naive_device_lora
from kernels.lora.mailbox import Mailbox
from kernels.lora.table import DEFAULT_MAX_RANK, MAX_MODULES


def run_case(case: DeviceCase, device: str | torch.device, dtype: torch.dtype, tolerance: float) -> None:
    """Near the naive statement, the same bits twice, and rows of the base alone untouched.

    `tolerance`: of each output, relative to the sum of its terms' magnitudes. Scratch memory and the arena's
    gaps begin as NaN, and so do the inputs of rows without an adapter.
    """
    here = make_table(case.slots, case.width_in, case.widths)
    expected, size = naive_device_lora(case, here, dtype=dtype)
    there = make_table(case.slots, case.width_in, case.widths, device)
    run = DeviceRun(there, case.width_in, case.num_tokens, batch_invariant=case.batch_invariant)
    x, base, scale = case.inputs(device, dtype)
    run.begin(case.padded_slots())
    out = base.clone()
    run.add(x, out, case.widths, scale)
    error = (out.cpu().double() - expected).abs() / size.clamp_min(1e-30)
    assert float(error.max()) <= tolerance, float(error.max())
    bare = torch.from_numpy(case.padded_slots() < 0)
    assert torch.equal(out.cpu()[bare], base.cpu()[bare])
    again = base.clone()
    run.add(x, again, case.widths, scale)
    assert torch.equal(again, out)


def run_delta(case: DeviceCase, device: str | torch.device, dtype: torch.dtype, tolerance: float) -> None:
    """In memory of its own: near the naive statement, nothing of the step before, nothing in rows of the base
    alone, the same bits twice.
    """
    case = replace(case, scaled=False)
    expected, size = naive_device_lora(case, make_table(case.slots, case.width_in, case.widths), dtype=dtype)
    x, base, _ = case.inputs(device, dtype)
    expected -= base.cpu().double()
    size -= base.cpu().double().abs()
    run = DeviceRun(
        make_table(case.slots, case.width_in, case.widths, device),
        case.width_in,
        case.num_tokens,
        width_out=sum(case.widths),
        batch_invariant=case.batch_invariant,
    )
    has_adapter = torch.from_numpy(case.padded_slots() >= 0)
    deltas = []
    for inputs in (x, -x, x):
        run.begin(case.padded_slots())
        delta = run.lora.delta(0, "group", inputs, case.widths)
        assert torch.equal(delta.has_adapter_T.cpu().bool(), has_adapter)
        assert delta.y_TN[~has_adapter].isnan().all()
        deltas.append(delta.y_TN.cpu()[has_adapter])
    first, negative, again = deltas
    error = (first.double() - expected[has_adapter]).abs() / size[has_adapter].clamp_min(1e-30)
    assert not len(error) or float(error.max()) <= tolerance, float(error.max())
    assert torch.equal(negative, -first)
    assert torch.equal(again, first)


@dataclass
class LocalRank:
    """A rank whose peers are on the same device; its parts are never summed in another way."""

    box: Mailbox

    def open_mailboxes(self, num_places: int, width: int) -> None:
        assert self.box.inbox_RPW.shape[1:] == (num_places, width)

    def mailbox(self) -> Mailbox:
        return self.box

    def part(self, shape: tuple[int, int]) -> Tensor:
        raise AssertionError(f"a part of {shape} that is not sent")

    def sum_parts(self, part: Tensor, out: Tensor) -> None:
        raise AssertionError("a part that is not sent")


def mailboxes(size: int, num_places: int, device: str | torch.device) -> list[Mailbox]:
    """One for each rank. Words not sent yet are NaN with number 0; the first exchange is number 1."""
    width = MAX_MODULES * DEFAULT_MAX_RANK
    inboxes = [
        torch.full((size, num_places, width), 0x7FC00000, dtype=torch.int64, device=device)
        for _ in range(size)
    ]
    number = torch.ones(1, dtype=torch.int32, device=device)
    return [
        Mailbox(
            torch.tensor([inbox[rank].data_ptr() for inbox in inboxes], device=device), inboxes[rank], number
        )
        for rank in range(size)
    ]


@dataclass
class Group:
    """The ranks of a group on one device, each with a part of a case's inputs: their sum is the case's."""

    case: DeviceCase
    runs: list[DeviceRun]
    parts: list[Tensor]
    base: Tensor
    scale: Tensor | None
    number: Tensor

    @classmethod
    def make(cls, case: DeviceCase, size: int, device: str | torch.device, dtype: torch.dtype) -> Group:
        table = make_table(case.slots, case.width_in, case.widths, device)
        boxes = mailboxes(size, case.num_tokens, device)
        runs = [
            DeviceRun(
                table,
                case.width_in,
                case.num_tokens,
                batch_invariant=case.batch_invariant,
                sums=LocalRank(box),
            )
            for box in boxes
        ]
        for run in runs:
            run.begin(case.padded_slots())
        x, base, scale = case.inputs(device, dtype)
        columns = torch.arange(case.width_in, device=device) % size
        parts = [x.masked_fill(columns != rank, 0.0) for rank in range(size)]
        return cls(case, runs, parts, base, scale, boxes[0].number)

    def shrink(self, rank: int) -> None:
        self.runs[rank].lora.shrink(0, "group", self.parts[rank])

    def expand(self, rank: int) -> Tensor:
        out = self.base.clone()
        self.runs[rank].lora.expand(0, "group", out, self.case.widths, self.scale)
        return out

    def exchange(self) -> list[Tensor]:
        """Returns every rank's outputs."""
        for rank in range(len(self.runs)):
            self.shrink(rank)
        outs = [self.expand(rank) for rank in range(len(self.runs))]
        self.number += 1
        return outs


def run_group(
    case: DeviceCase, size: int, device: str | torch.device, dtype: torch.dtype, tolerance: float
) -> None:
    """All ranks have the same bits, near the naive statement; an exchange takes nothing of the one before."""
    group = Group.make(case, size, device, dtype)
    expected, terms = naive_device_lora(case, make_table(case.slots, case.width_in, case.widths), dtype=dtype)
    first, *others = group.exchange()
    for out in others:
        assert torch.equal(out, first)
    error = (first.cpu().double() - expected).abs() / terms.clamp_min(1e-30)
    assert float(error.max()) <= tolerance, float(error.max())
    negative = [-part for part in group.parts]
    group.parts[:] = negative
    swapped = group.exchange()[0]
    added, removed = first.double() - group.base.double(), swapped.double() - group.base.double()
    assert float(((added + removed).cpu().abs() / terms.clamp_min(1e-30)).max()) <= 2 * tolerance
