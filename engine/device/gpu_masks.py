"""Brings the token masks of constrained rows to the device, while it computes the step that they are for.

A step with constrained rows is launched without its draws. Once the step before it is committed, its masks
are filled and copied, and the draws are queued behind its forward pass, which is still running.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batch import StepResult
from engine.device.gpu_sampler import DeviceSampler, LaunchedDraws
from engine.grammar.constraint import RowConstraint
from engine.grammar.masks import MaskFiller, words_of


class DeviceMasks:
    """The masks of up to `max_rows` rows, in one place on the host and one on the device."""

    def __init__(self, filler: MaskFiller, max_rows: int, vocab_size: int, device: torch.device) -> None:
        shape = (max_rows, words_of(vocab_size))
        self._filler = filler
        # Written again only for the next step, by when the copy of this one has ended: its draws were read.
        self._host_MW = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device_MW = torch.zeros(shape, dtype=torch.int32, device=device)

    def send(self, constraints: list[RowConstraint]) -> Tensor:
        """Fills the masks and queues their copy. Returns int32 [max_rows, words], mask i for constraint i."""
        num = len(constraints)
        self._filler.fill(constraints, self._host_MW[:num].numpy())
        self._device_MW[:num].copy_(self._host_MW[:num], non_blocking=True)
        return self._device_MW


class ConstrainedDraws:
    """A step whose draws wait for its masks."""

    def __init__(
        self, sampler: DeviceSampler, masks: DeviceMasks, logits_SV: Tensor, constraints: list[RowConstraint]
    ) -> None:
        self._sampler, self._masks = sampler, masks
        self._logits_SV = logits_SV
        self._constraints = constraints
        self._draws: LaunchedDraws | None = None

    def draw_constrained(self) -> None:
        """Fills the masks and queues the draws."""
        self._draws = self._sampler.launch(self._logits_SV, self._masks.send(self._constraints))

    def result(self) -> StepResult:
        """Waits for the step and returns its draws. Called once."""
        assert self._draws is not None, "draw_constrained comes first"
        return self._draws.result()
