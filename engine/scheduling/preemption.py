"""Decides which waiting requests may preempt running ones, and which running requests are preempted.

* PRIORITY and DEFAULT requests take rows and blocks of lower classes: FLEX first, the last in rank first.
  PRIORITY does not take from DEFAULT while it is ahead of its share (`FairQueue.priority_is_ahead`).
* Within a class, a tenant takes a row from the tenant that runs the most requests if those are more than
  `GREEDY_FACTOR` times what the taker would then run, and still more after losing one: the last in rank
  first. Between the two bounds no row moves, so a request that lost a row cannot take it back at once. The
  greedy tenant's first requests in rank keep running, so it progresses.
* A request that was preempted is protected from higher classes until it has gained `MIN_GAIN` tokens, twice
  as many each time, so preemption happens to it few times. One preempted for want of memory is protected
  likewise.

The policy names requests only; the planner moves them.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.request import CLASS_ORDER, Request, TenantShare
from engine.scheduling.fairness import FLEX, PRIORITY, FairQueue
from engine.scheduling.running import RunningRequests, tenant_rows

GREEDY_FACTOR = 1.5
MIN_GAIN = 16
_MAX_DOUBLINGS = 12

_FLEX_ORDER = CLASS_ORDER[FLEX]


class Preemption:
    """Applies the preemption rules to the queue and the batch."""

    def __init__(self, queue: FairQueue, running: RunningRequests) -> None:
        self._queue = queue
        self._running = running

    def may_preempt(self, request: Request) -> bool:
        """Returns whether a waiting request may be admitted before its turn."""
        if request.priority is FLEX:
            return False
        if request.priority is PRIORITY and not self._queue.priority_is_ahead:
            return True
        return self._running.num_rows[_FLEX_ORDER] > 0 or self._may_take_a_row(request)

    def victims(self, request: Request) -> Iterator[Request]:
        """Yields the running requests to preempt for the request, in order. The caller may stop after any,
        having preempted those before.
        """
        running, lowest = self._running.requests, request.rank[0] + 1
        if request.priority is PRIORITY and self._queue.priority_is_ahead:
            lowest = _FLEX_ORDER
        yield from [
            other for other in reversed(running) if other.rank[0] >= lowest and not is_protected(other)
        ]
        if not self._may_take_a_row(request):
            return
        order, own = request.rank[0], _share(request)
        rows = [
            other for other in running if other.rank[0] == order and _must_give_up_a_row(_share(other), own)
        ]
        rows.sort(key=lambda other: (tenant_rows(other), other.rank), reverse=True)
        for other in rows:
            if _must_give_up_a_row(_share(other), own):
                yield other

    def _may_take_a_row(self, request: Request) -> bool:
        """Returns whether another tenant of its class runs so many more requests that it must
        give up a row."""
        order, own = request.rank[0], _share(request)
        if self._running.most_rows[order] <= _fair_rows(own, 1.0):
            return False
        if own.cost_factor == 1.0:
            return True
        others = {_share(other) for other in self._running.requests if other.rank[0] == order}
        return any(_must_give_up_a_row(other, own) for other in others)


def _must_give_up_a_row(running: TenantShare, waiting: TenantShare) -> bool:
    """Returns whether a tenant must give up a row to another one of its class.

    Rows of the waiting tenant count for more as far as other engines serve it more than the running one,
    each compared with what this engine serves it.
    """
    weight = max(1.0, waiting.cost_factor / running.cost_factor)
    return running.num_running > _fair_rows(waiting, weight)


def _fair_rows(waiting: TenantShare, weight: float) -> float:
    """Returns the number of rows up to which another tenant keeps all of them, if each row of the waiting one
    counts for `weight`.

    Recomputing a prompt to turn two and zero rows into one and one would cost more than waiting for the next
    row.
    """
    after = (waiting.num_running + 1) * weight
    return max(GREEDY_FACTOR * after, after + 1)


def _share(request: Request) -> TenantShare:
    assert request.tenant_share is not None
    return request.tenant_share


def is_protected(request: Request) -> bool:
    """Returns whether it was preempted, or waited too long, and has not gained enough tokens since."""
    return request.total_len < request.protected_until


def protect(request: Request) -> None:
    """Protects a request that is being preempted: the next time it runs for longer."""
    gain = MIN_GAIN << min(request.times_preempted, _MAX_DOUBLINGS)
    request.times_preempted += 1
    request.protected_until = max(request.protected_until, request.total_len + gain)
