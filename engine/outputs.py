"""What steps have for the outside, and the counts kept along the way.

Owns plain records. Refuses to know how they come about and where they are sent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.protocol import Begun, Finished, PromptScores, Rejected, TokenChunk, UsageEvent


@dataclass(slots=True)
class StepOutputs:
    """What a step has for the outside, with all that happened since the last one (aborts, failed loads)."""

    chunks: list[TokenChunk] = field(default_factory=list)
    finished: list[tuple[Finished, UsageEvent]] = field(default_factory=list)
    """Journal the event before sending the message."""
    started: list[UsageEvent] = field(default_factory=list)
    """Requests whose first token is among the chunks, with what admission found: cached tokens, the wait."""
    checkpoints: list[UsageEvent] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    scores: list[PromptScores] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.chunks or self.finished or self.started or self.checkpoints or self.rejected or self.scores
        )


MOST_HELD = 256
"""Tokens: about as many as the journal may be behind."""


class HeldChunks:
    """Chunks of one request that nobody reads as they come."""

    __slots__ = ("_chunks", "_first_at", "_num_tokens", "_told")

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._told = False
        """Whoever reads them knows when the first was drawn."""
        self._chunks: list[TokenChunk] = []
        self._num_tokens = 0

    def add(self, chunk: TokenChunk) -> list[TokenChunk]:
        """Hold a chunk; what is due now, in order."""
        if self._first_at is None:
            self._first_at = time.monotonic()
        self._num_tokens += len(chunk.token_ids)
        last = self._chunks[-1] if self._chunks else None
        if last is not None and chunk.goes_on_from(last):
            last.token_ids.extend(chunk.token_ids)
        else:
            self._chunks.append(chunk)
        if self._num_tokens < MOST_HELD and chunk.finish_reason not in ("abort", "error"):
            return []
        return self.take()

    def take(self) -> list[TokenChunk]:
        """All that is held."""
        chunks, self._chunks, self._num_tokens = self._chunks, [], 0
        return chunks

    def begun(self, request_id: str) -> list[Begun]:
        """How long ago the first was held, for the message that it goes with; nothing for later ones."""
        if self._told or self._first_at is None:
            return []
        self._told = True
        return [Begun(request_id, time.monotonic() - self._first_at)]


@dataclass(slots=True)
class Counters:
    """Monotonic, since start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    rejected: int = 0
    errors: int = 0
    admitted: dict[str, int] = field(default_factory=dict)
    """Requests by class, counted at their first admission to a batch."""
    queue_seconds: dict[str, float] = field(default_factory=dict)
    """What those waited for it, summed."""

    preempted: dict[str, int] = field(default_factory=dict)
    """The same by the class of who had to go."""
    shed: dict[str, int] = field(default_factory=dict)
    """Requests refused because too many were waiting, by class."""
    prefill_tokens: int = 0
    """Computed by steps of what was known: of prompts, and again after preemptions."""
    decode_tokens: int = 0
    """Computed by steps of what was drawn last: one to a row."""
    step_bytes: int = 0
    """That steps had to read at least."""

    def admit(self, service_class: str, waited: float) -> None:
        self.admitted[service_class] = self.admitted.get(service_class, 0) + 1
        self.queue_seconds[service_class] = self.queue_seconds.get(service_class, 0.0) + waited

    def preempt(self, service_class: str) -> None:
        self.preempted[service_class] = self.preempted.get(service_class, 0) + 1

    def refuse(self, service_class: str) -> None:
        self.shed[service_class] = self.shed.get(service_class, 0) + 1


@dataclass(slots=True)
class RunnerCounters:
    """Monotonic, since start; kept by the runner."""

    graph_replays: int = 0
    """Steps that replayed a captured graph."""
    eager_steps: int = 0
    """Steps launched op by op."""
    gap_seconds: float = 0.0
    """How long the device waited for a step that was launched late, after the one before it had ended."""


@dataclass(frozen=True, slots=True)
class DeviceGauges:
    """What the engine runs on, and what its adapters take there."""

    device: str = ""
    quantization: str = "none"
    kv_dtype: str = ""
    adapter_bytes_total: int = 0
    """Set aside for adapters; 0 where memory is taken as they come."""
    adapter_bytes_used: int = 0
    adapter_load_seconds: float = 0.0
    """Summed over loads that have ended."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What the device's memory is used for, in bytes."""

    shares: Mapping[str, int] = field(default_factory=dict)
    """By what they are for, without what adapters have; empty where there is no model."""
    slot_bytes: Sequence[int] = ()
    """What adapters take, by slot; empty where the slot table knows."""
    bandwidth: float = 0.0
    """Bytes per second that it copies, read and written; 0: not known."""
