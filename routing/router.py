"""Chooses the replica that runs a request: where its adapter is, else where its prompt's prefix is, else
where it waits least.

An adapter's requests go to its homes (`placement`), so that few replicas load it and each serves requests on
many adapters from memory. Of several homes, the one that last served the session or computed the prompt's
prefix is preferred, then the one with the shorter wait. Requests on the base go where their session or prefix
is, else to the less loaded of two replicas chosen at random.

The first choice is passed over when it is late: when its expected wait exceeds that of another by more than
it costs to load the adapter or to compute the prefix there. A replica that has many more requests than the
mean also counts as late, before requests wait there: popular adapters are not spread evenly, each further row
makes its steps longer, and one that is full delays the tenants that it serves most (consistent hashing with
bounded loads, arXiv 1608.01350, bounds the same for caches). Others that are looked at are the next home and
two replicas at random, never all: a choice costs the same among three replicas and among a thousand.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from routing.demand import AdapterDemand
from routing.placement import Placement
from routing.prefixes import PIECE_TOKENS, PrefixMap, prefix_keys, session_key
from routing.views import (
    FIXED_TOKENS,
    LATENCY_HALF_LIFE,
    TRIED_AFTER,
    DecayingMean,
    ReplicaReport,
    ReplicaView,
)

Reason = Literal["adapter", "prefix", "session", "wait", "spill", "only"]
"""Why a replica was chosen: it is a home of the adapter, has the prompt's prefix, served the session before,
has the shortest wait, is less late than the first choice, or is the only one."""

LATE_SECONDS = 0.25
"""By which the first choice may be later than another without being passed over."""
LOADS_PER_SPILL = 2.0
"""What loading an adapter elsewhere costs, in loads: it is likely to evict another one there."""
SLOW_FACTOR = 4.0
"""What each second counts for that a slow replica loses: later requests lose it, too."""
CROWDED_RATIO = 1.1
"""Occupancy relative to the mean of all replicas from which on a replica counts as crowded."""
UNCROWDED = 0.5
"""Occupancy up to which it does not, however few requests the others have."""
CROWDED_SECONDS = 3.0
"""What a batch's worth of requests beyond that counts for."""
HOMES_COMPARED = 4
"""Homes of one adapter that are looked at for one request."""
OTHERS_COMPARED = 2
MAX_SCALE = 64.0


class NoReplica(Exception):
    """No replica takes requests."""


@dataclass(frozen=True, slots=True)
class RoutingQuery:
    """A request, as far as it matters to where it runs."""

    tenant: str
    priority: str = "default"
    adapter: str | None = None
    """Digest of its adapter; None: the base."""
    prompt_ids: Sequence[int] = ()
    prefixes: tuple[int, ...] | None = None
    """Keys of the prompt's prefixes (`prefix_keys`); None: they are computed from `prompt_ids`."""
    num_tokens: int | None = None
    """Of the prompt; None: the number of `prompt_ids`."""
    session: str | None = None
    """Names requests that belong together, as the tenant does."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The replica that was chosen. Pass it to `first_token` and `ended` later."""

    replica: str
    reason: Reason
    adapter: str | None
    expected_wait: float
    """Seconds for other requests, when it was chosen."""
    num_tokens: int
    """Prompt tokens that are not expected in the replica's cache."""
    routed_at: float
    may_load: bool
    """The adapter may not be loaded yet: the request waits for that, also if an earlier one began it."""
    preload: tuple[str, ...] = ()
    """Other homes of the adapter, which should load it now: its demand has grown. They get requests on it
    once they report that they hold it."""
    tried: bool = False
    """The replica was slow, and this request shows whether it still is."""


@dataclass(slots=True)
class _Sticky:
    """The replica that a request's session or prefix points to."""

    view: ReplicaView
    reason: Literal["session", "prefix"]
    cached_tokens: int


class Router:
    """Routes the requests of one process. Pure computation: the caller passes the time, in seconds of any
    clock that does not go backwards.
    """

    def __init__(self, seed: int | None = None) -> None:
        """`seed`: makes random choices repeatable."""
        self.demand = AdapterDemand()
        self.placement = Placement(self.demand)
        self.prefixes = PrefixMap()
        self._random = random.Random(seed)
        self._views: dict[str, ReplicaView] = {}
        # The same, for choices at random.
        self._available: list[ReplicaView] = []
        self._latency = DecayingMean(LATENCY_HALF_LIFE)
        self._turn = 0
        """Requests routed so far."""
        self._num_open = 0
        self._rows_taken = 0
        """As all replicas have reported."""
        self._rows_total = 0

    # What is known of replicas -----------------------------------------------------------------------------

    def view(self, name: str) -> ReplicaView | None:
        """Returns what is known of a replica; None if it takes no requests."""
        return self._views.get(name)

    @property
    def num_available(self) -> int:
        """Replicas that may be chosen."""
        return len(self._available)

    def join(self, name: str, now: float, weight: float = 1.0) -> None:
        """Adds a replica that takes requests from now on, or one that has restarted. Raises ValueError for a
        weight that is not positive.
        """
        self.leave(name)
        self.placement.join(name, weight)
        view = self._views[name] = ReplicaView(name, now)
        view.last_turn = self._turn
        self._count_rows(view.report, 1)
        self._available.append(view)

    def leave(self, name: str) -> None:
        """Removes a replica: it is gone, or drains. Unknown names are ignored."""
        view = self._views.pop(name, None)
        if view is None:
            return
        self._count_rows(view.report, -1)
        # Those that stay are not to look slow beside one that is gone: what comes in its place would get all.
        self._latency.forget(view.latency)
        self.placement.leave(name)
        self._available = [other for other in self._available if other is not view]

    def report(self, name: str, report: ReplicaReport, now: float) -> None:
        """Takes a replica's report. One that drains leaves; the report of one that has left is ignored."""
        view = self._views.get(name)
        if view is None:
            return
        if report.draining:
            self.leave(name)
            return
        self._count_rows(view.report, -1)
        self._count_rows(report, 1)
        view.take(report, now)
        self.demand.rows_per_replica = report.rows_total
        self.demand.scale = min(MAX_SCALE, max(1.0, self._rows_taken / max(1, self._num_open)))

    def _count_rows(self, report: ReplicaReport, sign: int) -> None:
        self._rows_taken += sign * report.rows_taken
        self._rows_total += sign * report.rows_total

    # Requests ----------------------------------------------------------------------------------------------

    def choose(self, query: RoutingQuery, now: float) -> Choice:
        """Returns the replica for a request, and counts it there. Raises NoReplica."""
        if not self._available:
            raise NoReplica("no replica takes requests")
        keys = query.prefixes
        if keys is None:
            keys = prefix_keys(query.tenant, query.adapter, query.prompt_ids)
        sticky: _Sticky | None = None
        reason: Reason
        if len(self._available) == 1:
            view, reason = self._available[0], "only"
        else:
            sticky = self._sticky(query, keys, now)
            view, reason = self._chosen(query, sticky, now)
        cached = sticky.cached_tokens if sticky is not None and sticky.view is view else 0
        num_tokens = max(0, _prompt_len(query) - cached)
        wait = view.expected_wait(query.priority, now)
        preload = self._preload(query.adapter, view, now)
        waits = query.adapter is not None and view.may_wait_for(query.adapter)
        tried = self._is_tried(view) and view.seconds_lost(self._latency, num_tokens, now) > 0.0
        choice = Choice(view.name, reason, query.adapter, wait, num_tokens, now, waits, preload, tried)
        self._turn += 1
        view.last_turn = self._turn
        view.routed(num_tokens, query.adapter, now)
        self.prefixes.learn(keys, view.name, now)
        if query.session is not None:
            key = session_key(query.tenant, query.adapter, query.session)
            self.prefixes.learn((key,), view.name, now)
        if query.adapter is not None:
            self.demand.began(query.adapter, now)
        self._num_open += 1
        return choice

    def first_token(self, choice: Choice, seconds: float, now: float) -> None:
        """Records that a request's first token came `seconds` after it was routed."""
        if choice.may_load:
            return  # how long a load takes, or the fetch before it, says nothing of the replica
        view = self._views.get(choice.replica)
        if view is not None and view.joined_at <= choice.routed_at:
            computing = max(0.0, seconds - choice.expected_wait)
            latency = computing / (FIXED_TOKENS + choice.num_tokens)
            view.answered(latency, self._latency, now, tried=choice.tried)

    def ended(self, choice: Choice, now: float) -> None:
        """Records that a request has ended, in whatever way. Call it once for each choice."""
        self._num_open -= 1
        view = self._views.get(choice.replica)
        if view is not None and view.joined_at <= choice.routed_at:
            view.ended()
        if choice.adapter is not None:
            self.demand.ended(choice.adapter, now)

    # Choosing ----------------------------------------------------------------------------------------------

    def _sticky(self, query: RoutingQuery, keys: Sequence[int], now: float) -> _Sticky | None:
        """Returns the replica that served the session, or computed the longest known prefix."""
        prefix = self.prefixes.find(keys, now)
        session = None
        if query.session is not None:
            key = session_key(query.tenant, query.adapter, query.session)
            session = self.prefixes.find((key,), now)
        by_prefix = self._used(prefix)
        by_session = self._used(session)
        cached = 0 if prefix is None or by_prefix is None else prefix[2] * PIECE_TOKENS
        if by_session is not None:
            return _Sticky(by_session, "session", cached if by_session is by_prefix else 0)
        return None if by_prefix is None else _Sticky(by_prefix, "prefix", cached)

    def _used(self, known: tuple[str, float, int] | None) -> ReplicaView | None:
        """Returns the replica of a known key, if it is available and has run since then."""
        if known is None:
            return None
        view = self._views.get(known[0])
        return view if view is not None and view.joined_at <= known[1] else None

    def _chosen(self, query: RoutingQuery, sticky: _Sticky | None, now: float) -> tuple[ReplicaView, Reason]:
        homes = self._homes(query.adapter)
        view, reason = self._first(query, homes, sticky, now)
        if reason == "wait":
            return view, reason
        own = self._wait(view, query, now) + self._crowding(view) + self._load_seconds(view, query.adapter)
        cached = sticky.cached_tokens if sticky is not None and sticky.view is view else 0
        best, best_wait = view, own
        for other in self._others(query.adapter, homes, view):
            wait = self._wait(other, query, now) + self._crowding(other) + LATE_SECONDS
            wait += other.compute_seconds(cached) + LOADS_PER_SPILL * self._load_seconds(other, query.adapter)
            if wait < best_wait:
                best, best_wait = other, wait
        return (view, reason) if best is view else (best, "spill")

    def _first(
        self, query: RoutingQuery, homes: Sequence[ReplicaView], sticky: _Sticky | None, now: float
    ) -> tuple[ReplicaView, Reason]:
        """Returns the replica that a request goes to unless it is late there."""
        adapter = query.adapter
        if adapter is None:
            if sticky is not None:
                return sticky.view, sticky.reason
            return min(self._sample(OTHERS_COMPARED), key=lambda one: self._wait(one, query, now)), "wait"
        if sticky is not None and (sticky.view in homes or sticky.view.holds(adapter)):
            return sticky.view, sticky.reason
        if len(homes) > HOMES_COMPARED:
            homes = self._random.sample(homes, HOMES_COMPARED)

        def lateness(home: ReplicaView) -> float:
            return self._wait(home, query, now) + self._load_seconds(home, adapter)

        return min(homes, key=lateness), "adapter"

    def _preload(self, adapter: str | None, chosen: ReplicaView, now: float) -> tuple[str, ...]:
        """Returns the homes that lack an adapter with several, except for the one that is chosen."""
        if adapter is None or self.placement.copies(adapter) < 2:
            return ()
        return tuple(
            home.name
            for home in self._homes(adapter)
            if home is not chosen and not home.holds(adapter) and home.begin_preload(adapter, now)
        )

    def _homes(self, adapter: str | None) -> list[ReplicaView]:
        if adapter is None:
            return []
        return [self._views[name] for name in self.placement.homes(adapter)]

    def _others(
        self, adapter: str | None, homes: Sequence[ReplicaView], first: ReplicaView
    ) -> Iterator[ReplicaView]:
        """Yields replicas that could take a request instead of `first`: homes, the next in the adapter's
        order, and some at random.
        """
        if adapter is not None:
            for name in self.placement.order(adapter, len(homes) + 1)[-HOMES_COMPARED:]:
                if name != first.name:
                    yield self._views[name]
        for other in self._sample(OTHERS_COMPARED):
            if other is not first:
                yield other

    def _sample(self, count: int) -> list[ReplicaView]:
        return self._random.sample(self._available, min(count, len(self._available)))

    def _wait(self, view: ReplicaView, query: RoutingQuery, now: float) -> float:
        """Returns the seconds that a request would wait there, with what a slow replica counts for."""
        tried = self._is_tried(view)
        lost = 0.0 if tried else view.seconds_lost(self._latency, _prompt_len(query), now)
        return view.cost(query.priority, now) + SLOW_FACTOR * lost

    def _is_tried(self, view: ReplicaView) -> bool:
        """Returns whether a replica, if it is slow, is due to be tried again."""
        return self._turn - view.last_turn >= TRIED_AFTER * (len(self._available) - 1)

    def _crowding(self, view: ReplicaView) -> float:
        """Returns the seconds that a replica with more requests than others counts for."""
        uncrowded = max(UNCROWDED, CROWDED_RATIO * self._rows_taken / max(1, self._rows_total))
        return CROWDED_SECONDS * max(0.0, view.occupancy - uncrowded)

    def _load_seconds(self, view: ReplicaView, adapter: str | None) -> float:
        return 0.0 if adapter is None or view.holds(adapter) else view.load_seconds


def _prompt_len(query: RoutingQuery) -> int:
    return len(query.prompt_ids) if query.num_tokens is None else query.num_tokens
