"""Defines what steps produce for the world outside the engine, and the counters kept along the way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.gauges import RefusedAdapter
from engine.lora.signatures import SignatureCounters
from engine.protocol import Begun, Finished, PromptScores, Rejected, TokenChunk, UsageEvent


@dataclass(slots=True)
class StepOutputs:
    """What a step produced, with everything since the last one (aborts, failed loads)."""

    chunks: list[TokenChunk] = field(default_factory=list)
    finished: list[tuple[Finished, UsageEvent]] = field(default_factory=list)
    """Journal the event before sending the message."""
    started: list[UsageEvent] = field(default_factory=list)
    """Requests whose first token is among the chunks, with what admission found: cached tokens, time in the
    queue."""
    checkpoints: list[UsageEvent] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    scores: list[PromptScores] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(
            self.chunks or self.finished or self.started or self.checkpoints or self.rejected or self.scores
        )


MAX_COUNTED_ADAPTERS = 4096

MAX_BUFFERED_TOKENS = 256
"""About as many tokens as the journal may lag behind."""


class ChunkBuffer:
    """Buffers chunks of a request whose client does not stream."""

    __slots__ = ("_chunks", "_delay_reported", "_first_at", "_num_tokens")

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._delay_reported = False
        """Whether the client has received the delay of the first token."""
        self._chunks: list[TokenChunk] = []
        self._num_tokens = 0

    def add(self, chunk: TokenChunk) -> list[TokenChunk]:
        """Buffers a chunk. Returns the chunks to send now, in order."""
        if self._first_at is None:
            self._first_at = time.monotonic()
        self._num_tokens += len(chunk.token_ids)
        last = self._chunks[-1] if self._chunks else None
        if last is not None and chunk.goes_on_from(last):
            last.token_ids.extend(chunk.token_ids)
        else:
            self._chunks.append(chunk)
        if self._num_tokens < MAX_BUFFERED_TOKENS and chunk.finish_reason not in ("abort", "error"):
            return []
        return self.take()

    def take(self) -> list[TokenChunk]:
        """Returns all buffered chunks and empties the buffer."""
        chunks, self._chunks, self._num_tokens = self._chunks, [], 0
        return chunks

    def first_token_delay(self, request_id: str) -> list[Begun]:
        """Returns, once, how long ago the first token was buffered, to send along with it. Empty
        otherwise."""
        if self._delay_reported or self._first_at is None:
            return []
        self._delay_reported = True
        return [Begun(request_id, time.monotonic() - self._first_at)]


@dataclass(slots=True)
class Counters:
    """Monotonic since the start of the engine."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    rejected: int = 0
    errors: int = 0
    admitted: dict[str, int] = field(default_factory=dict)
    """Requests by class, counted when first admitted to a batch."""
    queue_seconds: dict[str, float] = field(default_factory=dict)
    """By class: seconds that those requests waited, summed."""

    preempted: dict[str, int] = field(default_factory=dict)
    """`preemptions` by the class of the preempted request."""
    shed: dict[str, int] = field(default_factory=dict)
    """Requests rejected because of overload, by class."""
    prefill_tokens: int = 0
    """Known tokens that steps computed: of prompts, and again after preemptions."""
    decode_tokens: int = 0
    """Tokens that steps computed one to a row, each the token drawn last."""
    step_bytes: int = 0
    """Bytes that steps had to read at least."""
    drafted_tokens: int = 0
    """Guessed tokens that steps verified."""
    accepted_tokens: int = 0
    """Of those, tokens that were drawn too and given out; `completion_tokens` has them."""
    draft_steps: int = 0
    """Steps of single rows that verified guessed tokens; each row of a step counts."""
    drafts: OrderedDict[tuple[str, str], list[int]] = field(default_factory=OrderedDict)
    """The same three by tenant and adapter digest, of those that had drafts last."""

    def count_admission(self, service_class: str, waited: float) -> None:
        self.admitted[service_class] = self.admitted.get(service_class, 0) + 1
        self.queue_seconds[service_class] = self.queue_seconds.get(service_class, 0.0) + waited

    def count_preemption(self, service_class: str) -> None:
        self.preempted[service_class] = self.preempted.get(service_class, 0) + 1

    def count_drafts(
        self, tenant: str, adapter_digest: str | None, num_drafted: int, num_accepted: int
    ) -> None:
        self.drafted_tokens += num_drafted
        self.accepted_tokens += num_accepted
        self.draft_steps += 1
        if adapter_digest is None:
            return
        key = tenant, adapter_digest
        counts = self.drafts.setdefault(key, [0, 0, 0])
        counts[0] += num_drafted
        counts[1] += num_accepted
        counts[2] += 1
        self.drafts.move_to_end(key)
        if len(self.drafts) > MAX_COUNTED_ADAPTERS:
            self.drafts.popitem(last=False)

    def count_shed(self, service_class: str) -> None:
        self.shed[service_class] = self.shed.get(service_class, 0) + 1


@dataclass(slots=True)
class RunnerCounters:
    """Monotonic since the start of the engine; kept by the runner."""

    graph_replays: int = 0
    """Steps that replayed a captured graph."""
    eager_steps: int = 0
    """Steps launched op by op."""
    gap_seconds: float = 0.0
    """Seconds that the device was idle because a step was launched after the one before had ended."""


@dataclass(frozen=True, slots=True)
class DeviceGauges:
    """The device that the engine runs on, and the memory that adapters take there."""

    device: str = ""
    quantization: str = "none"
    kv_dtype: str = ""
    adapter_bytes_total: int = 0
    """Reserved for adapters; 0 where their memory is not bounded."""
    adapter_bytes_used: int = 0
    adapter_load_seconds: float = 0.0
    """Summed over completed loads."""
    signatures: SignatureCounters = field(default_factory=SignatureCounters)
    refused_adapters: Sequence[RefusedAdapter] = ()


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """How the device's memory is used, in bytes."""

    shares: Mapping[str, int] = field(default_factory=dict)
    """By purpose, without adapters; empty where there is no model."""
    slot_bytes: Sequence[int] = ()
    """What each slot's adapter takes; empty where the slot table knows."""
    bandwidth: float = 0.0
    """Bytes per second, read and written, of a copy within the memory; 0: not known."""
