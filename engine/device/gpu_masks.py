"""Brings the token masks of constrained rows to the device, while it computes the step that they are for.

A step with constrained rows is launched without its draws. Once the tokens of the step before it are known,
its masks are filled and copied in other threads, and the draws are queued behind its forward pass, as late as
the next step's inputs are sent.
"""

from __future__ import annotations

from concurrent.futures import Future

import torch
from torch import Tensor

from engine.batch import StepResult
from engine.device.gpu_sampler import DeviceSampler, LaunchedDraws, PreparedDraws
from engine.grammar.constraint import RowConstraint
from engine.grammar.masks import MaskFiller, words_of


class DeviceMasks:
    """The masks of up to `max_rows` rows, in one place on the host and one on the device.

    Both are written again only for the next step, when the draws of this one have been read.
    """

    def __init__(self, filler: MaskFiller, max_rows: int, vocab_size: int, device: torch.device) -> None:
        shape = (max_rows, words_of(vocab_size))
        on_gpu = device.type == "cuda"
        self._filler = filler
        self._host_MW = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self._device_MW = torch.zeros(shape, dtype=torch.int32, device=device)
        self._copies = torch.cuda.Stream(device) if on_gpu else None

    def start(self, constraints: list[RowConstraint], ahead: list[list[int]] | None) -> Future[None]:
        """Begins to fill the masks; the future ends when their copy is queued. `ahead`: the drafts that each
        comes after.
        """
        num = len(constraints)
        return self._filler.start(constraints, self._host_MW[:num].numpy(), lambda: self._copy(num), ahead)

    def sent(self) -> Tensor:
        """Lets what is queued from now on wait for the copy. Returns int32 [max_rows, words], mask i for
        constraint i.
        """
        if self._copies is not None:
            torch.cuda.current_stream().wait_stream(self._copies)
        return self._device_MW

    def _copy(self, num: int) -> None:
        with torch.cuda.stream(self._copies):
            self._device_MW[:num].copy_(self._host_MW[:num], non_blocking=True)


class ConstrainedDraws:
    """A step whose draws wait for its masks."""

    def __init__(
        self,
        sampler: DeviceSampler,
        masks: DeviceMasks,
        prepared: PreparedDraws,
        logits_SV: Tensor,
        constraints: list[RowConstraint],
        ahead: list[list[int]] | None,
    ) -> None:
        self._sampler, self._masks = sampler, masks
        self._prepared = prepared
        self._logits_SV = logits_SV
        self._constraints = constraints
        self._ahead = ahead
        self._filling: Future[None] | None = None
        self._draws: LaunchedDraws | None = None

    def fill_masks(self) -> None:
        """Begins to fill the masks."""
        self._filling = self._masks.start(self._constraints, self._ahead)

    @property
    def is_drawn(self) -> bool:
        """Whether the draws are queued."""
        return self._draws is not None

    def draw(self) -> LaunchedDraws:
        """Queues the draws when the masks are filled, unless they are queued already."""
        if self._draws is None:
            assert self._filling is not None, "fill_masks comes first"
            self._filling.result()
            self._draws = self._sampler.launch(self._prepared, self._logits_SV, self._masks.sent())
        return self._draws

    def result(self) -> StepResult:
        """Waits for the step and returns its draws. Called once."""
        return self.draw().result()
