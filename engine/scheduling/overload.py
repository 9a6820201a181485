"""Predicts how long a request would wait for its first token, and rejects requests that would wait too long.

Requests are shed in this order: FLEX first, then DEFAULT; from a full queue, the latest request of the tenant
with the most in it. Only requests that never ran are shed, so no client has received tokens of one.

A wait is predicted from what has to happen first. Rows: requests ahead, less the rows that are free or would
be freed, divided by the measured rate at which rows are released; blocks bound rows, so where those are short
no row counts as free. Tokens: the prompts ahead, divided by the measured rate at which prompts are computed.
A class shares either rate with the other waiting classes, by weight. Without recent measurements nothing is
predicted, and only the length of the queue counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.protocol import PriorityClass, Rejected, Submit
from engine.request import CLASS_ORDER, Request
from engine.scheduling.fairness import CLASS_WEIGHTS, DEFAULT, FLEX, PRIORITY, FairQueue
from engine.scheduling.running import RunningRequests
from engine.scheduling.step_bound import StepBound
from engine.scheduling.step_timing import StepTiming
from engine.scheduling.validation import EngineLimits

QUEUE_SHARES = {PRIORITY: 1.0, DEFAULT: 0.875, FLEX: 0.5}
"""Share of the queue that may be full for a class to be accepted: lower classes are shed first."""
PRESSURE = 0.25
"""Share of its target that a class's predicted wait may reach before lower classes are shed."""
MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _WorkAhead:
    """Work to be done before a request."""

    rows: float
    """Requests of its own class, less rows that are free for it."""
    tokens: float
    """Of their prompts, including its own."""
    other_rows: int
    other_tokens: int
    """The same of other classes, in case it has to wait for all of them."""


class LoadShedder:
    """Predicts waits and decides which requests to reject."""

    def __init__(
        self,
        limits: EngineLimits,
        queue: FairQueue,
        running: RunningRequests,
        timing: StepTiming,
        bound: StepBound,
    ) -> None:
        self.is_short_of_blocks = False
        """Whether the next request in line lacked blocks at the last step."""
        self._limits = limits
        self._queue = queue
        self._running = running
        self._timing = timing
        self._bound = bound

    # Prediction ------------------------------------------------------------------------------------------

    def predicted_wait(
        self, priority: PriorityClass, tenant: str = "", num_tokens: int = 1, num_choices: int = 1
    ) -> float:
        """Returns the seconds until a request that arrived now would be computed, as far as can
        be predicted."""
        ahead = self._work_ahead(priority, tenant, num_tokens, num_choices)
        share = self._throughput_share(priority)
        wait = 0.0
        row_seconds, prompt_rate = self._timing.row_seconds, self._timing.prompt_rate
        if row_seconds is not None and ahead.rows > 0:
            # As many requests run as rows or blocks allow; otherwise some row would be free.
            release_rate = max(1, len(self._running.requests)) / row_seconds if row_seconds else float("inf")
            wait = min(ahead.rows / share, ahead.rows + ahead.other_rows) / release_rate
        if prompt_rate is not None and ahead.tokens > self._limits.max_batch_tokens:
            tokens = min(ahead.tokens / share, ahead.tokens + ahead.other_tokens)
            wait = max(wait, tokens / prompt_rate)
        if priority is FLEX:
            wait = max(wait, self._queue.oldest_flex_wait(self._timing.now))
        return wait

    def _work_ahead(
        self, priority: PriorityClass, tenant: str, num_tokens: int, num_choices: int
    ) -> _WorkAhead:
        queue = self._queue
        num_waiting = queue.num_waiting(priority)
        own, own_running = queue.tenant_waits(priority, tenant)
        # Tenants take turns: each other tenant goes first, once more for each of its own ahead of it.
        num_tenants = queue.num_tenants_waiting(priority)
        turns = own * num_tenants + num_tenants - (own > 0)
        num_ahead = min(num_waiting, queue.num_returning(priority) + turns)
        all_tokens = queue.num_tokens_waiting(priority)
        tokens = num_tokens + (all_tokens * num_ahead / num_waiting if num_waiting else 0)
        others = [other for other in CLASS_WEIGHTS if other is not priority and other is not FLEX]
        other_rows = sum(queue.num_waiting(other) for other in others)
        other_tokens = sum(queue.num_tokens_waiting(other) for other in others)
        rows = num_ahead + num_choices - self._available_rows(priority, own + own_running)
        if priority is FLEX:
            return _WorkAhead(rows + other_rows, tokens + other_tokens, 0, 0)
        return _WorkAhead(rows, tokens, other_rows, other_tokens)

    def _available_rows(self, priority: PriorityClass, num_own: int) -> float:
        """Returns the rows free for a request of a tenant with `num_own` requests in its class, or that would
        be freed for it: those of lower classes, and what the tenant lacks of its share of its own class's.
        """
        running, order = self._running, CLASS_ORDER[priority]
        num_rows = running.num_rows
        num_open_rows = (
            running.max_rows - sum(num_rows) if priority is PRIORITY else self._bound.num_open_rows
        )
        free = 0 if self.is_short_of_blocks else num_open_rows
        if priority is FLEX:
            return free
        first_lower = order + 1 + (priority is PRIORITY and self._queue.priority_is_ahead)
        lower = sum(num_rows[first_lower:])
        share = num_rows[order] / (running.num_tenants[order] + (not num_own)) if num_rows[order] else 0.0
        return free + lower + max(0.0, share - num_own)

    def _throughput_share(self, priority: PriorityClass) -> float:
        """Returns the class's share of the engine's throughput while the classes waiting now keep waiting."""
        if priority is FLEX:
            return 1.0  # it waits for all of the others
        rivals = [
            other for other in (PRIORITY, DEFAULT) if other is priority or self._queue.num_waiting(other)
        ]
        return CLASS_WEIGHTS[priority] / sum(CLASS_WEIGHTS[rival] for rival in rivals)

    # Shedding --------------------------------------------------------------------------------------------

    def rejection(self, submit: Submit) -> Rejected | None:
        """Returns a rejection if the request, or a higher class because of it, would wait too long; else
        None.
        """
        priority = submit.priority
        wait = self.predicted_wait(priority, submit.tenant, len(submit.prompt_ids), submit.n)
        target = self._limits.ttft_targets.get(priority) if submit.ttft_target is None else submit.ttft_target
        if target is not None and wait > target:
            message = f"estimated wait of {wait:.1f} s exceeds the {target:g} s limit for {priority} requests"
            return _overload_rejection(submit.request_id, message, wait - target)
        for higher in list(CLASS_WEIGHTS)[: CLASS_ORDER[priority]]:
            target = self._limits.ttft_targets.get(higher)
            if target is None:
                continue
            wait = self.predicted_wait(higher)
            if wait > PRESSURE * target:
                message = (
                    f"{priority} requests are rejected while the estimated wait of {higher} requests "
                    f"({wait:.1f} s) exceeds {PRESSURE * target:g} s"
                )
                return _overload_rejection(submit.request_id, message, wait - PRESSURE * target)
        return None

    def rejection_if_full(self, submit: Submit) -> Rejected | None:
        """Returns a rejection if the queue has no room for the request, counting choices; else None."""
        num_waiting = len(self._queue)
        room = int(self._limits.max_waiting * QUEUE_SHARES[submit.priority])
        if num_waiting + submit.n <= room:
            return None
        message = (
            f"{num_waiting} requests are queued, and {submit.priority} requests are queued only up to {room}"
        )
        wait = self.predicted_wait(submit.priority, submit.tenant, len(submit.prompt_ids), submit.n)
        return _overload_rejection(submit.request_id, message, wait)

    def request_to_displace(self, submit: Submit) -> Request | None:
        """Returns the request that leaves a full queue to make room for a new one: the latest of a lower
        class, or of a tenant with more waiting than the new request's tenant would have.
        """
        for priority in reversed(CLASS_WEIGHTS):
            if priority is submit.priority:
                own, _ = self._queue.tenant_waits(priority, submit.tenant)
                return self._queue.last_of_most_waiting(priority, own + submit.n)
            last = self._queue.last_of_most_waiting(priority)
            if last is not None:
                return last
        return None

    def displacement_rejection(self, request: Request, submit: Submit) -> Rejected:
        """Returns the rejection of a request that is displaced by another."""
        message = (
            f"the queue is full, and a {submit.priority} request of a tenant with fewer requests displaced it"
        )
        wait = self.predicted_wait(request.priority, request.tenant, request.total_len)
        return _overload_rejection(request.request_id, message, wait)


def _overload_rejection(request_id: str, message: str, wait: float) -> Rejected:
    retry_after = min(max(wait, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
    return Rejected(request_id, "overloaded", message, round(retry_after, 1))
