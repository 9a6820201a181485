"""The messages between the engine and everything above it.

Owns the wire format: msgspec structs, encoded as MessagePack. Snapshot-tested, because API processes and
engines of two releases meet during a rolling deploy: fields are added with defaults, never renamed or
reordered. Refuses to know HTTP, SQL, text and tensors: the engine is given token ids and opaque names.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from engine.gauges import EngineStats as EngineStats
from engine.gauges import EngineView as EngineView


class PriorityClass(StrEnum):
    """A request's class of service, in the words of OpenAI's `service_tier`."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


FinishReason = Literal["stop", "length", "abort", "error"]


class AdapterRef(msgspec.Struct, frozen=True):
    """An adapter, named by content: the only adapter identity below the API."""

    digest: str
    """Hex SHA-256 of the packed artifact."""
    rank: int
    """Largest rank of any module."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to pick tokens and when to stop. The API validates for its callers, the engine for itself."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output; divides positive logits, multiplies negative ones (CTRL, arXiv 1909.05858)."""
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    """Choice i of n draws from (seed + i, position): the same tokens in any batch, after any preemption."""
    min_tokens: int = 0
    """No end-of-sequence and no stop before this many tokens."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none. k: the chosen token's and those of the k likeliest, of the unmodified distribution."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of the prompt's tokens: each given those before it. With it `max_tokens` may be 0."""
    score_from: int = 1
    """Position of the first prompt token that is scored: what precedes it may come from the prefix cache."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """One request: a prompt, and n choices to generate from it. Billed as one."""

    request_id: str
    tenant: str
    """Opaque. Salts the prefix cache and is the unit of fairness."""
    prompt_ids: list[int]
    sampling: SamplingParams
    adapter: AdapterRef | None = None
    priority: PriorityClass = PriorityClass.DEFAULT
    n: int = 1
    labels: dict[str, str] = {}
    """Copied into every UsageEvent untouched: what the ledger needs to know and the engine does not."""
    submitted_at: float = 0.0
    """Unix seconds, the submitter's clock. Part of the ledger key, so it never changes for a request."""
    ttft_target: float | None = None
    """Seconds. It is refused rather than wait longer for its first token. None: the engine's, by class."""
    whole: bool = False
    """Nobody reads it as it comes: its tokens come together, with the last word, or many at a time."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop generating; tokens generated so far are billed. Unknown or finished ids are ignored."""

    request_id: str


class Prefetch(msgspec.Struct, frozen=True, tag="prefetch"):
    """Bring an adapter into memory before its first request."""

    adapter: AdapterRef
    pinned: bool | None = None
    """Keep it there from now on, as far as the engine has room for pins; False: no longer. None: as it is."""


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Asks for one EngineView. Who wants to go on looking asks again."""


class AskSpooled(msgspec.Struct, frozen=True, tag="ask_spooled"):
    """Asks for a page of the usage events that wait on the engine's disk."""

    position: int = 0
    """Where an answer said to go on; 0: from the first."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A client's first message; answered by EngineInfo once the model is loaded."""

    client: str


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The client leaves in good order: its requests are aborted, nothing more is sent to it."""


ClientMessage = Submit | Abort | Prefetch | Hello | Goodbye | Inspect | AskSpooled


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms, of the distribution before bias, penalties, temperature and truncation."""

    token_id: int
    logprob: float
    top: list[TopLogprob] = []


class TokenChunk(msgspec.Struct, frozen=True, array_like=True):
    """Tokens one choice gained since its last chunk; the last one carries the reason it ended."""

    request_id: str
    index: int
    """Which of the request's n choices."""
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    """Parallel to `token_ids` when asked for."""
    finish_reason: FinishReason | None = None
    stop: int | str | None = None
    """The stop string or token that matched. A matched string is still in the tokens: the reader cuts it."""

    def goes_on_from(self, last: TokenChunk) -> bool:
        """Whether the two say no more than `last` with the tokens of both."""
        return (
            last.index == self.index
            and self.finish_reason is None
            and last.finish_reason is None
            and self.logprobs is None
            and last.logprobs is None
        )


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """What a step has scored of a request's prompt. Each token once, in order, before the first chunk."""

    request_id: str
    start: int
    """Position in the prompt of the first of them."""
    logprobs: list[TokenLogprob]


class Usage(msgspec.Struct, frozen=True):
    """What a request is billed for. The prompt counts once, however many choices."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens, those whose keys and values came from the prefix cache at first admission."""
    completion_tokens: int


class Finished(msgspec.Struct, frozen=True):
    """Every choice has ended and the usage is in the journal. The last word on a request."""

    request_id: str
    usage: Usage


RejectCode = Literal[
    "context_length_exceeded",
    "overloaded",
    "adapter_unavailable",
    "adapter_loading",
    "invalid",
    "duplicate",
    "draining",
]


class Rejected(msgspec.Struct, frozen=True):
    """The request never ran and is not billed. The last word on a request."""

    request_id: str
    code: RejectCode
    message: str
    retry_after: float | None = None
    """Seconds until it may be worth asking again, as far as the engine can tell."""


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """A request whose first tokens were held back come with this message."""

    request_id: str
    seconds: float
    """Since the first of them was drawn."""


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """All that one step has for one client, in one message."""

    chunks: list[TokenChunk] = []
    finished: list[Finished] = []
    rejected: list[Rejected] = []
    scores: list[PromptScores] = []
    begun: list[Begun] = []


class EngineInfo(msgspec.Struct, frozen=True, tag="info"):
    """Who is serving: sent in answer to Hello."""

    engine_id: str
    """Stable across restarts of one deployment slot, such as "engine-0"."""
    incarnation: str
    """Changes at every start: a client that sees a new one knows its open requests are gone."""
    base: str
    """Name the base model is sold under."""
    base_digest: str
    """Hex digest of the base's config and weights: what adapters are packed against."""
    quantization: str
    device: str
    context_length: int
    """Prompt plus completion, tokens."""
    max_prompt_tokens: int
    vocab_size: int
    build: str
    start_seconds: float = 0.0
    """From the start of its process until it served; 0 where that is not known."""
    sliding_window: int | None = None
    """The base's, where it bounds the context: attention is not computed beyond it. None: it does not."""


class IssuedEvents(msgspec.Struct, frozen=True):
    """How many usage events an engine's incarnation has numbered: what the journal must have of it."""

    engine_id: str
    incarnation: str
    events: int
    tokens: int
    """Completion tokens in them."""
    at: float
    """Unix seconds: when it ended, or wrote the last of them."""


class SetAside(msgspec.Struct, frozen=True):
    """A damaged file of the journal that the engine keeps for an operator."""

    name: str
    size: int
    """Bytes."""


class Spooled(msgspec.Struct, frozen=True, tag="spooled"):
    """Usage events on the engine's disk that the journal has not been seen to have."""

    events: list[bytes] = []
    """In order, each as the journal will have it: a MessagePack UsageEvent."""
    position: int | None = None
    """Where to go on; None: there are no more."""
    issued: list[IssuedEvents] = []
    """With the first page: of this incarnation and of those before it."""
    set_aside: list[SetAside] = []
    """With the first page."""


EngineMessage = Outputs | EngineInfo | EngineStats | EngineView | Spooled


class EventNumber(msgspec.Struct, frozen=True, array_like=True):
    """An event's place among those of its engine's incarnation: what is missing between two is known."""

    sequence: int
    """From 1 on, without gaps. An event that comes twice has the same one."""
    tokens_before: int
    """Completion tokens in all events with smaller numbers, each counted in the first that has it."""
    tokens_after: int
    """With this event's own."""


class UsageEvent(msgspec.Struct, frozen=True):
    """One line of the usage journal: counts so far. A request's largest counts win: replay is harmless."""

    request_id: str
    engine_id: str
    incarnation: str
    tenant: str
    submitted_at: float
    """Unix seconds; equal in every event of a request."""
    recorded_at: float
    priority: PriorityClass
    usage: Usage
    adapter_digest: str | None = None
    labels: dict[str, str] = {}
    n: int = 1
    scheduled_at: float | None = None
    """First admission to a batch; minus `submitted_at` it is the queue wait."""
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    """Set on the last event: the reasons of the choices, joined by "," in choice order when they differ."""
    preemptions: int = 0
    number: EventNumber | None = None
    """None: by an engine that does not number, or whose numbers were lost."""


JOURNAL_STREAM = "rootstock:usage"
"""Redis stream of MessagePack UsageEvents, field b"e"."""
ISSUED_STREAM = "rootstock:usage:issued"
"""Redis stream of MessagePack IssuedEvents of incarnations that have ended, field b"e"."""
