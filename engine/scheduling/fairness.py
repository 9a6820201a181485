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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace

from engine.protocol import AdapterRef, PriorityClass
from engine.request import Request, TenantShare

PREFILL_COST = 1.0
DECODE_COST = 2.0
LOAD_COST_PER_RANK = 8.0
"""In prompt tokens that a GPU computes while the adapter's bytes move over its bus: at 50 GB/s the 84 MB of
rank 16 take as long as some 120 tokens of an 8-billion-parameter base."""
CLASS_WEIGHTS = {PriorityClass.PRIORITY: 16.0, PriorityClass.DEFAULT: 4.0, PriorityClass.FLEX: 1.0}

PRIORITY, DEFAULT, FLEX = PriorityClass

_MIN_PRUNED = 1024
_NUM_OTHERS = 16

Admits = Callable[[AdapterRef], bool]


class _Tenant(TenantShare):
    """One tenant within one class: its waiting requests, one flow per adapter, and its service so far."""

    __slots__ = ("flows", "in_heap", "num_waiting", "order")

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        """Breaks ties in the heap, after the number of its running requests."""
        self.flows: dict[str | None, deque[Request]] = {}
        self.in_heap = False
        self.num_waiting = 0
        """Requests in its flows."""

    def pick(self, admits: Admits) -> Request | None:
        """Returns its earliest request whose adapter is admitted."""
        best: Request | None = None
        for flow in self.flows.values():
            head = flow[0]
            if (best is None or head.rank < best.rank) and (head.adapter is None or admits(head.adapter)):
                best = head
        return best


class _Lane:
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
        self.tenants: dict[str, _Tenant] = {}
        # (service and running requests when pushed, order, tenant): lower bounds, because service only grows.
        self._heap: list[tuple[float, int, int, _Tenant]] = []
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
        request.tenant_share = tenant
        if not tenant.flows:
            top = self._settled_top()
            tenant.served = max(tenant.served, self._floor if top is None else top.served)
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

    def _push(self, tenant: _Tenant) -> None:
        tenant.in_heap = True
        heappush(self._heap, (tenant.served, tenant.num_running, tenant.order, tenant))

    def _settled_top(self) -> _Tenant | None:
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


class FairQueue:
    """All waiting requests, in the order in which they should be admitted."""

    def __init__(self, flex_wait_s: float = 30.0, head_start: float = 2048.0) -> None:
        """`head_start`: how much more service, by weight, PRIORITY may have received than waiting DEFAULT
        requests before the two take turns.
        """
        self._lanes = {priority: _Lane(weight) for priority, weight in CLASS_WEIGHTS.items()}
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
        self._join(request, now).enqueue(request, first)

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
        assert request.tenant_share is not None
        request.tenant_share.served += PREFILL_COST * num_tokens
        lane = self._lanes[request.priority]
        lane.served += PREFILL_COST * num_tokens / lane.weight

    def charge_load(self, request: Request, ref: AdapterRef) -> None:
        """Charges the tenant of a waiting request for loading its adapter."""
        assert request.tenant_share is not None
        request.tenant_share.served += LOAD_COST_PER_RANK * ref.rank

    def charge_decode(self, requests: Iterable[Request]) -> None:
        """Charges each request's tenant for one generated token."""
        for request in requests:
            assert request.tenant_share is not None
            request.tenant_share.served += DECODE_COST

    def charge_rows(self, num_rows: Sequence[int]) -> None:
        """Charges the classes for a step with these numbers of rows, in the order of the classes."""
        for lane, count in zip(self._lanes.values(), num_rows, strict=True):
            lane.served += DECODE_COST * count / lane.weight

    def _join(self, request: Request, now: float) -> _Lane:
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


def _flow_key(request: Request) -> str | None:
    return None if request.adapter is None else request.adapter.digest
