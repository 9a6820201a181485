"""Who is admitted next: classes by weight, tenants by who was served least, requests by arrival.

Owns the waiting requests and the virtual counters of service. Refuses to know blocks, rows and slots.

Service is counted in tokens (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024): a
computed prompt token costs 1, a generated one 2, an adapter brought into memory `LOAD_COST_PER_RANK` for each
unit of its rank. PRIORITY and DEFAULT share by weight, 16 to 4: the class whose service, divided by its
weight, is less comes first. FLEX has what they leave, until one of it has waited for `flex_wait_s`: from then
on it takes turns with them by its own weight, 1, as long as any has waited so long. Within a class, the
tenant served least comes first. A class or tenant that returns after having nothing to ask for is lifted to
the least served of those who wait: idleness earns no credit.
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
    """One tenant within one class: its waiting requests, in a flow per adapter, and its service so far."""

    __slots__ = ("flows", "in_heap", "num_waiting", "order")

    def __init__(self, order: int) -> None:
        super().__init__()
        self.order = order
        """Breaks ties in the heap, after how many of its requests run."""
        self.flows: dict[str | None, deque[Request]] = {}
        self.in_heap = False
        self.num_waiting = 0
        """Requests in its flows."""

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
        """It has what others leave, and no turn of its own."""
        self.num_waiting = 0
        self.num_tokens_waiting = 0
        """Tokens that its waiting requests know, whether or not they will be found in the prefix cache."""
        self.num_tenants_waiting = 0
        """Those with requests that have not been preempted."""
        self.returning: deque[Request] = deque()
        self.tenants: dict[str, _Tenant] = {}
        # (service and running requests when pushed, order, tenant): lower bounds, since service only grows.
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
        """The first of tenants near the top of the heap, but for the one at the top."""
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
            return  # it has paid when it was admitted first
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
        """The last to come, of those that never ran, of the tenant with the most of them waiting."""
        most = max(self.tenants.values(), key=lambda tenant: tenant.num_waiting, default=None)
        if most is None or most.num_waiting <= more_than:
            return None
        heads = [flow[-1] for flow in most.flows.values() if flow[-1].group.scheduled_at is None]
        return max(heads, key=lambda request: request.rank, default=None)

    def _push(self, tenant: _Tenant) -> None:
        tenant.in_heap = True
        heappush(self._heap, (tenant.served, tenant.num_running, tenant.order, tenant))

    def _settled_top(self) -> _Tenant | None:
        """The waiting tenant served least, after bringing entries at the top up to date."""
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
        """Drop the less served half of the idle tenants, so that the table does not grow for ever.

        The floor rises with them: were they to return, the lift would bring them about where they were.
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
    """All waiting requests."""

    def __init__(self, flex_wait_s: float = 30.0, head_start: float = 2048.0) -> None:
        """`head_start`: how much more service, by weight, PRIORITY may have had than DEFAULT requests that
        wait before it has to take turns with them.
        """
        self._lanes = {priority: _Lane(weight) for priority, weight in CLASS_WEIGHTS.items()}
        self._lanes[FLEX].after_others = True
        self._flex_wait_s = flex_wait_s
        self._head_start = head_start
        self._floor = 0.0
        # FLEX requests in the order in which they began to wait; some may wait no more.
        self._flex_line: deque[tuple[float, Request]] = deque()
        self.priority_is_ahead = False
        """PRIORITY has had so much more than its share that DEFAULT requests are not to make way for it."""

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

    def num_tokens_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_tokens_waiting

    def num_tenants_waiting(self, priority: PriorityClass) -> int:
        return self._lanes[priority].num_tenants_waiting

    def num_returning(self, priority: PriorityClass) -> int:
        return len(self._lanes[priority].returning)

    def tenant_waits(self, priority: PriorityClass, name: str) -> tuple[int, int]:
        """How many requests of a tenant in a class wait and have not been preempted, and how many run."""
        tenant = self._lanes[priority].tenants.get(name)
        return (0, 0) if tenant is None else (tenant.num_waiting, tenant.num_running)

    def last_of_most_waiting(self, priority: PriorityClass, more_than: int = 0) -> Request | None:
        """The last request of the tenant that has the most of a class waiting, if more than so many."""
        return self._lanes[priority].last_of_most_waiting(more_than)

    def push(self, request: Request, now: float, first: bool = False) -> None:
        """Queue a request; `first`: before others of its tenant on its adapter."""
        self._join(request, now).enqueue(request, first)

    def push_returning(self, request: Request, now: float) -> None:
        """Queue a preempted request, before everyone in its class who has not been preempted.

        Preempt the last arrived first: then they return in order of arrival.
        """
        self._join(request, now).returning.appendleft(request)

    def take_turns(self, now: float) -> None:
        """Find out whether FLEX has a turn, and whether PRIORITY has had more than its own. Once per step."""
        priority, default, flex = self._lanes.values()
        if not default.num_waiting:
            self.priority_is_ahead = False
        else:
            lead = priority.served - default.served
            self.priority_is_ahead = lead > (0.0 if self.priority_is_ahead else self._head_start)
        others = [lane.served for lane in (priority, default) if lane.num_waiting]
        in_turn = bool(others) and self.oldest_flex_wait(now) >= self._flex_wait_s
        if in_turn and flex.after_others:
            flex.served = min(others)  # what it had before was what nobody else wanted
        flex.after_others = not in_turn

    def oldest_flex_wait(self, now: float) -> float:
        """How long the FLEX request has waited that has waited longest; less than nothing if none waits."""
        line = self._flex_line
        while line and (not line[0][1].is_waiting or line[0][1].waiting_since != line[0][0]):
            line.popleft()
        return now - line[0][0] if line else -1.0

    def flex_in_turn(self, admits: Admits) -> Request | None:
        """A FLEX request whose turn it is, although others wait."""
        priority, default, flex = self._lanes.values()
        if flex.after_others or any(
            lane.num_waiting and lane.served < flex.served for lane in (priority, default)
        ):
            return None
        return flex.pick(admits)

    def heads(self, priority: PriorityClass, admits: Admits) -> Iterator[Request]:
        """Of a class, the first that returns and the first of the tenant served least; then those of some
        others that were served little. Such as `admits` lets in. As with `pick`, `unpark` afterwards.
        """
        lane = self._lanes[priority]
        if lane.num_waiting:
            for request in (lane.pick_returning(admits), lane.pick_new(admits)):
                if request is not None:
                    yield request
            yield from lane.pick_others(admits)

    def pick(self, admits: Admits, closed: Collection[PriorityClass] = ()) -> Request | None:
        """The next request whose adapter `admits` lets in, of no class that is `closed`. Queued until taken.

        Tenants with no such request are set aside until `unpark`, so that they are looked at once per pass.
        """
        waiting = [lane for name, lane in self._lanes.items() if lane.num_waiting and name not in closed]
        waiting.sort(key=lambda lane: (lane.after_others, lane.served))  # stable: of equals, the higher class
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
        """Remove the request just picked: it is admitted.

        A FLEX request that is admitted in turn is not to make way for anybody: it has waited long enough.
        """
        lane = self._lanes[request.priority]
        if request.priority is FLEX and not lane.after_others:
            request.protected_until = request.limit
        self._floor = max(self._floor, lane.served)
        lane.take(request)
        lane.discard(request)

    def discard(self, request: Request) -> None:
        """Remove a waiting request that will not run."""
        self._lanes[request.priority].discard(request)

    def charge_prefill(self, request: Request, num_tokens: int) -> None:
        """Count prompt tokens that are to be computed for the request."""
        assert request.tenant_share is not None
        request.tenant_share.served += PREFILL_COST * num_tokens
        lane = self._lanes[request.priority]
        lane.served += PREFILL_COST * num_tokens / lane.weight

    def charge_load(self, request: Request, ref: AdapterRef) -> None:
        """Count an adapter that is brought into memory because the request, which waits, asked for it."""
        assert request.tenant_share is not None
        request.tenant_share.served += LOAD_COST_PER_RANK * ref.rank

    def charge_decode(self, requests: Iterable[Request]) -> None:
        """Count one generated token for each, to its tenant."""
        for request in requests:
            assert request.tenant_share is not None
            request.tenant_share.served += DECODE_COST

    def charge_rows(self, num_rows: Sequence[int]) -> None:
        """Count a step of so many rows of each class, in the order of the classes, to the classes."""
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
