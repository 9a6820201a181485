"""Holds a request's state inside the engine: one group per Submit, one request per choice.

The scheduler decides how requests advance; lengths, states and counts are kept here. The lengths of a
request: cached_len <= computed_len <= total_len <= limit, where `total_len - computed_len` tokens are to be
computed: prompt tokens, generated tokens lost to a preemption, or the one token drawn last. Lengths are as of
the last step planned: tokens past `len(token_ids)` are pending, drawn by steps in flight, so their number is
known before their values.
"""

from __future__ import annotations

from enum import Enum

from engine.batch import NO_SLOT, NewRow, Scheduled, Scored
from engine.grammar.constraint import CompiledGrammar, RowConstraint
from engine.kv_cache import BlockTable
from engine.protocol import FinishReason, PriorityClass, Submit, Usage, UsageEvent
from engine.reasoning.thinking import Thinking
from engine.stops import StopMatcher

NO_ROW = -1

CLASS_ORDER = {priority: order for order, priority in enumerate(PriorityClass)}

_SEED_MASK = 2**63 - 1


class RequestState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"
    """Holds no resources any more: the last token that its limit allows is in flight."""
    FINISHED = "finished"


class TenantShare:
    """What one tenant has received of one service class. Shared by its requests, read by the queue."""

    __slots__ = ("cost_factor", "num_running", "served")

    def __init__(self) -> None:
        self.served = 0.0
        """Tokens, weighted by their cost and its factor."""
        self.cost_factor = 1.0
        """More than 1 where other engines serve the tenant, too."""
        self.num_running = 0
        """Requests in the batch."""


class RequestGroup:
    """One Submit: what is counted and journaled for all of its choices together."""

    __slots__ = (
        "arrival",
        "cached_tokens",
        "choices",
        "completion_tokens",
        "finished_at",
        "first_token_at",
        "grammar",
        "limit",
        "num_unfinished",
        "preemptions",
        "reasoning_tokens",
        "reasons",
        "scheduled_at",
        "seed",
        "submit",
    )

    def __init__(
        self, submit: Submit, arrival: int, limit: int, seed: int, grammar: CompiledGrammar | None = None
    ) -> None:
        """`arrival` is the group's number in order of arrival; `limit` is the total length at which a choice
        ends; `seed` is that of choice 0; `grammar` is the submit's, compiled.
        """
        assert len(submit.prompt_ids) < limit, "every choice draws a token"
        self.submit = submit
        self.arrival = arrival
        self.limit = limit
        self.seed = seed
        self.grammar = grammar
        self.choices: list[Request] = []
        """Choice 0 first, alone until its prompt is computed: the others then find it in the prefix cache."""
        self.num_unfinished = submit.n
        self.reasons: list[FinishReason | None] = [None] * submit.n
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def scores_only(self) -> bool:
        """Whether nothing is generated: the request ends with its prompt."""
        return self.submit.sampling.max_tokens == 0

    @property
    def usage(self) -> Usage:
        """Tokens to bill. A request that ends before it was scheduled owes nothing."""
        prompt_tokens = 0 if self.scheduled_at is None else len(self.submit.prompt_ids)
        return Usage(prompt_tokens, self.cached_tokens, self.completion_tokens, self.reasoning_tokens)

    @property
    def finish_reason(self) -> str | None:
        """The reason all choices share, or their reasons joined by ","; None while any choice is running."""
        reasons = [reason for reason in self.reasons if reason is not None]
        if len(reasons) < len(self.reasons):
            return None
        return reasons[0] if len(set(reasons)) == 1 else ",".join(reasons)

    def event(self, engine_id: str, incarnation: str, now: float) -> UsageEvent:
        """Returns the usage event of the request as it stands."""
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
    """One choice of a group, as the scheduler moves it along."""

    __slots__ = (
        "adapter",
        "cached_len",
        "computed_len",
        "constraint",
        "decode_share",
        "entered_at",
        "group",
        "index",
        "limit",
        "matcher",
        "may_guess",
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
        "thinking",
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
        thinking: Thinking | None = None,
        constraint: RowConstraint | None = None,
    ) -> None:
        submit = group.submit
        self.group = group
        self.index = index
        self.request_id = submit.request_id
        self.tenant = submit.tenant
        self.adapter = submit.adapter
        self.priority = submit.priority
        self.rank = (CLASS_ORDER[submit.priority], group.arrival, index)
        """Total order: the lowest is served first and preempted last."""
        self.state = RequestState.WAITING
        self.token_ids = list(submit.prompt_ids)
        """Prompt and generated tokens, as far as their values are known."""
        self.total_len = len(self.token_ids)
        """Length including pending tokens."""
        self.cached_len = 0
        """Tokens of this stay in the batch whose keys and values came from the prefix cache."""
        self.computed_len = 0
        """Tokens whose keys and values a launched step has computed, or will have before any later step."""
        self.scored_len = len(self.token_ids)
        """Prompt tokens that need no scoring, or whose scores a launched step computes. Kept across
        preemptions."""
        if submit.sampling.prompt_logprobs is not None and index == 0:
            self.scored_len = submit.sampling.score_from
        self.limit = group.limit
        self.min_len = len(submit.prompt_ids) + submit.sampling.min_tokens
        """Total length below which no stop ends it."""
        self.table = table
        self.stop_ids = stop_ids
        """Tokens that end it, each with the stop that is reported: None for an end of sequence."""
        self.matcher = matcher
        self.thinking = thinking
        self.constraint = constraint
        self.row = NO_ROW
        self.slot = NO_SLOT
        self.decode_share = Scheduled(NO_ROW, 1, True)
        """Its share of a step in which it decodes: always the same, so it is made once per stay."""
        self.tenant_share: TenantShare | None = None
        """Counts its tenant's service; set by the queue."""
        self.waiting_since = 0.0
        self.entered_at = 0.0
        """When its stay in the batch began. Like `waiting_since`, on the scheduler's monotonic clock."""
        self.times_preempted = 0
        self.may_guess = True
        """Whether a draft adapter may guess for it."""
        self.protected_until = 0
        """Total length below which it is not preempted in favour of another request."""

    @property
    def is_waiting(self) -> bool:
        return self.state is RequestState.WAITING

    @property
    def num_pending(self) -> int:
        return self.total_len - len(self.token_ids)

    @property
    def num_reusable(self) -> int:
        """Tokens whose keys and values may come from the prefix cache.

        The last token must be computed, to draw the next one, and so must the token before the first one to
        score.
        """
        all_scored = self.scored_len >= len(self.group.submit.prompt_ids)
        return (self.total_len if all_scored else self.scored_len) - 1

    def take_scored(self, begin: int) -> Scored | None:
        """Returns the prompt tokens scored by a step that computes tokens `begin` to
        `computed_len`, if any."""
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
        """Begins a stay in the batch: the block table is open, the first `cached_len` tokens are in the
        cache.
        """
        assert not self.num_pending, "pending tokens must be known before the request returns"
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
            constraint=self.constraint,
        )

    def plan_drafts(self, num_drafts: int, num_placeholders: int) -> Scheduled:
        """Returns its share of a step that computes its last token, drafts and placeholders. Until the step
        is committed, its lengths are those without them: at least one token is drawn.
        """
        num_more = num_drafts + num_placeholders
        assert not self.num_pending, "the drafts follow a token that is not known"
        assert self.total_len + num_more < self.limit
        assert self.computed_len + 1 + num_more <= self.table.capacity
        self.computed_len = self.total_len
        self.total_len += 1
        return Scheduled(self.row, 1 + num_more, True)

    def accept_drafts(self, num_accepted: int) -> None:
        """Counts the drafts that were drawn too; the blocks of the others, and of placeholders, are given
        back. -1: no draw of the step counts.
        """
        self.computed_len += num_accepted
        self.total_len += num_accepted
        self.table.trim(self.computed_len)

    def leave(self, state: RequestState) -> None:
        """Ends a stay in the batch, after table, row and slot were given back."""
        self.state = state
        self.row = NO_ROW
        self.slot = NO_SLOT
        self.cached_len = self.computed_len = 0

    def check(self) -> None:
        """Asserts the invariants of the lengths."""
        assert 0 <= self.cached_len <= self.computed_len <= self.total_len <= self.limit
        assert self.num_pending >= 0
        assert self.state is RequestState.RUNNING or self.computed_len == 0
        if self.state is RequestState.RUNNING:
            assert self.table.registered_len <= self.computed_len < self.total_len, "nothing left to compute"
            assert self.table.registered_len <= len(self.token_ids), (
                "a block of unknown contents is registered"
            )
            assert self.computed_len <= self.table.capacity
