"""Shares of tenants over several engines: real queues in virtual time, and the reports between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.gauges import MAX_SERVED
from engine.protocol import PriorityClass, TenantService
from engine.scheduling.fairness import FairQueue
from engine.scheduling.shared_service import MAX_FACTOR, VALID_S, SharedService
from routing.served_elsewhere import ServedElsewhere
from tests.engine.plain.arrivals import Arrivals, everyone
from tests.engine.plain.harness import Engine, submission
from tests.support.examples import examples

SERVED_S = 0.02
"""Every engine serves a request of one prompt token in that time."""
BEAT_S = 0.5
TURNS = 1500


class Saturated:
    """An engine at which some tenants always have a request waiting."""

    def __init__(self, cluster: Cluster, tenants: Mapping[str, PriorityClass]) -> None:
        self.queue = FairQueue()
        self.shared = SharedService(self.queue, lambda: cluster.now)
        self._arrivals = Arrivals()
        self.tenants = dict(tenants)
        for tenant in tenants:
            self._send(tenant)

    def _send(self, tenant: str) -> None:
        self.queue.push(self._arrivals.request(tenant, self.tenants[tenant]), 0.0)

    def serve(self) -> str:
        request = self.queue.pick(everyone)
        assert request is not None
        self._send(request.tenant)  # before the first is taken: it is never idle
        self.queue.take(request)
        self.queue.charge_prefill(request, 1)
        return request.tenant


class Cluster:
    """Engines, and API processes that carry what they say to one another."""

    def __init__(self, *tenants: str, num_api_processes: int = 1, connected: bool = True) -> None:
        """`tenants`: of each engine, a letter for each."""
        self.now = 100.0
        self.engines = [Saturated(self, dict.fromkeys(letters, PriorityClass.DEFAULT)) for letters in tenants]
        self._views = [ServedElsewhere() for _ in range(num_api_processes if connected else 0)]
        self._beat_at = self.now

    def run(self, seconds: float) -> dict[str, float]:
        """Returns each tenant's share of all that was served, as parts of one engine."""
        served: Counter[str] = Counter()
        end = self.now + seconds
        while self.now < end:
            self.now += SERVED_S
            for engine in self.engines:
                served[engine.serve()] += 1
            if self.now - self._beat_at >= BEAT_S:
                self._beat_at = self.now
                self._beat()
        return {tenant: count * SERVED_S / seconds for tenant, count in served.items()}

    def _beat(self) -> None:
        for number, engine in enumerate(self.engines):
            rates = engine.shared.rates()
            for view in self._views:
                view.report(str(number), rates)
                engine.shared.note_elsewhere(view.of(str(number)))


@pytest.mark.parametrize("num_api_processes", [1, 3])
def test_a_tenant_on_all_engines_gets_no_more_than_those_on_one(num_api_processes: int) -> None:
    apart = Cluster("ax", "bx", "cx", connected=False).run(20)
    assert apart == pytest.approx({"a": 0.5, "b": 0.5, "c": 0.5, "x": 1.5}, abs=0.02)
    cluster = Cluster("ax", "bx", "cx", num_api_processes=num_api_processes)
    cluster.run(20)
    assert cluster.run(40) == pytest.approx(dict.fromkeys("abcx", 0.75), rel=0.05)


def test_a_tenant_that_has_other_engines_leaves_a_crowded_one_to_those_without() -> None:
    cluster = Cluster("ax", "x", "x")
    cluster.run(20)
    shares = cluster.run(40)
    # x has two engines to itself, and keeps a tenth of the other's share on the first.
    assert shares["a"] == pytest.approx(MAX_FACTOR / (1 + MAX_FACTOR), abs=0.03)


def test_tenants_that_are_served_alike_everywhere_stay_equal() -> None:
    cluster = Cluster("abc", "abc", "abc")
    cluster.run(20)
    assert cluster.run(40) == pytest.approx(dict.fromkeys("abc", 1.0), rel=0.05)


def test_one_engine_alone_is_as_before() -> None:
    assert Cluster("abc").run(30) == pytest.approx(dict.fromkeys("abc", 1 / 3), abs=0.01)


def test_what_was_served_elsewhere_is_forgotten_when_the_other_engines_end() -> None:
    cluster = Cluster("ax", "x", "x")
    cluster.run(30)
    for gone in ("1", "2"):
        for view in cluster._views:
            view.leave(gone)
    del cluster.engines[1:]
    cluster.run(3)
    assert cluster.run(20) == pytest.approx({"a": 0.5, "x": 0.5}, abs=0.05)


@settings(max_examples=examples(20), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "unknown"]), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=4,
    )
)
def test_whatever_is_reported_nobody_is_left_without_its_smallest_share(
    reports: list[tuple[str, float]],
) -> None:
    cluster = Cluster("abc", connected=False)
    (engine,) = cluster.engines
    rates = [TenantService(tenant, "default", rate) for tenant, rate in reports]
    rates.append(TenantService("a", "a class of a later release", 1e9))
    served: Counter[str] = Counter()
    for turn in range(TURNS):
        cluster.now += SERVED_S
        served[engine.serve()] += 1
        if turn % 25 == 0:
            engine.shared.rates()
            engine.shared.note_elsewhere(rates)
    assert min(served[tenant] for tenant in "abc") >= TURNS / (2 * MAX_FACTOR + 1) * 0.9


def test_a_report_that_is_not_renewed_counts_no_more() -> None:
    cluster = Cluster("ax", connected=False)
    (engine,) = cluster.engines
    cluster.run(5)
    engine.shared.rates()
    engine.shared.note_elsewhere([TenantService("x", "default", 1e9)])
    tenant = engine.queue.tenants(PriorityClass.DEFAULT)["x"]
    assert tenant.cost_factor > 5
    cluster.now += VALID_S - 0.1
    engine.shared.rates()
    assert tenant.cost_factor > 5
    cluster.now += 1.1
    engine.shared.rates()
    assert tenant.cost_factor == 1.0


def test_a_heartbeat_names_the_tenants_that_are_served_most() -> None:
    names = [f"t{number}" for number in range(MAX_SERVED + 40)]
    cluster = Cluster(connected=False)
    engine = Saturated(cluster, dict.fromkeys(names, PriorityClass.DEFAULT))
    for _ in range(2 * len(names)):
        engine.serve()
    for request in list(engine.queue)[:3]:
        engine.queue.charge_prefill(request, 100)
    cluster.now += 2.0
    rates = engine.shared.rates()
    assert len(rates) == MAX_SERVED
    assert [one.rate for one in rates[:4]] == pytest.approx([51.0, 51.0, 51.0, 1.0])
    assert engine.shared.rates() is rates, "measured once a second"


def test_rows_are_not_preempted_for_a_tenant_that_other_engines_serve() -> None:
    """A tenant with few rows takes one from a tenant with many, but for those that it has elsewhere."""
    engine = Engine(max_rows=4, num_blocks=400)
    ended: Counter[str] = Counter()

    def ask(tenant: str) -> None:
        assert (
            engine.submit(submission(f"{tenant}-{len(engine.submitted)}", [1, 2, 3], 8, tenant=tenant))
            is None
        )

    for _ in range(10):
        ask("narrow")
        ask("wide")
    wide = engine.core.scheduler.queue.tenants(PriorityClass.DEFAULT)["wide"]
    wide.set_cost_factor(MAX_FACTOR)
    for _ in range(600):
        for finished, _ in engine.step().finished:
            tenant = finished.request_id.split("-")[0]
            ended[tenant] += 1
            ask(tenant)
    assert ended["narrow"] == pytest.approx(MAX_FACTOR * ended["wide"], rel=0.15)
