"""Runs an engine in virtual time: rows, token budget and adapter slots, with predicted step times.

Does what `benchmarks.load` does with a real engine, and returns the same notes, so that the same figures come
of both. It plans as the scheduler does where time is concerned: rows that decode go first, prompts are
computed in pieces within the token budget, and each step is planned when the one before it begins. Left out:
service classes and turns of tenants (requests are served as they come), preemption, the prefix cache.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load_figures import Notes, StepNote, Timed
from benchmarks.workload import Arrival
from engine.planner.step_model import StepModel, StepWork


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What a virtual engine holds."""

    max_rows: int = 256
    max_batch_tokens: int = 2048
    num_slots: int = 256
    adapter_bytes: float = 0.0
    """Of one adapter; 0: requests are for the base."""
    rank: int = 0
    uneven: bool = True
    """Rows and adapters differ, as in traffic."""
    load_seconds: float = 0.0
    """Of one adapter that is not in a slot; loads follow one another."""


@dataclass(slots=True)
class _Row:
    name: str
    adapter: int
    prompt_left: int
    left: int
    """Tokens that it will still draw."""
    computed: int = 0


@dataclass(slots=True)
class _Step:
    seconds: float
    drawn: list[_Row]


class VirtualEngine:
    """One replica."""

    def __init__(self, model: StepModel, sizes: EngineSizes, resident: Sequence[int] = ()) -> None:
        self._model = model
        self._sizes = sizes
        self._rows: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self._slots: OrderedDict[int, float] = OrderedDict((adapter, 0.0) for adapter in resident)
        """Adapter -> when its load ends, the least recently used first."""
        self._loads_end = 0.0
        self._notes = Notes()

    def run(self, arrivals: Sequence[Arrival]) -> Notes:
        """Serves all requests and returns what happened."""
        now = planned_at = 0.0
        sent = 0
        notes = self._notes
        while sent < len(arrivals) or self._rows or self._waiting:
            # The step that begins now was planned when the one before it began.
            while sent < len(arrivals) and arrivals[sent].at <= planned_at:
                self._accept(arrivals[sent], sent, planned_at)
                sent += 1
            step = self._step(planned_at)
            if step is None:
                planned_at = now = self._next_event(arrivals[sent].at if sent < len(arrivals) else None, now)
                continue
            planned_at, now = now, now + step.seconds
            for row in step.drawn:
                notes.requests[row.name].note(now, 1)
            loading = any(ready > now for ready in self._slots.values())
            notes.steps.append(StepNote(now, len(step.drawn), len(self._rows), len(self._waiting), loading))
        return notes

    def _accept(self, arrival: Arrival, number: int, now: float) -> None:
        name = str(number)
        adapter = arrival.adapter if self._sizes.adapter_bytes else -1
        cold = adapter >= 0 and adapter not in self._slots
        self._notes.requests[name] = Timed(arrival.at, arrival.output_len, cold)
        self._waiting.append(_Row(name, adapter, arrival.prompt_len, arrival.output_len))

    def _next_event(self, arrival_at: float | None, now: float) -> float:
        """Returns when there is something to do again: a request arrives, or a load ends."""
        times = [ready for ready in self._slots.values() if ready > now]
        if arrival_at is not None:
            times.append(arrival_at)
        return max(now, min(times))

    def _step(self, now: float) -> _Step | None:
        budget = self._sizes.max_batch_tokens
        decoding = [row for row in self._rows if not row.prompt_left]
        budget -= len(decoding)
        context = sum(row.computed for row in decoding) + len(decoding)
        drawn = list(decoding)
        for row in decoding:
            row.computed += 1
        in_step = list(decoding)
        prompt_tokens = 0
        pairs = 0.0
        for row in self._computing(now):
            if budget <= 0:
                break
            tokens = min(budget, row.prompt_left)
            budget -= tokens
            prompt_tokens += tokens
            pairs += tokens * (row.computed + tokens / 2)
            row.computed += tokens
            row.prompt_left -= tokens
            in_step.append(row)
            if not row.prompt_left:
                drawn.append(row)
        if not in_step:
            return None
        seconds = self._seconds(in_step, len(decoding), context, prompt_tokens, pairs)
        for row in drawn:
            row.left -= 1
        self._rows = [row for row in self._rows if row.left]
        return _Step(seconds, drawn)

    def _computing(self, now: float) -> list[_Row]:
        """Returns rows with prompts to compute, then requests that may enter, entering as they are taken."""
        computing = sorted((row for row in self._rows if row.prompt_left), key=lambda row: row.prompt_left)
        room = self._sizes.max_rows - len(self._rows)
        tokens = sum(row.prompt_left for row in computing)
        passed: list[_Row] = []
        while self._waiting and room and tokens < self._sizes.max_batch_tokens:
            row = self._waiting.popleft()
            if not self._is_ready(row.adapter, now):
                passed.append(row)
                continue
            tokens += row.prompt_left
            room -= 1
            computing.append(row)
            self._rows.append(row)
        self._waiting.extendleft(reversed(passed))
        return computing

    def _is_ready(self, adapter: int, now: float) -> bool:
        """Returns whether an adapter is in a slot; begins to load it if it is not and a slot is idle."""
        if adapter < 0:
            return True
        slots = self._slots
        if adapter in slots:
            slots.move_to_end(adapter)
            return slots[adapter] <= now
        if len(slots) >= self._sizes.num_slots:
            used = {row.adapter for row in self._rows}
            idle = next((one for one, ready in slots.items() if one not in used and ready <= now), None)
            if idle is None:
                return False
            del slots[idle]
            self._notes.evictions += 1
        self._loads_end = max(self._loads_end, now) + self._sizes.load_seconds
        slots[adapter] = self._loads_end
        self._notes.loads += 1
        return False

    def _seconds(
        self, rows: Sequence[_Row], num_decoding: int, context: float, prompt_tokens: int, pairs: float
    ) -> float:
        sizes = self._sizes
        distinct = len({row.adapter for row in rows if row.adapter >= 0})
        work = StepWork(
            rows=num_decoding,
            context=context / max(1, num_decoding),
            prompt_tokens=prompt_tokens,
            prompt_context=pairs / max(1, prompt_tokens),
            distinct=distinct,
            adapter_bytes=distinct * sizes.adapter_bytes,
            largest_rank=sizes.rank if distinct else 0,
            uneven=float(sizes.uneven),
        )
        return float(self._model.seconds(work))
