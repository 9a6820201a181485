"""Simulates one engine as a fluid: all its rows draw tokens at one rate, which its load decides.

Between two events every row has drawn the same number of tokens since, so a row that needs k more ends when
the replica's progress has grown by k: an event per request and not per token. A prompt stops all rows for as
long as its tokens add to steps; prompts are computed in the order they came. Step times come from
`engine.planner.step_model`, for the number of rows and of distinct adapters, at one mean context.

Adapters are read by several threads and loaded one at a time into slots; the least recently used idle one is
evicted and stays in host memory. Keys and values of conversations stay until others need their room.

Left out: service classes and fairness, refusal of load, preemption, grammars, the API processes' own time,
and that a request's later prompt pieces share steps with others (a prompt's time is counted once, as a
whole)."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.traffic import SimulatedRequest
from engine.planner.step_model import StepModel, StepWork

NUM_READERS = 4
"""Threads of an engine that read adapters from disk."""
STEPS_TO_FIRST_TOKEN = 2.5
"""Half of the step that runs, the one planned after it, and the request's own."""
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class ReplicaSizes:
    """What a replica holds, and how long loads take."""

    max_rows: int
    num_slots: int
    host_adapters: int
    cache_tokens: int
    """Of keys and values that conversations may leave behind."""
    load_s: float
    read_s: float


class StepTable:
    """Seconds of a decode step by rows and distinct adapters, and of a prompt token."""

    def __init__(
        self, model: StepModel, context: float, adapter_bytes: int, rank: int, max_rows: int
    ) -> None:
        rows = np.arange(max_rows + 1, dtype=np.float64)[:, None]
        distinct = np.arange(max_rows + 1, dtype=np.float64)[None, :]
        steps: NDArray[np.float64] = model.seconds(
            StepWork(
                rows=rows, context=context, distinct=distinct, adapter_bytes=distinct * adapter_bytes,
                largest_rank=rank, uneven=1.0,
            )
        )  # fmt: skip
        self.seconds: list[list[float]] = steps.tolist()
        half, piece = max_rows // 2, 1024
        busy = model.seconds(
            StepWork(
                rows=half, context=context, prompt_tokens=piece, prompt_context=context / 2, distinct=half,
                adapter_bytes=half * adapter_bytes, largest_rank=rank, uneven=1.0,
            )
        )  # fmt: skip
        self.prompt_token = (float(busy) - self.seconds[half][half]) / piece


class FluidReplica:
    """One engine. The caller passes times, which do not go backwards."""

    def __init__(self, name: str, table: StepTable, sizes: ReplicaSizes) -> None:
        self.name = name
        self.is_up = True
        self.loads = self.reads = self.evictions = 0
        self.cached_tokens = self.prompt_tokens = 0
        self.next_event = float("inf")
        """The time of the event that is scheduled for it."""
        self._table = table
        self._sizes = sizes
        self._number = 0
        self._reset()

    def clear(self) -> list[SimulatedRequest]:
        """Forgets everything, as a restart does. Returns the requests that are lost."""
        lost = [
            *(request for _, _, request in self._rows),
            *self._waiting,
            *(request for _, _, request in self._loading),
        ]
        self._reset()
        return lost

    def _reset(self) -> None:
        self._at = self._progress = self._backlog = self._loads_end = 0.0
        self._readers = [0.0] * NUM_READERS
        self._rows: list[tuple[float, int, SimulatedRequest]] = []
        self._waiting: deque[SimulatedRequest] = deque()
        self._loading: list[tuple[float, int, SimulatedRequest]] = []
        self._running: dict[int, int] = {}
        self._slots: OrderedDict[int, float] = OrderedDict()
        self._host: OrderedDict[int, None] = OrderedDict()
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._cache_used = 0
        self._step = self._table.seconds[0][0]
        self._starts: list[tuple[SimulatedRequest, float]] = []

    # What a heartbeat reports ------------------------------------------------------------------------------

    @property
    def rows_taken(self) -> int:
        return len(self._rows) + len(self._waiting) + len(self._loading)

    @property
    def rows_total(self) -> int:
        return self._sizes.max_rows

    @property
    def resident(self) -> frozenset[str]:
        """Adapters that are loaded or loading."""
        return frozenset(map(str, self._slots))

    @property
    def load_seconds(self) -> float:
        """Returns the seconds of a load, on average; 0 before the first."""
        if not self.loads:
            return 0.0
        return self._sizes.load_s + self._sizes.read_s * self.reads / self.loads

    @property
    def prompt_rate(self) -> float:
        return 1 / self._table.prompt_token

    def predicted_wait(self, mean_output: float, now: float) -> float:
        """Returns the seconds that a request would wait for a row and for prompts before it."""
        self._advance(now)
        wait = self._backlog
        if self._waiting:
            release = len(self._rows) / (mean_output * self._step)
            wait = max(wait, (len(self._waiting) + 1) / release)
        return wait

    # Events ------------------------------------------------------------------------------------------------

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Takes a request."""
        self._advance(now)
        ready = self._adapter_ready(request.adapter, now)
        if ready > now:
            self._number += 1
            heapq.heappush(self._loading, (ready, self._number, request))
        else:
            self._enter(request, now)

    def run_until(self, now: float) -> list[SimulatedRequest]:
        """Processes what is due. Returns the requests that have ended."""
        self._advance(now)
        ended = []
        while self._rows and self._rows[0][0] <= self._progress + EPSILON:
            _, _, request = heapq.heappop(self._rows)
            self._leave(request)
            ended.append(request)
        while self._loading and self._loading[0][0] <= now:
            _, _, request = heapq.heappop(self._loading)
            self._waiting.append(request)
        while self._waiting and len(self._rows) < self._sizes.max_rows:
            self._enter(self._waiting.popleft(), now)
        return ended

    def take_starts(self) -> list[tuple[SimulatedRequest, float]]:
        """Returns requests that got a row since the last call, each with the time of its first token."""
        starts, self._starts = self._starts, []
        return starts

    def next_due(self) -> float:
        """Returns when something happens in it next, if nothing arrives before."""
        due = self._loading[0][0] if self._loading else float("inf")
        if self._rows:
            due = min(
                due, self._at + self._backlog + max(0.0, self._rows[0][0] - self._progress) * self._step
            )
        return due

    # Rows --------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        elapsed = now - self._at
        if elapsed <= 0:
            return
        stalled = min(elapsed, self._backlog)
        self._backlog -= stalled
        if self._rows:
            self._progress += (elapsed - stalled) / self._step
        self._at = now

    def _enter(self, request: SimulatedRequest, now: float) -> None:
        if len(self._rows) >= self._sizes.max_rows:
            self._waiting.append(request)
            return
        self._running[request.adapter] = self._running.get(request.adapter, 0) + 1
        prompt = request.prompt_len - self._cached(request)
        self._backlog += prompt * self._table.prompt_token
        self._number += 1
        end = self._progress + STEPS_TO_FIRST_TOKEN + request.output_len - 1
        heapq.heappush(self._rows, (end, self._number, request))
        self._note_step()
        first_token = now + self._backlog + STEPS_TO_FIRST_TOKEN * self._step
        self._starts.append((request, first_token))

    def _leave(self, request: SimulatedRequest) -> None:
        count = self._running[request.adapter] - 1
        if count:
            self._running[request.adapter] = count
        else:
            del self._running[request.adapter]
        self._note_step()
        self._keep(request)

    def _note_step(self) -> None:
        self._step = self._table.seconds[len(self._rows)][len(self._running)]

    # Adapters ----------------------------------------------------------------------------------------------

    def _adapter_ready(self, adapter: int, now: float) -> float:
        """Returns when the adapter is in a slot; loads it if it is not."""
        slots = self._slots
        ready = slots.get(adapter)
        if ready is not None:
            slots.move_to_end(adapter)
            return ready
        in_host = now
        if adapter not in self._host:
            in_host = max(now, heapq.heappop(self._readers)) + self._sizes.read_s
            heapq.heappush(self._readers, in_host)
            self.reads += 1
        self._loads_end = max(self._loads_end, in_host) + self._sizes.load_s
        self._remember(adapter)
        self.loads += 1
        if len(slots) >= self._sizes.num_slots:
            self._evict()
        slots[adapter] = self._loads_end
        return self._loads_end

    def _evict(self) -> None:
        """Drops the slot that was idle the longest; without an idle one there is one adapter too many for a
        moment, where an engine would let the request wait."""
        for adapter in self._slots:
            if adapter not in self._running:
                del self._slots[adapter]
                self.evictions += 1
                return

    def _remember(self, adapter: int) -> None:
        self._host[adapter] = None
        self._host.move_to_end(adapter)
        if len(self._host) > self._sizes.host_adapters:
            self._host.popitem(last=False)

    # Prefixes ----------------------------------------------------------------------------------------------

    def _cached(self, request: SimulatedRequest) -> int:
        """Returns the tokens of a prompt whose keys and values are there."""
        self.prompt_tokens += request.prompt_len
        tokens = self._cache.get(request.conversation, 0)
        if tokens:
            self._cache.move_to_end(request.conversation)
        found = min(tokens, request.prompt_len - 1)
        self.cached_tokens += found
        return found

    def _keep(self, request: SimulatedRequest) -> None:
        """Leaves a conversation's keys and values behind, and evicts the oldest."""
        cache = self._cache
        tokens = request.prompt_len + request.output_len
        self._cache_used += tokens - cache.pop(request.conversation, 0)
        cache[request.conversation] = tokens
        while self._cache_used > self._sizes.cache_tokens:
            self._cache_used -= cache.popitem(last=False)[1]
