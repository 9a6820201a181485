"""A request's life inside the engine: one group per Submit, one request per choice.

Owns the lengths, states and counts. Refuses to decide anything: the scheduler moves requests along. The
algebra of a request: cached_len <= computed_len <= total_len <= limit, where `total_len - computed_len`
tokens wait to be computed, be they prompt, generated tokens lost to a preemption, or the one token drawn
last. Lengths are as of the last step planned: the tokens past `len(token_ids)` are pending, drawn by steps in
flight, so that it is known that they exist and not yet which they are.
"""

from __future__ import annotations

from enum import Enum

from engine.batch import NO_SLOT, NewRow, Scheduled, Scored
from engine.kv_cache import BlockTable
from engine.protocol import FinishReason, PriorityClass, Submit, Usage, UsageEvent
from engine.stops import StopMatcher

NO_ROW = -1

CLASS_ORDER = {priority: order for order, priority in enumerate(PriorityClass)}

_SEED_MASK = 2**63 - 1


class RequestState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """Holds nothing any more: the last token that its limit allows is in flight."""
    FINISHED = "finished"


class TenantShare:
    """What one tenant has had of one class of service. Shared by its requests; the queue's to read."""

    __slots__ = ("num_running", "served")

    def __init__(self) -> None:
        self.served = 0.0
        """Tokens, weighted by their cost."""
        self.num_running = 0
        """Its requests in the batch."""


class RequestGroup:
    """One Submit: what is counted and journaled for all its choices together."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "choices",
        "completion_tokens",
        "finished_at",
        "first_token_at",
        "limit",
        "num_unfinished",
        "preemptions",
        "reasons",
        "scheduled_at",
        "seed",
        "submit",
    )

    def __init__(self, submit: Submit, arrival: int, limit: int, seed: int) -> None:
        """`arrival` counts groups.

        `limit` is the total length at which a choice ends; `seed` is choice 0's.
        """
        assert len(submit.prompt_ids) < limit, "every choice draws a token"
        self.submit = submit
        self.arrival = arrival
        self.limit = limit
        self.seed = seed
        self.choices: list[Request] = []
        """Choice 0 first, alone until its prompt is computed: the others then find it in the prefix cache."""
        self.num_unfinished = submit.n
        self.reasons: list[FinishReason | None] = [None] * submit.n
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def scores_only(self) -> bool:
        """Nothing is generated: it ends with its prompt."""
        return self.submit.sampling.max_tokens == 0

    @property
    def usage(self) -> Usage:
        """Nothing at all is owed for a request that ends while it waits."""
        prompt_tokens = 0 if self.scheduled_at is None else len(self.submit.prompt_ids)
        return Usage(prompt_tokens, self.cached_tokens, self.completion_tokens)

    @property
    def finish_reason(self) -> str | None:
        """The choices' reasons: one word when they agree. None while any choice goes on."""
        reasons = [reason for reason in self.reasons if reason is not None]
        if len(reasons) < len(self.reasons):
            return None
        return reasons[0] if len(set(reasons)) == 1 else ",".join(reasons)

    def event(self, engine_id: str, incarnation: str, now: float) -> UsageEvent:
        """The journal's line on this request as it stands."""
        submit = self.submit
        return UsageEvent(
            request_id=submit.request_id,
            engine_id=engine_id,
            incarnation=incarnation,
            tenant=submit.tenant,
            submitted_at=submit.submitted_at,
            recorded_at=now,
            priority=submit.priority,
            usage=self.usage,
            adapter_digest=None if submit.adapter is None else submit.adapter.digest,
            labels=submit.labels,
            n=submit.n,
            scheduled_at=self.scheduled_at,
            first_token_at=self.first_token_at,
            finished_at=self.finished_at,
            finish_reason=self.finish_reason,
            preemptions=self.preemptions,
        )


class Request:
    """One choice: the one mutable life the scheduler works with."""

    __slots__ = (
        "adapter",
        "cached_len",
        "computed_len",
        "decode_share",
        "entered_at",
        "group",
        "index",
        "limit",
        "matcher",
        "min_len",
        "priority",
        "protected_until",
        "rank",
        "request_id",
        "row",
        "scored_len",
        "slot",
        "state",
        "stop_ids",
        "table",
        "tenant",
        "tenant_share",
        "times_preempted",
        "token_ids",
        "total_len",
        "waiting_since",
    )

    def __init__(
        self,
        group: RequestGroup,
        index: int,
        table: BlockTable,
        stop_ids: dict[int, int | None],
        matcher: StopMatcher | None,
    ) -> None:
        submit = group.submit
        self.group = group
        self.index = index
        self.request_id = submit.request_id
        self.tenant = submit.tenant
        self.adapter = submit.adapter
        self.priority = submit.priority
        self.rank = (CLASS_ORDER[submit.priority], group.arrival, index)
        """Total order: the least is served first and preempted last."""
        self.state = RequestState.WAITING
        self.token_ids = list(submit.prompt_ids)
        """Prompt and everything generated so far, as far as is known."""
        self.total_len = len(self.token_ids)
        """With the pending tokens."""
        self.cached_len = 0
        """Tokens of this stay in the batch whose keys and values came from the prefix cache."""
        self.computed_len = 0
        """Tokens whose keys and values a launched step has computed, or will have before any later step."""
        self.scored_len = len(self.token_ids)
        """Prompt tokens that need no scoring, or whose scores a launched step computes; it outlives stays."""
        if submit.sampling.prompt_logprobs is not None and index == 0:
            self.scored_len = submit.sampling.score_from
        self.limit = group.limit
        self.min_len = len(submit.prompt_ids) + submit.sampling.min_tokens
        """Total length below which nothing stops it."""
        self.table = table
        self.stop_ids = stop_ids
        """Tokens that end it, with what is reported as the stop: None for an end of sequence."""
        self.matcher = matcher
        self.row = NO_ROW
        self.slot = NO_SLOT
        self.decode_share = Scheduled(NO_ROW, 1, True)
        """Its share of a step in which it decodes: the same every time, so made once per stay."""
        self.tenant_share: TenantShare | None = None
        """Where its tenant's service is counted; set by the queue."""
        self.waiting_since = 0.0
        self.entered_at = 0.0
        """When its stay in the batch began; like the time before, by the scheduler's monotonic clock."""
        self.times_preempted = 0
        self.protected_until = 0
        """Total length below which it is not preempted for somebody else's sake."""

    @property
    def is_waiting(self) -> bool:
        return self.state is RequestState.WAITING

    @property
    def num_pending(self) -> int:
        return self.total_len - len(self.token_ids)

    @property
    def num_reusable(self) -> int:
        """Tokens whose keys and values may come from the prefix cache: those before any that are computed.

        Computed is the last, for what follows it; and the one before the first that is still to be scored.
        """
        all_scored = self.scored_len >= len(self.group.submit.prompt_ids)
        return (self.total_len if all_scored else self.scored_len) - 1

    def take_scored(self, begin: int) -> Scored | None:
        """Prompt tokens that a step scores which computes the tokens from `begin` to `computed_len`."""
        prompt_len = len(self.group.submit.prompt_ids)
        first, end = self.scored_len, min(self.computed_len + 1, prompt_len)
        if first >= end:
            return None
        assert begin < first, "the token before the first that is scored was computed before"
        self.scored_len = end
        return Scored(self.row, first, end - first, self.group.submit.sampling.prompt_logprobs or 0)

    @property
    def seed(self) -> int:
        return (self.group.seed + self.index) & _SEED_MASK

    def enter(self, row: int, slot: int, cached_len: int) -> NewRow:
        """Begin a stay in the batch: its table is open, its first `cached_len` tokens need no computing."""
        assert not self.num_pending, "what was drawn is known before it returns"
        self.state = RequestState.RUNNING
        self.row = row
        self.slot = slot
        self.cached_len = self.computed_len = cached_len
        self.decode_share = Scheduled(row, 1, True)
        self.check()
        return NewRow(
            row=row,
            request_id=self.request_id,
            token_ids=self.token_ids.copy(),
            prompt_len=len(self.group.submit.prompt_ids),
            computed_len=cached_len,
            block_ids=self.table.block_ids.copy(),
            sampling=self.group.submit.sampling,
            seed=self.seed,
            slot=slot,
        )

    def leave(self, state: RequestState) -> None:
        """End a stay in the batch, having given back table, row and slot."""
        self.state = state
        self.row = NO_ROW
        self.slot = NO_SLOT
        self.cached_len = self.computed_len = 0

    def check(self) -> None:
        """Assert the algebra of the lengths."""
        assert 0 <= self.cached_len <= self.computed_len <= self.total_len <= self.limit
        assert self.num_pending >= 0
        assert self.state is RequestState.RUNNING or self.computed_len == 0
        if self.state is RequestState.RUNNING:
            assert self.table.named_len <= self.computed_len < self.total_len, "nothing left to compute"
            assert self.table.named_len <= len(self.token_ids), "a block of unknown contents has a name"
            assert self.computed_len <= self.table.capacity
