"""Defines the engine's heartbeat (gauges and counters) and the view that operators request.

Both are part of the wire format: `engine.protocol` says how they may change.
"""

from __future__ import annotations

import msgspec

KEY_BYTES = 8
MAX_RESIDENT = 1024
"""Adapters that a heartbeat names: it is sent to every client twice a second."""


MAX_SERVED = 256
"""Tenants whose service a heartbeat reports."""


def adapter_key(digest: str) -> bytes:
    """Returns the bytes by which heartbeats name an adapter: the first of its digest."""
    return bytes.fromhex(digest[: 2 * KEY_BYTES])


class TenantService(msgspec.Struct, frozen=True, array_like=True):
    """How fast a tenant's requests of one class are served."""

    tenant: str
    priority: str
    rate: float
    """Tokens per second, weighted by their cost (`engine.scheduling.fairness`)."""


class EngineStats(msgspec.Struct, frozen=True, tag="stats"):
    """Gauges and monotonic counters, sent to every client twice a second: also the heartbeat."""

    engine_id: str
    incarnation: str
    running: int = 0
    waiting: dict[str, int] = {}
    """By priority class."""
    blocks_total: int = 0
    blocks_used: int = 0
    """Held by running requests; cached but unreferenced blocks are free."""
    slots_total: int = 0
    slots_resident: int = 0
    slots_loading: int = 0
    adapter_loads: int = 0
    adapter_evictions: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    """From launch to commit, summed over steps; time that two steps share counts once."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    aborted: int = 0
    rejected: int = 0
    errors: int = 0
    journal_spooled: int = 0
    """Usage events waiting on local disk because the journal's Redis is unreachable."""
    admitted: dict[str, int] = {}
    """By priority class: requests that entered a batch for the first time."""
    queue_seconds: dict[str, float] = {}
    """By priority class: seconds those requests waited since `Submit.submitted_at`, summed."""
    device: str = ""
    quantization: str = ""
    kv_dtype: str = ""
    adapter_bytes_total: int = 0
    """Device memory reserved for adapters; 0 where there is no such bound."""
    adapter_bytes_used: int = 0
    adapter_load_seconds: float = 0.0
    """From the start of a load to its end, summed over loads."""
    graph_replays: int = 0
    """Steps that replayed a captured graph."""
    eager_steps: int = 0
    """Steps launched op by op."""
    step_gap_seconds: float = 0.0
    """Seconds that the device was idle between steps although rows were running, as far as the
    host can see."""
    rows_total: int = 0
    running_by_class: dict[str, int] = {}
    """`running`, by priority class."""
    predicted_wait: dict[str, float] = {}
    """By priority class: seconds that a short request of a tenant without others would wait now."""
    preempted: dict[str, int] = {}
    """`preemptions`, by the priority class of the preempted request."""
    shed: dict[str, int] = {}
    """By priority class: requests rejected as overloaded."""
    prefill_tokens: int = 0
    """Known tokens that steps computed: of prompts, and again after preemptions."""
    decode_tokens: int = 0
    """Tokens that steps computed one to a row, to draw the next."""
    draining: bool = False
    """New requests are rejected; the engine ends once its open requests have ended."""
    step_bytes: int = 0
    """Bytes of device memory that steps had to read at least, summed; 0 where there is no model."""
    memory_bandwidth: float = 0.0
    """Bytes per second, read and written, of a copy within the device's memory; 0: not known."""
    disk_free_bytes: int = 0
    """Of the file system with the in-flight table and the usage spool."""
    disk_total_bytes: int = 0
    """Size of that file system; 0: not known."""
    started_at: float = 0.0
    """Unix seconds, the engine's clock; 0: not known."""
    journal_set_aside: int = 0
    """Damaged files of the journal that wait for an operator."""
    prompt_rate: float = 0.0
    """Prompt tokens computed per second, as measured lately; 0: not known."""
    resident: bytes | None = None
    """The `adapter_key` of each adapter that is loaded or loading, one after the other; of at most
    MAX_RESIDENT, those in use first. None: from an engine that does not report them."""
    served: list[TenantService] | None = None
    """The tenants served during the last second, at most MAX_SERVED, those served most first. None: from an
    engine that does not report them, and does not understand `ServedElsewhere`."""
    prefill_sources: int = 0
    """Engines that would compute prompts for this one now."""
    prefill_refusals: tuple[str, ...] = ()
    """Why engines that should compute prompts for this one do not."""
    prompts_fetching: int = 0
    """Requests whose prompts are being computed on another engine."""
    prompts_fetched: int = 0
    """Prompts whose keys and values came from another engine as a whole."""
    fetched_tokens: int = 0
    """Prompt tokens whose keys and values came from another engine."""
    fetch_fallbacks: dict[str, int] = {}
    """By cause: prompts that were to be computed on another engine, and were computed here, or their rest."""
    prompts_exported: int = 0
    """Prompts computed for other engines."""
    exported_tokens: int = 0
    """Prompt tokens whose keys and values went to other engines."""
    drafted_tokens: int = 0
    """Guessed tokens that steps verified."""
    accepted_tokens: int = 0
    """Of those, tokens that were drawn too; `completion_tokens` has them."""
    adapters_fetching: int = 0
    """Packed adapters on their way from the object store; 0 where they lie in a shared folder."""
    adapter_fetches: int = 0
    """Packed adapters that were fetched from the object store."""
    adapter_fetch_bytes: int = 0
    adapter_fetch_seconds: float = 0.0
    """From the start of a fetch to its end, summed over those that succeeded."""
    adapter_fetch_failures: dict[str, int] = {}
    """By cause: packed adapters that could not be fetched."""
    adapters_verified: int = 0
    """Loads of adapters whose signature was verified."""
    adapters_unsigned: int = 0
    """Loads of adapters without a signature."""
    adapter_refusals: dict[str, int] = {}
    """By cause: adapters that were not loaded because they are not what was signed, or not signed."""
    drafted_by_kind: dict[str, int] = {}
    """`drafted_tokens` by where they came from: "grammar" (forced), "text" (followed the same tokens before)
    or "adapter" (guessed by a draft adapter)."""
    accepted_by_kind: dict[str, int] = {}
    placeholder_tokens: int = 0
    """Tokens computed for draft adapters to guess in their places."""
    draft_steps: int = 0
    """Steps of single rows that verified guessed tokens; `accepted_tokens` were gained in them."""


class StepSecond(msgspec.Struct, frozen=True, array_like=True):
    """Statistics of one second's steps. Lists are by priority class, in the order of `PriorityClass`."""

    at: int
    """Unix seconds."""
    steps: int
    step_seconds: float
    """Summed, as in EngineStats."""
    p50: float
    """Seconds per step, to within 3 %; so is `p99`."""
    p99: float
    prefill_tokens: list[int]
    decode_rows: list[int]
    """Summed over the steps."""
    completion_tokens: int
    prompt_tokens: int
    """Of admitted requests, like `cached_tokens`."""
    cached_tokens: int
    preemptions: int
    shed: int
    adapter_loads: int
    adapter_evictions: int
    blocks_used: int
    """At the end of the second, like `waiting`."""
    waiting: list[int]


class SlotView(msgspec.Struct, frozen=True, array_like=True):
    """An adapter in a slot."""

    slot: int
    digest: str
    rank: int
    num_bytes: int
    """Of the device's memory; 0: not known."""
    loading: bool
    pinned: bool
    closing: bool
    """No new request is admitted on it: another adapter will take its slot."""
    rows: int
    """Requests in the batch that use it."""
    waiting: int
    drafted_tokens: int = 0
    """Of its requests, since the engine's start, like `accepted_tokens`."""
    accepted_tokens: int = 0
    guessed_tokens: int = 0
    """Of `drafted_tokens`, those that a draft adapter guessed, and of these the accepted ones."""
    guessed_accepted: int = 0
    drafts_for_others: bool = False
    """It is a draft adapter: the tokens counted are those it guessed, of requests on any adapter."""


class DraftCounts(msgspec.Struct, frozen=True, array_like=True):
    """What became of drafts of one tenant's requests on one adapter, since the engine's start."""

    tenant: str
    digest: str
    drafted_tokens: int
    accepted_tokens: int
    steps: int = 0
    """Of single requests, that verified drafts; 0: from an engine that does not count them."""
    guessed_tokens: int = 0
    """Of `drafted_tokens`, those that a draft adapter guessed, and of these the accepted ones."""
    guessed_accepted: int = 0


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The requests of one tenant on one adapter in one class."""

    tenant: str
    digest: str | None
    priority: str
    rows: int = 0
    """In the batch."""
    prefill_rows: int = 0
    """Rows among them whose prompt is not computed yet."""
    tokens: int = 0
    """Prompt and generated tokens of the rows."""
    waiting: int = 0
    oldest_wait: float = 0.0
    """Seconds that the longest-waiting of them has waited."""


class RefusedAdapter(msgspec.Struct, frozen=True, array_like=True):
    """An adapter that the engine does not load because it is not what was signed."""

    digest: str
    reason: str


class EngineView(msgspec.Struct, frozen=True, tag="view"):
    """State of the engine for operators, in answer to Inspect. Bounded in size, without prompts, answers and
    labels.
    """

    stats: EngineStats
    taken_at: float
    """Unix seconds, the engine's clock; so is `started_at`."""
    started_at: float
    max_batch_tokens: int
    block_size: int
    blocks_cached: int
    """Free blocks whose contents can still be found."""
    prefill_tokens: list[int]
    """Of the last planned step, like `decode_rows`; by class, in the order of `PriorityClass`."""
    decode_rows: list[int]
    oldest_wait: list[float]
    """By class: seconds that the longest-waiting request has waited."""
    step_p50: float
    """Seconds per step, over `seconds`, to within 3 %; so is `step_p99`."""
    step_p99: float
    seconds: list[StepSecond]
    """The last five minutes, in order, without seconds in which no step ended."""
    slots: list[SlotView]
    """Slots that are not empty, most used first."""
    shares: list[Share]
    """The largest shares of the batch and the queue, most rows first."""
    num_shares: int
    """How many shares there are, including those left out."""
    memory: dict[str, int]
    """Bytes of the device's memory by purpose: "weights", "kv", "adapters", "scratch", "rest"."""
    drafts: list[DraftCounts] = []
    """Of the tenants and adapters that had drafts last."""
    refused_adapters: list[RefusedAdapter] = []
    """Those refused last, and not loaded since."""
