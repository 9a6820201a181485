"""Orders waiting requests: classes by weight, tenants by the service they received, requests by arrival.

Service is counted in tokens (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
computed prompt token costs 1, a generated one 2, loading an adapter `LOAD_COST_PER_RANK` per unit of its
rank. PRIORITY and DEFAULT share by weight, 16 to 4: the class with the least service divided by its weight
goes first. FLEX gets what they leave, until one of its requests has waited for `flex_wait_s`: from then on it
takes turns with them by its own weight, 1, as long as any has waited that long. Within a class, the tenant
with the least service goes first. A class or tenant that returns after being idle is lifted to the least
served of those waiting: idleness earns no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request
from engine.scheduling.fair_lane import Admits, Lane, LaneTenant

PREFILL_COST = 1.0
DECODE_COST = 2.0
LOAD_COST_PER_RANK = 8.0
"""In prompt tokens that a GPU computes while the adapter's bytes move over its bus: at 50 GB/s the 84 MB of
rank 16 take as long as some 120 tokens of an 8-billion-parameter base."""
CLASS_WEIGHTS = {PriorityClass.PRIORITY: 16.0, PriorityClass.DEFAULT: 4.0, PriorityClass.FLEX: 1.0}

PRIORITY, DEFAULT, FLEX = PriorityClass


class FairQueue:
    """All waiting requests, in the order in which they should be admitted."""

    def __init__(self, flex_wait_s: float = 30.0, head_start: float = 2048.0) -> None:
        """`head_start`: how much more service, by weight, PRIORITY may have received than waiting DEFAULT
        requests before the two take turns.
        """
        self._lanes = {priority: Lane(weight) for priority, weight in CLASS_WEIGHTS.items()}
        self._lanes[FLEX].after_others = True
        self._flex_wait_s = flex_wait_s
        self._head_start = head_start
        self._floor = 0.0
        # FLEX requests in the order in which they began to wait; some may no longer wait.
        self._flex_line: deque[tuple[float, Request]] = deque()
        self.priority_is_ahead = False
        """PRIORITY is so far ahead of its share that it does not preempt DEFAULT requests."""

    def __len__(self) -> int:
        return sum([lane.num_waiting for lane in self._lanes.values()])

    def __iter__(self) -> Iterator[Request]:
        """Yields all requests, in no particular order."""
        for lane in self._lanes.values():
            yield from lane.returning
            for tenant in lane.tenants.values():
                for flow in tenant.flows.values():
                    yield from flow

    def num_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_waiting

    def num_tokens_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_tokens_waiting

    def num_tenants_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_tenants_waiting

    def num_returning(self, priority: PriorityClass) -> int:
        return len(self._lanes[priority].returning)

    def tenants(self, priority: PriorityClass) -> Mapping[str, LaneTenant]:
        """Returns the tenants of a class by name, also some that neither wait nor run."""
        return self._lanes[priority].tenants

    def tenant_waits(self, priority: PriorityClass, name: str) -> tuple[int, int]:
        """Returns how many of a tenant's requests in a class wait without having been preempted, and how many
        run.
        """
        tenant = self._lanes[priority].tenants.get(name)
        return (0, 0) if tenant is None else (tenant.num_waiting, tenant.num_running)

    def last_of_most_waiting(self, priority: PriorityClass, more_than: int = 0) -> Request | None:
        """Returns the latest request of the tenant with the most waiting in a class, if more than
        `more_than`.
        """
        return self._lanes[priority].last_of_most_waiting(more_than)

    def push(self, request: Request, now: float, first: bool = False) -> None:
        """Queues a request; `first` puts it before others of its tenant on its adapter."""
        in_flight = request.total_len - len(request.token_ids)
        self._join(request, now).enqueue(request, first, DECODE_COST * in_flight)

    def push_returning(self, request: Request, now: float) -> None:
        """Queues a preempted request, before all requests of its class that were not preempted.

        Preempt the latest arrival first, so that requests return in order of arrival.
        """
        self._join(request, now).returning.appendleft(request)

    def take_turns(self, now: float) -> None:
        """Decides, once per step, whether FLEX has a turn and whether PRIORITY is ahead of its share."""
        priority, default, flex = self._lanes.values()
        if not default.num_waiting:
            self.priority_is_ahead = False
        else:
            lead = priority.served - default.served
            self.priority_is_ahead = lead > (0.0 if self.priority_is_ahead else self._head_start)
        others = [lane.served for lane in (priority, default) if lane.num_waiting]
        in_turn = bool(others) and self.oldest_flex_wait(now) >= self._flex_wait_s
        if in_turn and flex.after_others:
            flex.served = min(others)  # what it had before was left over by others
        flex.after_others = not in_turn

    def oldest_flex_wait(self, now: float) -> float:
        """Returns how long the longest-waiting FLEX request has waited; negative if none waits."""
        line = self._flex_line
        while line and (not line[0][1].is_waiting or line[0][1].waiting_since != line[0][0]):
            line.popleft()
        return now - line[0][0] if line else -1.0

    def flex_in_turn(self, admits: Admits) -> Request | None:
        """Returns a FLEX request whose turn it is although others wait, if any."""
        priority, default, flex = self._lanes.values()
        if flex.after_others or any(
            lane.num_waiting and lane.served < flex.served for lane in (priority, default)
        ):
            return None
        return flex.pick(admits)

    def heads(self, priority: PriorityClass, admits: Admits) -> Iterator[Request]:
        """Yields candidates of a class for early admission: the first preempted one, the first of the tenant
        with the least service, then those of some others with little service. Only such as `admits` accepts.
        Call `unpark` afterwards.
        """
        lane = self._lanes[priority]
        if lane.num_waiting:
            for request in (lane.pick_returning(admits), lane.pick_new(admits)):
                if request is not None:
                    yield request
            yield from lane.pick_others(admits)

    def pick(self, admits: Admits, closed: Collection[PriorityClass] = ()) -> Request | None:
        """Returns the next request whose adapter `admits` accepts, of no class that is `closed`. It stays
        queued until taken.

        Tenants with no such request are parked until `unpark`, so that each is examined once per pass.
        """
        waiting = [lane for name, lane in self._lanes.items() if lane.num_waiting and name not in closed]
        waiting.sort(key=lambda lane: (lane.after_others, lane.served))  # stable: of equals, the higher class
        for lane in waiting:
            request = lane.pick(admits)
            if request is not None:
                return request
        return None

    def unpark(self) -> None:
        """Ends a pass of picks."""
        for lane in self._lanes.values():
            lane.unpark()

    def take(self, request: Request) -> None:
        """Removes the request just picked, because it is admitted.

        A FLEX request admitted in its turn is not preempted for others: it has waited long enough.
        """
        lane = self._lanes[request.priority]
        if request.priority is FLEX and not lane.after_others:
            request.protected_until = request.limit
        self._floor = max(self._floor, lane.served)
        lane.take(request)
        lane.discard(request)

    def discard(self, request: Request) -> None:
        """Removes a waiting request that will not run."""
        self._lanes[request.priority].discard(request)

    def charge_prefill(self, request: Request, num_tokens: int) -> None:
        """Charges the request's tenant and class for prompt tokens to be computed."""
        share = request.tenant_share
        assert share is not None
        share.served += PREFILL_COST * num_tokens * share.cost_factor
        lane = self._lanes[request.priority]
        lane.served += PREFILL_COST * num_tokens / lane.weight

    def charge_load(self, request: Request, ref: AdapterRef) -> None:
        """Charges the tenant of a waiting request for loading its adapter."""
        share = request.tenant_share
        assert share is not None
        share.served += LOAD_COST_PER_RANK * ref.rank * share.cost_factor

    def charge_decode(self, requests: Iterable[Request]) -> None:
        """Charges each request's tenant for one generated token."""
        for request in requests:
            share = request.tenant_share
            assert share is not None
            share.served += DECODE_COST * share.cost_factor

    def charge_rows(self, num_rows: Sequence[int]) -> None:
        """Charges the classes for a step with these numbers of rows, in the order of the classes."""
        for lane, count in zip(self._lanes.values(), num_rows, strict=True):
            lane.served += DECODE_COST * count / lane.weight

    def _join(self, request: Request, now: float) -> Lane:
        lane = self._lanes[request.priority]
        if not lane.num_waiting:
            others = [
                other.served for other in self._lanes.values() if other.num_waiting and not other.after_others
            ]
            lane.served = max(lane.served, min(others, default=self._floor))
        lane.num_waiting += 1
        lane.num_tokens_waiting += request.total_len
        request.waiting_since = now
        if request.priority is FLEX:
            self._flex_line.append((now, request))
        return lane
