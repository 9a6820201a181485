"""Orders the waiting requests of one service class by the service that their tenants received."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush, heapreplace

from engine.protocol import AdapterRef
from engine.request import Request, TenantShare

_MIN_PRUNED = 1024
_NUM_OTHERS = 16

Admits = Callable[[AdapterRef], bool]


class LaneTenant(TenantShare):
    """One tenant within one class: its waiting requests, one flow per adapter, and its service so far."""

    __slots__ = ("_counted", "_served_here", "flows", "in_heap", "num_waiting", "order")

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        """Breaks ties in the heap, after the number of its running requests."""
        self.flows: dict[str | None, deque[Request]] = {}
        self.in_heap = False
        self.num_waiting = 0
        """Requests in its flows."""
        self._served_here = 0.0
        self._counted = 0.0
        """The part of `served` that `_served_here` has counted."""

    def served_here(self) -> float:
        """Returns the tokens that it was served, weighted by their cost alone."""
        self._served_here += (self.served - self._counted) / self.cost_factor
        self._counted = self.served
        return self._served_here

    def set_cost_factor(self, factor: float) -> None:
        """Charges so many times the cost of what it is served from now on."""
        self.served_here()
        self.cost_factor = factor

    def lift(self, served: float) -> None:
        """Raises `served` to that level: being idle earns no credit."""
        if served > self.served:
            self.served_here()
            self.served = self._counted = served

    def pick(self, admits: Admits) -> Request | None:
        """Returns its earliest request whose adapter is admitted."""
        best: Request | None = None
        for flow in self.flows.values():
            head = flow[0]
            if (best is None or head.rank < best.rank) and (head.adapter is None or admits(head.adapter)):
                best = head
        return best


class Lane:
    """One class: its tenants in order of service, and preempted requests, which precede all of them."""

    __slots__ = (
        "_floor",
        "_heap",
        "_num_tenants",
        "_parked",
        "_prune_at",
        "after_others",
        "num_tenants_waiting",
        "num_tokens_waiting",
        "num_waiting",
        "returning",
        "served",
        "tenants",
        "weight",
    )

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.served = 0.0
        """Tokens weighted by their cost, divided by the class's weight."""
        self.after_others = False
        """Whether the class gets only what others leave, and has no turn of its own."""
        self.num_waiting = 0
        self.num_tokens_waiting = 0
        """Known tokens of its waiting requests, whether or not the prefix cache has them."""
        self.num_tenants_waiting = 0
        """Tenants with requests that have not been preempted."""
        self.returning: deque[Request] = deque()
        self.tenants: dict[str, LaneTenant] = {}
        # (service and running requests when pushed, order, tenant): lower bounds, because service only grows.
        self._heap: list[tuple[float, int, int, LaneTenant]] = []
        self._parked: list[LaneTenant] = []
        self._floor = 0.0
        self._num_tenants = 0
        self._prune_at = _MIN_PRUNED

    def tenant(self, name: str) -> LaneTenant:
        tenant = self.tenants.get(name)
        if tenant is None:
            if len(self.tenants) >= self._prune_at:
                self._prune()
            self._num_tenants += 1
            tenant = self.tenants[name] = LaneTenant(self._num_tenants)
        return tenant

    def enqueue(self, request: Request, first: bool, in_flight: float) -> None:
        """`in_flight`: the cost of tokens that a preempted request has drawn, and is yet to be charged for.
        A tenant is lifted to where it is then, as if nothing were in flight.
        """
        tenant = self.tenant(request.tenant)
        request.tenant_share = tenant
        if not tenant.flows:
            top = self._settled_top()
            level = self._floor if top is None else top.served
            tenant.lift(level - in_flight * tenant.cost_factor)
            self.num_tenants_waiting += 1
        tenant.num_waiting += 1
        flow = tenant.flows.setdefault(_flow_key(request), deque())
        if first:
            flow.appendleft(request)
        else:
            flow.append(request)
        if not tenant.in_heap:
            self._push(tenant)

    def pick(self, admits: Admits) -> Request | None:
        return self.pick_returning(admits) or self.pick_new(admits)

    def pick_returning(self, admits: Admits) -> Request | None:
        for request in self.returning:
            if request.adapter is None or admits(request.adapter):
                return request
        return None

    def pick_new(self, admits: Admits) -> Request | None:
        while (tenant := self._settled_top()) is not None:
            picked = tenant.pick(admits)
            if picked is not None:
                return picked
            heappop(self._heap)
            self._parked.append(tenant)
        return None

    def pick_others(self, admits: Admits) -> Iterator[Request]:
        """Yields the first request of each tenant near the top of the heap, except the top one."""
        for _, _, _, tenant in self._heap[1:_NUM_OTHERS]:
            request = tenant.pick(admits)
            if request is not None:
                yield request

    def unpark(self) -> None:
        for tenant in self._parked:
            self._push(tenant)
        self._parked.clear()

    def take(self, request: Request) -> None:
        if request in self.returning:
            return  # it was charged when it was first admitted
        assert request.tenant_share is not None
        self._floor = max(self._floor, request.tenant_share.served)

    def discard(self, request: Request) -> None:
        self.num_waiting -= 1
        self.num_tokens_waiting -= request.total_len
        if request in self.returning:
            self.returning.remove(request)
            return
        tenant = self.tenants[request.tenant]
        key = _flow_key(request)
        tenant.num_waiting -= 1
        tenant.flows[key].remove(request)
        if not tenant.flows[key]:
            del tenant.flows[key]
            self.num_tenants_waiting -= not tenant.flows

    def last_of_most_waiting(self, more_than: int) -> Request | None:
        """Returns the latest request that never ran, of the tenant with the most such requests waiting."""
        most = max(self.tenants.values(), key=lambda tenant: tenant.num_waiting, default=None)
        if most is None or most.num_waiting <= more_than:
            return None
        heads = [flow[-1] for flow in most.flows.values() if flow[-1].group.scheduled_at is None]
        return max(heads, key=lambda request: request.rank, default=None)

    def _push(self, tenant: LaneTenant) -> None:
        tenant.in_heap = True
        heappush(self._heap, (tenant.served, tenant.num_running, tenant.order, tenant))

    def _settled_top(self) -> LaneTenant | None:
        """Returns the waiting tenant with the least service, after updating stale entries at the top."""
        heap = self._heap
        while heap:
            served, _, _, tenant = heap[0]
            if not tenant.flows:
                heappop(heap)
                tenant.in_heap = False
            elif served < tenant.served:
                heapreplace(heap, (tenant.served, tenant.num_running, tenant.order, tenant))
            else:
                return tenant
        return None

    def _prune(self) -> None:
        """Drops the less served half of the idle tenants, so that the table stays bounded.

        The floor rises with them: if they return, the lift puts them about where they were.
        """
        idle = sorted(
            tenant.served for tenant in self.tenants.values() if not (tenant.in_heap or tenant.num_running)
        )
        if idle:
            self._floor = max(self._floor, idle[len(idle) // 2])
        self.tenants = {
            name: tenant
            for name, tenant in self.tenants.items()
            if tenant.in_heap or tenant.num_running or tenant.served > self._floor
        }
        self._prune_at = max(_MIN_PRUNED, 2 * len(self.tenants))


def _flow_key(request: Request) -> str | None:
    return None if request.adapter is None else request.adapter.digest
