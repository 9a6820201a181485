"""Who may be let in before everybody's turn, and who makes way for it.

Owns the rules. Refuses to know blocks, plans, and how a request is moved: it names requests only.

* PRIORITY and DEFAULT requests take rows and blocks of lower classes, FLEX first, the last in rank first.
  Not PRIORITY of DEFAULT while it is ahead of its share by weight (`FairQueue.priority_is_ahead`).
* Within a class, a tenant that runs less than its share of the class's rows takes from one that runs more
  than `GREEDY` times as much, the one with the most first. A share is what each would have, were the rows
  dealt out evenly. What is between the two leaves everybody in peace: who lost a row cannot take it back.
* Who was made to go is left alone until it has gained `MIN_GAIN` tokens, twice as many each time: so it is
  made to go few times, and ends. Who had to go for want of memory is protected likewise.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.fairness import FLEX, PRIORITY, FairQueue
from engine.request import CLASS_ORDER, Request
from engine.running import Running

GREEDY = 1.5
MIN_GAIN = 16
_MAX_DOUBLINGS = 12

_FLEX_ORDER = CLASS_ORDER[FLEX]


class Preemption:
    def __init__(self, queue: FairQueue, running: Running) -> None:
        self._queue = queue
        self._running = running

    def may_claim(self, request: Request) -> bool:
        """Whether a waiting request may be let in before its turn."""
        if request.priority is FLEX:
            return False
        if request.priority is PRIORITY and not self._queue.priority_is_ahead:
            return True
        return self._running.num_rows[_FLEX_ORDER] > 0 or self._is_below_share(request)

    def victims(self, request: Request) -> Iterator[Request]:
        """Who makes way for the request, the first to go first. The caller may stop after any, having
        preempted those before.
        """
        running, lowest = self._running.requests, request.rank[0] + 1
        if request.priority is PRIORITY and self._queue.priority_is_ahead:
            lowest = _FLEX_ORDER
        yield from [
            other for other in reversed(running) if other.rank[0] >= lowest and not is_left_alone(other)
        ]
        if not self._is_below_share(request):
            return
        greedy = self._share(request) * GREEDY
        order = request.rank[0]
        rows = [other for other in running if other.rank[0] == order and num_rows(other) > greedy]
        rows.sort(key=lambda other: (num_rows(other), other.rank), reverse=True)
        for other in rows:
            if num_rows(other) > greedy and not is_left_alone(other):
                yield other

    def _is_below_share(self, request: Request) -> bool:
        return num_rows(request) + 1 <= self._share(request)

    def _share(self, request: Request) -> float:
        """Rows that the request's tenant would have, were those of its class dealt out evenly."""
        order, running = request.rank[0], self._running
        num_tenants = running.num_tenants[order] + (not num_rows(request))
        return running.num_rows[order] / num_tenants


def num_rows(request: Request) -> int:
    """Of its tenant, in its class."""
    assert request.account is not None
    return request.account.num_running


def is_left_alone(request: Request) -> bool:
    """It was made to go before, or waited too long, and has not gained enough since."""
    return request.total_len < request.kept_until


def protect(request: Request) -> None:
    """It is being preempted: the next time, it stays for longer."""
    gain = MIN_GAIN << min(request.times_preempted, _MAX_DOUBLINGS)
    request.times_preempted += 1
    request.kept_until = max(request.kept_until, request.total_len + gain)
