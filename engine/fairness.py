"""Who is admitted next: classes by weight, tenants by who was served least, requests by arrival.

Owns the waiting requests and the virtual counters of service. Refuses to know blocks, rows and slots.

Classes share admissions in proportion to their weights: while all three wait, of 21 requests admitted 16 are
PRIORITY, 4 DEFAULT and 1 FLEX, so that none waits without bound. Within a class, the tenant served least
comes first, service being counted in tokens (Sheng et al., "Fairness in Serving Large Language Models",
OSDI 2024): a computed prompt token costs 1, a generated one 2. A class or tenant that returns after having
nothing to ask for is lifted to the least served of those who wait: idleness earns no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from engine.protocol import AdapterRef, PriorityClass
from engine.request import Account, Request

PREFILL_COST = 1.0
DECODE_COST = 2.0
CLASS_WEIGHTS = {PriorityClass.PRIORITY: 16.0, PriorityClass.DEFAULT: 4.0, PriorityClass.FLEX: 1.0}

_MIN_PRUNED = 1024

Admits = Callable[[AdapterRef], bool]


class _Tenant(Account):
    """One tenant within one class: its waiting requests, in a flow per adapter, and its service so far."""

    __slots__ = ("flows", "in_heap", "order")

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        """Breaks ties in the heap."""
        self.flows: dict[str | None, deque[Request]] = {}
        self.in_heap = False

    def pick(self, admits: Admits) -> Request | None:
        """Its earliest request whose adapter is admitted."""
        best: Request | None = None
        for flow in self.flows.values():
            head = flow[0]
            if (best is None or head.rank < best.rank) and (head.adapter is None or admits(head.adapter)):
                best = head
        return best


class _Lane:
    """One class: its tenants in order of service, and the preempted requests that come before all of them."""

    __slots__ = (
        "_floor",
        "_heap",
        "_num_tenants",
        "_parked",
        "_prune_at",
        "num_waiting",
        "returning",
        "served",
        "tenants",
        "weight",
    )

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0
        """Admissions divided by weight."""
        self.num_waiting = 0
        self.returning: deque[Request] = deque()
        self.tenants: dict[str, _Tenant] = {}
        # (service when pushed, order, tenant): lower bounds, since service only grows.
        self._heap: list[tuple[float, int, _Tenant]] = []
        self._parked: list[_Tenant] = []
        self._floor = 0.0
        self._num_tenants = 0
        self._prune_at = _MIN_PRUNED

    def tenant(self, name: str) -> _Tenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            if len(self.tenants) >= self._prune_at:
                self._prune()
            self._num_tenants += 1
            tenant = self.tenants[name] = _Tenant(self._num_tenants)
        return tenant

    def enqueue(self, request: Request, first: bool) -> None:
        tenant = self.tenant(request.tenant)
        request.account = tenant
        if not tenant.flows:
            top = self._settled_top()
            tenant.served = max(tenant.served, self._floor if top is None else top.served)
        flow = tenant.flows.setdefault(_flow_key(request), deque())
        if first:
            flow.appendleft(request)
        else:
            flow.append(request)
        if not tenant.in_heap:
            self._push(tenant)

    def pick(self, admits: Admits) -> Request | None:
        for request in self.returning:
            if request.adapter is None or admits(request.adapter):
                return request
        while (tenant := self._settled_top()) is not None:
            picked = tenant.pick(admits)
            if picked is not None:
                return picked
            heappop(self._heap)
            self._parked.append(tenant)
        return None

    def unpark(self) -> None:
        for tenant in self._parked:
            self._push(tenant)
        self._parked.clear()

    def take(self, request: Request) -> None:
        if request in self.returning:
            return  # it has paid when it was admitted first
        assert request.account is not None
        self._floor = max(self._floor, request.account.served)
        self.served += 1.0 / self.weight

    def discard(self, request: Request) -> None:
        self.num_waiting -= 1
        if request in self.returning:
            self.returning.remove(request)
            return
        flows = self.tenants[request.tenant].flows
        key = _flow_key(request)
        flows[key].remove(request)
        if not flows[key]:
            del flows[key]

    def _push(self, tenant: _Tenant) -> None:
        tenant.in_heap = True
        heappush(self._heap, (tenant.served, tenant.order, tenant))

    def _settled_top(self) -> _Tenant | None:
        """The waiting tenant served least, after bringing entries at the top up to date."""
        heap = self._heap
        while heap:
            served, order, tenant = heap[0]
            if not tenant.flows:
                heappop(heap)
                tenant.in_heap = False
            elif served < tenant.served:
                heapreplace(heap, (tenant.served, order, tenant))
            else:
                return tenant
        return None

    def _prune(self) -> None:
        """Drop the less served half of the idle tenants, so that the table does not grow for ever.

        The floor rises with them: were they to return, the lift would bring them about where they were.
        """
        idle = sorted(tenant.served for tenant in self.tenants.values() if not tenant.in_heap)
        if idle:
            self._floor = max(self._floor, idle[len(idle) // 2])
        self.tenants = {
            name: tenant
            for name, tenant in self.tenants.items()
            if tenant.in_heap or tenant.served > self._floor
        }
        self._prune_at = max(_MIN_PRUNED, 2 * len(self.tenants))


class FairQueue:
    """All waiting requests."""

    def __init__(self) -> None:
        self._lanes = {priority: _Lane(weight) for priority, weight in CLASS_WEIGHTS.items()}
        self._floor = 0.0

    def __len__(self) -> int:
        return sum([lane.num_waiting for lane in self._lanes.values()])

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        for lane in self._lanes.values():
            yield from lane.returning
            for tenant in lane.tenants.values():
                for flow in tenant.flows.values():
                    yield from flow

    def num_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_waiting

    def push(self, request: Request, first: bool = False) -> None:
        """Queue a request; `first`: before others of its tenant on its adapter."""
        self._join(request).enqueue(request, first)

    def push_returning(self, request: Request) -> None:
        """Queue a preempted request, before everyone in its class who has not been preempted.

        Preempt the last arrived first: then they return in order of arrival.
        """
        self._join(request).returning.appendleft(request)

    def pick(self, admits: Admits, closed: PriorityClass | None = None) -> Request | None:
        """The next request whose adapter `admits` lets in, not of class `closed`. Queued until taken.

        Tenants with no such request are set aside until `unpark`, so that they are looked at once per pass.
        """
        waiting = [lane for name, lane in self._lanes.items() if lane.num_waiting and name is not closed]
        waiting.sort(key=lambda lane: lane.served)  # stable: of equals, the higher class
        for lane in waiting:
            request = lane.pick(admits)
            if request is not None:
                return request
        return None

    def unpark(self) -> None:
        """End a pass of picks."""
        for lane in self._lanes.values():
            lane.unpark()

    def take(self, request: Request) -> None:
        """Remove the request just picked: it is admitted. Its class pays, unless it only returns."""
        lane = self._lanes[request.priority]
        self._floor = max(self._floor, lane.served)
        lane.take(request)
        lane.discard(request)

    def discard(self, request: Request) -> None:
        """Remove a waiting request that will not run."""
        self._lanes[request.priority].discard(request)

    def charge_prefill(self, request: Request, num_tokens: int) -> None:
        """Count prompt tokens that are to be computed for the request."""
        assert request.account is not None
        request.account.served += PREFILL_COST * num_tokens

    def charge_decode(self, requests: Iterable[Request]) -> None:
        """Count one generated token for each."""
        for request in requests:
            assert request.account is not None
            request.account.served += DECODE_COST

    def _join(self, request: Request) -> _Lane:
        lane = self._lanes[request.priority]
        if not lane.num_waiting:
            others = [other.served for other in self._lanes.values() if other.num_waiting]
            lane.served = max(lane.served, min(others, default=self._floor))
        lane.num_waiting += 1
        return lane


def _flow_key(request: Request) -> str | None:
    return None if request.adapter is None else request.adapter.digest
