"""Defines the messages between the engine and its clients: msgspec structs, encoded as MessagePack.

The wire format is snapshot-tested, because API processes and engines of two releases meet during a rolling
deploy: fields are added with defaults, never renamed or reordered. The engine receives token ids and opaque
names only; HTTP, SQL and text stay above it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from engine.gauges import EngineStats as EngineStats
from engine.gauges import EngineView as EngineView
from engine.gauges import TenantService as TenantService


class PriorityClass(StrEnum):
    """A request's service class, named like OpenAI's `service_tier`."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"


FinishReason = Literal["stop", "length", "abort", "error"]


class AdapterRef(msgspec.Struct, frozen=True):
    """An adapter, identified by its content: the only adapter identity below the API."""

    digest: str
    """Hex SHA-256 of the packed artifact."""
    rank: int
    """Largest rank of any module."""


class SamplingParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to draw tokens and when to stop. Both the API and the engine validate it."""

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
    """None: none. k: those of the chosen token and of the k likeliest, from the unmodified distribution."""
    prompt_logprobs: int | None = None
    """As `logprobs`, for prompt tokens: each given the tokens before it. Allows `max_tokens` of 0."""
    score_from: int = 1
    """Position of the first prompt token to score: tokens before it may come from the prefix cache."""


class Grammar(msgspec.Struct, frozen=True):
    """Constrains output: only tokens that continue a text of the grammar are drawn, and the end of sequence
    only where such a text is complete.
    """

    kind: Literal["json_schema", "regex", "choice", "lark"]
    source: str
    """A JSON Schema; a regular expression without look-around; a JSON array of strings; a grammar in
    llguidance's dialect of Lark."""
    compiled_bytes: int = 0
    """Memory that it takes compiled, as the API measured when it checked it; 0: not measured."""


class Reasoning(msgspec.Struct, frozen=True):
    """A model's thinking before its answer: its tokens are counted, and it ends at its budget.

    Stop strings, stop tokens and the grammar hold for the answer alone.
    """

    start: str
    """The text that begins thinking; a choice that begins otherwise does not think."""
    end: str
    """The text that ends it."""
    start_ids: tuple[int, ...]
    """The tokens of `start`: with a grammar, thinking begins with exactly these."""
    end_ids: tuple[int, ...]
    """Generated when the budget is spent: tokens whose text ends in `end`."""
    special: dict[int, str] = {}
    """Special tokens that are markers, or parts of one, with their text."""
    is_open: bool = False
    """The prompt ends within thinking."""
    budget: int | None = None
    """Tokens of thinking, markers not counted, after which it ends. None: no bound."""
    keeps_space: bool = False
    """White space between `end` and the answer belongs to the answer: its format counts every byte."""


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
    """Copied into every UsageEvent untouched, for the ledger; the engine does not read them."""
    submitted_at: float = 0.0
    """Unix seconds, the submitter's clock. Part of the ledger key, so it never changes for a request."""
    ttft_target: float | None = None
    """Seconds to the first token beyond which the request is rejected instead of queued. None: the engine's
    target for its class."""
    whole: bool = False
    """The client does not stream: tokens are sent at the end, or many at a time."""
    grammar: Grammar | None = None
    """Holds for every choice."""
    reasoning: Reasoning | None = None
    """None: all that is generated is the answer."""
    traceparent: str = ""
    """Of a request that is traced: the header of W3C Trace Context that names the parent of the engine's
    spans."""
    model: str = ""
    """The name by which the client called the model: what metrics call its adapter."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stops generation; tokens generated so far are billed. Unknown or finished ids are ignored."""

    request_id: str


class Prefetch(msgspec.Struct, frozen=True, tag="prefetch"):
    """Loads an adapter into memory before its first request."""

    adapter: AdapterRef
    pinned: bool | None = None
    """True keeps it there, as far as the engine has room for pins; False ends that; None changes nothing."""


class ServedElsewhere(msgspec.Struct, frozen=True, tag="served_elsewhere"):
    """Says how fast other engines serve this engine's tenants, which it counts for their turns."""

    rates: list[TenantService]


class Inspect(msgspec.Struct, frozen=True, tag="inspect"):
    """Requests one EngineView. Send it again for the next view."""


class AskSpooled(msgspec.Struct, frozen=True, tag="ask_spooled"):
    """Requests a page of the usage events that wait on the engine's disk."""

    position: int = 0
    """The `position` of the last answer; 0: from the first."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A client's first message; answered by EngineInfo once the model is loaded."""

    client: str


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """The client disconnects: its requests are aborted, nothing more is sent to it."""


class DrainSeen(msgspec.Struct, frozen=True, tag="drain_seen"):
    """The client has heard that the engine drains, and submits nothing more to it. An engine that has no
    requests left waits for this, so that none which is on its way finds it gone.

    For engines whose EngineInfo says `expects_drain_seen`: others do not know the message.
    """


ClientMessage = (
    Submit | Abort | Prefetch | ServedElsewhere | Hello | Goodbye | Inspect | AskSpooled | DrainSeen
)


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms, from the distribution before bias, penalties, temperature and truncation."""

    token_id: int
    logprob: float
    top: list[TopLogprob] = []


class TokenChunk(msgspec.Struct, frozen=True, array_like=True):
    """Tokens that one choice gained since its last chunk; its last chunk has the finish reason."""

    request_id: str
    index: int
    """Which of the request's n choices."""
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    """Parallel to `token_ids`, if requested."""
    finish_reason: FinishReason | None = None
    stop: int | str | None = None
    """The stop string or token that matched. A matched string is still in the tokens: the client
    removes it."""

    def goes_on_from(self, last: TokenChunk) -> bool:
        """Returns whether the chunk can be merged into `last` by appending its tokens."""
        return (
            last.index == self.index
            and self.finish_reason is None
            and last.finish_reason is None
            and self.logprobs is None
            and last.logprobs is None
        )


class PromptScores(msgspec.Struct, frozen=True, array_like=True):
    """Scores of prompt tokens from one step. Each token is scored once, in order, before the first chunk."""

    request_id: str
    start: int
    """Position of the first token in the prompt."""
    logprobs: list[TokenLogprob]


class Usage(msgspec.Struct, frozen=True):
    """What a request is billed for. The prompt counts once, however many choices."""

    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache at first admission."""
    completion_tokens: int
    reasoning_tokens: int = 0
    """Those of `completion_tokens` that are thinking, its markers included."""


class Finished(msgspec.Struct, frozen=True):
    """Every choice has ended and the usage is in the journal. The last message on a request."""

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
    """The request never ran and is not billed. The last message on a request."""

    request_id: str
    code: RejectCode
    message: str
    retry_after: float | None = None
    """Seconds after which a retry may succeed, as far as the engine can tell."""


class Begun(msgspec.Struct, frozen=True, array_like=True):
    """Sent with the first tokens of a request whose chunks are buffered."""

    request_id: str
    seconds: float
    """Since the first of them was drawn."""


class Outputs(msgspec.Struct, frozen=True, tag="outputs"):
    """Everything that one step has for one client, in one message."""

    chunks: list[TokenChunk] = []
    finished: list[Finished] = []
    rejected: list[Rejected] = []
    scores: list[PromptScores] = []
    begun: list[Begun] = []


class EngineInfo(msgspec.Struct, frozen=True, tag="info"):
    """Identifies the engine and its base model, in answer to Hello."""

    engine_id: str
    """Stable across restarts of one deployment slot, such as "engine-0"."""
    incarnation: str
    """Changes at every start: a client that sees a new one knows that its open requests are lost."""
    base: str
    """Name under which the base model is served."""
    base_digest: str
    """Hex digest of the base's config and weights: adapters are packed against it."""
    quantization: str
    device: str
    context_length: int
    """Prompt plus completion, tokens."""
    max_prompt_tokens: int
    vocab_size: int
    build: str
    start_seconds: float = 0.0
    """From the start of the process until it served; 0: not known."""
    sliding_window: int | None = None
    """Set where the base's sliding window bounds the context: attention beyond it is not computed."""
    tensor_parallel: int = 1
    """Processes that share each step."""
    role: Literal["", "prefill"] = ""
    """prefill: it computes prompts for other engines, and clients send it no requests."""
    expects_drain_seen: bool = False
    """Whether it takes DrainSeen."""


class IssuedEvents(msgspec.Struct, frozen=True):
    """How many usage events an engine's incarnation has numbered: the journal must have all of them."""

    engine_id: str
    incarnation: str
    events: int
    tokens: int
    """Completion tokens in them."""
    at: float
    """Unix seconds: when the incarnation ended, or wrote its last event."""


class SetAside(msgspec.Struct, frozen=True):
    """A damaged file of the journal that the engine keeps for an operator."""

    name: str
    size: int
    """Bytes."""


class Spooled(msgspec.Struct, frozen=True, tag="spooled"):
    """Usage events on the engine's disk that the journal is not known to have."""

    events: list[bytes] = []
    """In order, each as the journal stores it: a MessagePack UsageEvent."""
    position: int | None = None
    """Position of the next page; None: this is the last one."""
    issued: list[IssuedEvents] = []
    """On the first page: of this incarnation and of those before it."""
    set_aside: list[SetAside] = []
    """On the first page."""


EngineMessage = Outputs | EngineInfo | EngineStats | EngineView | Spooled


class EventNumber(msgspec.Struct, frozen=True, array_like=True):
    """An event's number within its engine's incarnation: gaps show what is missing."""

    sequence: int
    """From 1 on, without gaps. An event that is delivered twice keeps its number."""
    tokens_before: int
    """Completion tokens in all events with smaller numbers, each counted in the first event that has it."""
    tokens_after: int
    """The same, including this event."""


class UsageEvent(msgspec.Struct, frozen=True):
    """One entry of the usage journal: counts so far. A request's largest counts win, so replay is
    harmless."""

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
    """First admission to a batch; minus `submitted_at` it is the time in the queue."""
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    """Set on the last event: the reasons of the choices, joined by "," in choice order when they differ."""
    preemptions: int = 0
    number: EventNumber | None = None
    """None: from an engine that does not number events, or whose numbers were lost."""


JOURNAL_STREAM = "rootstock:usage"
"""Redis stream of MessagePack UsageEvents, field b"e"."""
ISSUED_STREAM = "rootstock:usage:issued"
"""Redis stream of MessagePack IssuedEvents of incarnations that have ended, field b"e"."""
