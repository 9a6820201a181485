"""Who may be let in before everybody's turn, and who makes way for it.

Owns the rules. Refuses to know blocks, plans, and how a request is moved: it names requests only.

* PRIORITY and DEFAULT requests take rows and blocks of lower classes, FLEX first, the last in rank first.
  Not PRIORITY of DEFAULT while it is ahead of its share by weight (`FairQueue.priority_is_ahead`).
* Within a class, a tenant takes from the one that runs the most, if those are more than `GREEDY_FACTOR` times as
  many as it would then run itself, and still more once one is gone: the last in rank first. What is between
  the two leaves everybody in peace, and who lost a row cannot take it back. Its first in rank go on
  meanwhile, so that it progresses.
* Who was made to go is left alone by higher classes until it has gained `MIN_GAIN` tokens, twice as many each
  time: so that happens to it few times. Who had to go for want of memory is protected likewise.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.request import CLASS_ORDER, Request
from engine.scheduling.fairness import FLEX, PRIORITY, FairQueue
from engine.scheduling.running import RunningRequests, tenant_rows

GREEDY_FACTOR = 1.5
MIN_GAIN = 16
_MAX_DOUBLINGS = 12

_FLEX_ORDER = CLASS_ORDER[FLEX]


class Preemption:
    def __init__(self, queue: FairQueue, running: RunningRequests) -> None:
        self._queue = queue
        self._running = running

    def may_preempt(self, request: Request) -> bool:
        """Whether a waiting request may be let in before its turn."""
        if request.priority is FLEX:
            return False
        if request.priority is PRIORITY and not self._queue.priority_is_ahead:
            return True
        return self._running.num_rows[_FLEX_ORDER] > 0 or self._may_take_a_row(request)

    def victims(self, request: Request) -> Iterator[Request]:
        """Who makes way for the request, the first to go first. The caller may stop after any, having
        preempted those before.
        """
        running, lowest = self._running.requests, request.rank[0] + 1
        if request.priority is PRIORITY and self._queue.priority_is_ahead:
            lowest = _FLEX_ORDER
        yield from [
            other for other in reversed(running) if other.rank[0] >= lowest and not is_protected(other)
        ]
        if not self._may_take_a_row(request):
            return
        order, greedy = request.rank[0], _fair_rows(request)
        rows = [other for other in running if other.rank[0] == order and tenant_rows(other) > greedy]
        rows.sort(key=lambda other: (tenant_rows(other), other.rank), reverse=True)
        for other in rows:
            if tenant_rows(other) > greedy:
                yield other

    def _may_take_a_row(self, request: Request) -> bool:
        """Whether another tenant of its class runs so many more than its own that it may have one of them."""
        return self._running.most_rows[request.rank[0]] > _fair_rows(request)


def _fair_rows(request: Request) -> float:
    """Rows of another tenant up to which it keeps them all. Computing a prompt twice to make two and none one
    and one would cost more than the wait for the next row.
    """
    after = tenant_rows(request) + 1
    return max(GREEDY_FACTOR * after, after + 1)


def is_protected(request: Request) -> bool:
    """It was made to go before, or waited too long, and has not gained enough since."""
    return request.total_len < request.protected_until


def protect(request: Request) -> None:
    """It is being preempted: the next time, it stays for longer."""
    gain = MIN_GAIN << min(request.times_preempted, _MAX_DOUBLINGS)
    request.times_preempted += 1
    request.protected_until = max(request.protected_until, request.total_len + gain)
