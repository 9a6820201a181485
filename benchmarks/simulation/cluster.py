"""Runs a cluster in virtual time: arrivals, heartbeats, ends of requests, failures and restarts, in order.

Routers are API processes: a request goes to each of them in turn. An engine's heartbeat reaches all of them.
A router learns of a failed engine after `detect_s`; what it sends there until then is lost, as is what the
engine had: an engine that dies ends its streams. A restarted engine begins with empty slots and caches.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.simulation.figures import FirstTokens, described
from benchmarks.simulation.policies import Policy
from benchmarks.simulation.replica import FluidReplica
from benchmarks.simulation.traffic import SimulatedRequest, Traffic

DUE, REPORT, FIRST_TOKEN, FAIL, DETECT, RETURN = range(6)


@dataclass(frozen=True, slots=True)
class Failure:
    """Replicas that die at the same time, and return."""

    name: str
    at: float
    replicas: tuple[int, ...]
    restart_s: float


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How a run goes."""

    seconds: float
    warm_up_s: float
    """Left out of the figures: slots and caches fill."""
    report_s: float = 0.5
    """Between two heartbeats of an engine."""
    detect_s: float = 1.0
    failures: tuple[Failure, ...] = ()


class Cluster:
    """Replicas, and the routers before them."""

    def __init__(
        self, replicas: Sequence[FluidReplica], routers: Sequence[Policy], options: ClusterOptions
    ) -> None:
        self._replicas = {replica.name: replica for replica in replicas}
        self._order = list(replicas)
        self._routers = routers
        self._options = options
        self._events: list[tuple[float, int, int, Any]] = []
        self._number = 0
        # By the number of a request: the router that sent it, and what that is given when it ends.
        self._open: dict[int, tuple[Policy, object]] = {}
        self.first_tokens = FirstTokens(options.seconds)
        self.completed = self.lost = self.output_tokens = 0
        self._counted: dict[str, int] = {}

    def run(self, traffic: Traffic) -> dict[str, Any]:
        """Serves the traffic, and returns figures of what came after the warm-up."""
        options = self._options
        began = time.process_time()
        self._prepare()
        handlers: dict[int, Callable[[Any, float], None]] = {
            DUE: self._due, REPORT: self._report, FIRST_TOKEN: self._first_token,
            FAIL: self._fail, DETECT: self._detect, RETURN: self._return,
        }  # fmt: skip
        events = self._events
        num_routed = 0
        warm = False
        for request in traffic.until(options.seconds):
            while events and events[0][0] <= request.at:
                now, _, kind, value = heapq.heappop(events)
                handlers[kind](value, now)
            if not warm and request.at >= options.warm_up_s:
                self._begin_counting()
                warm = True
            self._route(request, self._routers[num_routed % len(self._routers)])
            num_routed += 1
        return self._figures(num_routed, time.process_time() - began)

    def _prepare(self) -> None:
        options = self._options
        for place, replica in enumerate(self._order):
            for router in self._routers:
                router.join(replica, 0.0)
            # Heartbeats are spread over their interval.
            self._at(options.report_s * (place + 1) / len(self._order), REPORT, replica)
        for failure in options.failures:
            self._at(failure.at, FAIL, failure)

    def _begin_counting(self) -> None:
        self._counted = self._totals()
        self.completed = self.lost = self.output_tokens = 0

    def _totals(self) -> dict[str, int]:
        names = ("loads", "reads", "evictions", "cached_tokens", "prompt_tokens")
        return {name: sum(getattr(replica, name) for replica in self._order) for name in names}

    # Requests ----------------------------------------------------------------------------------------------

    def _route(self, request: SimulatedRequest, router: Policy) -> None:
        now = request.at
        name, token = router.choose(request, now)
        replica = self._replicas[name]
        if not replica.is_up:
            self.lost += 1
            router.ended(token, now)
            return
        self._open[request.number] = router, token
        replica.submit(request, now)
        self._follow(replica, now)

    def _follow(self, replica: FluidReplica, now: float) -> None:
        """Schedules what comes next in a replica, unless something earlier is scheduled already."""
        for request, first_token in replica.take_starts():
            self.first_tokens.add(request.at, first_token - request.at)
            self._at(first_token, FIRST_TOKEN, (request.number, request.at))
        due = replica.next_due()
        if due < replica.next_event:
            replica.next_event = due
            self._at(max(due, now), DUE, (replica, due))

    def _due(self, value: tuple[FluidReplica, float], now: float) -> None:
        replica, due = value
        if replica.next_event != due:
            return  # something earlier came first
        replica.next_event = float("inf")
        for request in replica.run_until(now):
            router, token = self._open.pop(request.number)
            router.ended(token, now)
            self.completed += 1
            self.output_tokens += request.output_len
        self._follow(replica, now)

    def _first_token(self, value: tuple[int, float], now: float) -> None:
        known = self._open.get(value[0])
        if known is not None:
            known[0].first_token(known[1], now - value[1], now)

    def _report(self, replica: FluidReplica, now: float) -> None:
        if replica.is_up:
            for router in self._routers:
                router.report(replica, now)
        self._at(now + self._options.report_s, REPORT, replica)

    # Failures ----------------------------------------------------------------------------------------------

    def _fail(self, failure: Failure, now: float) -> None:
        for place in failure.replicas:
            replica = self._order[place]
            replica.is_up = False
            replica.next_event = float("inf")
            for request in replica.clear():
                router, token = self._open.pop(request.number)
                router.ended(token, now)
                self.lost += 1
        self._at(now + self._options.detect_s, DETECT, failure)
        self._at(now + failure.restart_s, RETURN, failure)

    def _detect(self, failure: Failure, now: float) -> None:
        for place in failure.replicas:
            for router in self._routers:
                router.leave(self._order[place])

    def _return(self, failure: Failure, now: float) -> None:
        for place in failure.replicas:
            replica = self._order[place]
            replica.is_up = True
            for router in self._routers:
                router.join(replica, now)

    def _at(self, when: float, kind: int, value: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, kind, value))

    # Figures -----------------------------------------------------------------------------------------------

    def _figures(self, num_routed: int, cpu_s: float) -> dict[str, Any]:
        options = self._options
        begin, end = options.warm_up_s, options.seconds
        counted = {name: value - self._counted.get(name, 0) for name, value in self._totals().items()}
        prompts, cached = counted.pop("prompt_tokens"), counted.pop("cached_tokens")
        quiet_end = min([failure.at for failure in options.failures], default=end)
        return described(
            {
                "requests": num_routed,
                "completed": self.completed,
                "lost": self.lost,
                "output_tok_s": self.output_tokens / (end - begin),
                "ttft_ms": {
                    "p50": self.first_tokens.quantile_ms(0.5, begin, quiet_end),
                    "p99": self.first_tokens.quantile_ms(0.99, begin, quiet_end),
                },
                "adapter_loads": counted["loads"],
                "adapter_reads": counted["reads"],
                "evictions": counted["evictions"],
                "cached_prompt_share": cached / max(1, prompts),
                "failures": [self._recovery(failure) for failure in options.failures],
                "cpu_s": cpu_s,
            }
        )

    def _recovery(self, failure: Failure) -> dict[str, Any]:
        end = min([other.at for other in self._options.failures if other.at > failure.at], default=None)
        until = self._options.seconds if end is None else end
        return {
            "name": failure.name,
            "replicas": len(failure.replicas),
            "ttft_p99_ms_after": self.first_tokens.quantile_ms(0.99, failure.at, until),
            "recovery_s": self.first_tokens.recovery_seconds(failure.at, until),
        }
