"""How long a request would wait for its first token, and who is not let into the queue for that.

Owns the prediction, and the order in which requests are shed: FLEX first, then DEFAULT, and of a queue that
is full, the last of whoever has the most in it. Only what has never run is shed, so nothing has been told of
it. Refuses to know what is running otherwise than as numbers.

A wait is predicted from what has to happen first. Rows: requests that go before, less the rows that are free
or would be made free, by the measured pace at which rows are given back; blocks bound rows, so where those
are short no row counts as free. Tokens: the prompts that go before, by the measured pace at which prompts are
computed. A class shares either pace with the others that wait, by weight. Where nothing was measured lately,
nothing is predicted, and only the length of the queue counts.
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
"""How full the queue may be for a class to be let in: the lower ones are shed first."""
PRESSURE = 0.25
"""Of its target: what a class's predicted wait may be before lower classes are shed for its sake."""
MIN_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _WorkAhead:
    """What goes before a request."""

    rows: float
    """Requests of its own class, less rows that are free for it."""
    tokens: float
    """Of their prompts, with its own."""
    other_rows: int
    other_tokens: int
    """The same of other classes, should it have to wait for all of them."""


class LoadShedder:
    def __init__(
        self,
        limits: EngineLimits,
        queue: FairQueue,
        running: RunningRequests,
        timing: StepTiming,
        bound: StepBound,
    ) -> None:
        self.is_short_of_blocks = False
        """Whether the request that was next at the last step lacked blocks."""
        self._limits = limits
        self._queue = queue
        self._running = running
        self._timing = timing
        self._bound = bound

    # Prediction ------------------------------------------------------------------------------------------

    def predicted_wait(
        self, priority: PriorityClass, tenant: str = "", num_tokens: int = 1, num_choices: int = 1
    ) -> float:
        """Seconds until a request that came now would be computed, as far as can be told."""
        ahead = self._work_ahead(priority, tenant, num_tokens, num_choices)
        share = self._throughput_share(priority)
        wait = 0.0
        row_seconds, prompt_rate = self._timing.row_seconds, self._timing.prompt_rate
        if row_seconds is not None and ahead.rows > 0:
            # As many rows run as blocks or rows allow, or some would be free.
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
        # Tenants take turns: each other one goes before it once, and once for each of its own before it.
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
        """Rows that are free for a request of a tenant with so many requests in its class, or that would be
        made free: those of lower classes, and what the tenant is short of its share of its own class's.
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
        """Of the engine's pace, while every class that waits now goes on waiting."""
        if priority is FLEX:
            return 1.0  # it waits for all of the others
        rivals = [
            other for other in (PRIORITY, DEFAULT) if other is priority or self._queue.num_waiting(other)
        ]
        return CLASS_WEIGHTS[priority] / sum(CLASS_WEIGHTS[rival] for rival in rivals)

    # Shedding --------------------------------------------------------------------------------------------

    def rejection(self, submit: Submit) -> Rejected | None:
        """Why the request would wait too long, or a higher class because of it; None when neither."""
        priority = submit.priority
        wait = self.predicted_wait(priority, submit.tenant, len(submit.prompt_ids), submit.n)
        target = self._limits.ttft_targets.get(priority) if submit.ttft_target is None else submit.ttft_target
        if target is not None and wait > target:
            message = (
                f"it would wait for about {wait:.1f} s, and {priority} requests are to wait for {target:g} s"
            )
            return _overload_rejection(submit.request_id, message, wait - target)
        for higher in list(CLASS_WEIGHTS)[: CLASS_ORDER[priority]]:
            target = self._limits.ttft_targets.get(higher)
            if target is None:
                continue
            wait = self.predicted_wait(higher)
            if wait > PRESSURE * target:
                message = (
                    f"{higher} requests wait for about {wait:.1f} s, and {priority} requests are refused "
                    f"from {PRESSURE * target:g} s on"
                )
                return _overload_rejection(submit.request_id, message, wait - PRESSURE * target)
        return None

    def rejection_if_full(self, submit: Submit) -> Rejected | None:
        """Why there is no place in the queue for the request; None when there is. Choices count."""
        num_waiting = len(self._queue)
        room = int(self._limits.max_waiting * QUEUE_SHARES[submit.priority])
        if num_waiting + submit.n <= room:
            return None
        message = f"{num_waiting} requests wait, and the queue takes {submit.priority} requests up to {room}"
        wait = self.predicted_wait(submit.priority, submit.tenant, len(submit.prompt_ids), submit.n)
        return _overload_rejection(submit.request_id, message, wait)

    def request_to_displace(self, submit: Submit) -> Request | None:
        """Who is to leave a queue that is full, for the request to have its place: the last of a lower class,
        or of a tenant that has more waiting than the request's own would have.
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
        """What to tell of a request that is displaced by another."""
        message = f"the queue is full, and a {submit.priority} request of a tenant with fewer in it has come"
        wait = self.predicted_wait(request.priority, request.tenant, request.total_len)
        return _overload_rejection(request.request_id, message, wait)


def _overload_rejection(request_id: str, message: str, wait: float) -> Rejected:
    retry_after = min(max(wait, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS)
    return Rejected(request_id, "overloaded", message, round(retry_after, 1))
