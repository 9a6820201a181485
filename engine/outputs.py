"""Defines what steps produce for the world outside the engine, and the counters kept along the way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

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
class DraftCounter:
    """What became of some drafts."""

    drafted: int = 0
    accepted: int = 0
    guessed: int = 0
    """Of `drafted`, those that a draft adapter guessed, and of these the accepted ones."""
    guessed_accepted: int = 0
    steps: int = 0
    """Of single rows, that verified drafts."""

    def add(self, num_drafted: int, num_accepted: int, is_guessed: bool) -> None:
        """Counts drafts."""
        self.drafted += num_drafted
        self.accepted += num_accepted
        if is_guessed:
            self.guessed += num_drafted
            self.guessed_accepted += num_accepted


_K = TypeVar("_K")


def _counter(counters: OrderedDict[_K, DraftCounter], key: _K) -> DraftCounter:
    """Returns the counter of a key, which is now the latest; the oldest is dropped where there are many."""
    counter = counters.setdefault(key, DraftCounter())
    counters.move_to_end(key)
    if len(counters) > MAX_COUNTED_ADAPTERS:
        counters.popitem(last=False)
    return counter


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
    drafted_by_kind: dict[str, int] = field(default_factory=dict)
    """`drafted_tokens` by where they came from: "grammar", "text" or "adapter"."""
    accepted_by_kind: dict[str, int] = field(default_factory=dict)
    placeholder_tokens: int = 0
    """Tokens computed for draft adapters to guess in their places."""
    drafts: OrderedDict[tuple[str, str], DraftCounter] = field(default_factory=OrderedDict)
    """By tenant and adapter digest, of those that had drafts last."""
    guesses: OrderedDict[str, DraftCounter] = field(default_factory=OrderedDict)
    """By digest of the draft adapter that guessed them, for whatever tenant and adapter."""
    draft_steps: int = 0
    """Steps of single rows that verified guessed tokens; each row of a step counts."""

    def count_admission(self, service_class: str, waited: float) -> None:
        self.admitted[service_class] = self.admitted.get(service_class, 0) + 1
        self.queue_seconds[service_class] = self.queue_seconds.get(service_class, 0.0) + waited

    def count_preemption(self, service_class: str) -> None:
        self.preempted[service_class] = self.preempted.get(service_class, 0) + 1

    def count_drafts(
        self,
        tenant: str,
        adapter_digest: str | None,
        kind: str,
        num_drafted: int,
        num_accepted: int,
        guessed_by: str = "",
    ) -> None:
        """Counts drafts of one kind. `guessed_by`: digest of the draft adapter, where one guessed them."""
        if not num_drafted:
            return
        self.drafted_tokens += num_drafted
        self.accepted_tokens += num_accepted
        self.drafted_by_kind[kind] = self.drafted_by_kind.get(kind, 0) + num_drafted
        self.accepted_by_kind[kind] = self.accepted_by_kind.get(kind, 0) + num_accepted
        is_guessed = kind == "adapter"
        if is_guessed:
            _counter(self.guesses, guessed_by).add(num_drafted, num_accepted, is_guessed)
        if adapter_digest is not None:
            _counter(self.drafts, (tenant, adapter_digest)).add(num_drafted, num_accepted, is_guessed)

    def count_draft_step(self, tenant: str, adapter_digest: str | None) -> None:
        """Counts a row of a step that verified drafts."""
        self.draft_steps += 1
        if adapter_digest is not None:
            _counter(self.drafts, (tenant, adapter_digest)).steps += 1

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
