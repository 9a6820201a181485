"""Computes log-probabilities of prompt tokens on a GPU behind a step; the host reads them a step later.

Nothing here is captured and nothing waits: after a step (a replay leaves its hidden states in place) the head
product is queued in chunks of one size, and a separate copy transfers the scores. Only steps with scores come
here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.batch import LaunchedStep, StepResult
from engine.device.scoring import ScoreRequests, read, score

RING = 3
"""Steps whose scores may be unread: one that runs, one launched, one being launched."""


class DeviceScorer:
    """Scores steps of at most `max_tokens` tokens."""

    def __init__(
        self,
        logits_of: Callable[[Tensor], Tensor],
        max_tokens: int,
        chunk_rows: int,
        device: torch.device,
    ) -> None:
        """Allocates nothing yet: memory is taken by the first steps that score.

        Args:
            chunk_rows: how many rows `logits_of` always receives: a score's bits do not depend on how many
                there are. At most as many as it was captured with, because its memory must not move.
        """
        self._logits_of = logits_of
        self._piece_rows = chunk_rows
        self._device = device
        self._size = -(-max_tokens // chunk_rows) * chunk_rows
        self._ring: list[LaunchedScores | None] = [None] * RING
        self._turn = 0

    @torch.inference_mode()
    def launch(self, requests: ScoreRequests, hidden_TH: Tensor, draws: LaunchedStep) -> LaunchedScores:
        """Queues the scores behind the step that left `hidden_TH`, and behind its `draws`."""
        launched = self._ring[self._turn]
        if launched is None:  # allocated by the first steps that score
            launched = self._ring[self._turn] = LaunchedScores(self._size, self._device)
        self._turn = (self._turn + 1) % RING
        num_rows = -(-len(requests.at_N) // self._piece_rows) * self._piece_rows
        at_N, targets_N = launched.begin(requests, num_rows, draws)
        table_NW = score(self._logits_of, hidden_TH, at_N, targets_N, requests.most_tops, self._piece_rows)
        launched.end(table_NW[: len(requests.at_N)])
        return launched


class LaunchedScores:
    """A step whose scores and draws are on their way to the host. Its memory serves another step later."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._staged = torch.zeros((2, size), dtype=torch.int64, pin_memory=self._on_gpu)
        self._scores = torch.zeros(size, pin_memory=self._on_gpu)
        self._arrived = torch.cuda.Event() if self._on_gpu else None
        self._requests: ScoreRequests | None = None
        self._draws: LaunchedStep | None = None
        self._width = 0

    def begin(self, requests: ScoreRequests, num_rows: int, draws: LaunchedStep) -> tuple[Tensor, Tensor]:
        """Returns (hidden rows, targets) on the device, padded to `num_rows` with the first hidden state."""
        assert self._requests is None, "the last scores in this memory have not been read"
        self._requests, self._draws = requests, draws
        num = len(requests.at_N)
        staged = self._staged[:, :num_rows].numpy()
        staged[0, :num], staged[1, :num] = requests.at_N, requests.targets_N
        staged[:, num:] = 0
        # Row by row: one copy of both would be strided, and wait.
        at_N, targets_N = (
            row[:num_rows].to(self._device, non_blocking=True, copy=True) for row in self._staged
        )
        return at_N, targets_N

    def end(self, table_NW: Tensor) -> None:
        """Queues the copy of the scores."""
        self._width = table_NW.shape[1]
        if table_NW.numel() > self._scores.numel():
            self._scores = torch.zeros(
                table_NW.numel(), pin_memory=self._on_gpu
            )  # rare: waiting is acceptable
        self._table(len(table_NW)).copy_(table_NW, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()

    def _table(self, num_rows: int) -> Tensor:
        return self._scores[: num_rows * self._width].view(num_rows, self._width)

    def fill_masks(self) -> None:
        """Queues the step's draws, if they waited for it."""
        assert self._draws is not None, "read already"
        self._draws.fill_masks()

    def result(self) -> StepResult:
        """Waits for the step and returns its draws and scores. Call once: the memory is reused afterwards."""
        requests, draws = self._requests, self._draws
        assert requests is not None, "read twice"
        assert draws is not None
        drawn = draws.result()
        if self._arrived is not None:
            self._arrived.synchronize()
        drawn.scores = read(self._table(len(requests.at_N)), requests)
        self._requests = self._draws = None
        return drawn
