"""Which replica a request goes to, and why."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.prefixes import PIECE_TOKENS
from routing.router import Choice, NoReplica, Router, RoutingQuery
from routing.views import ReplicaReport

PROMPT = list(range(4 * PIECE_TOKENS))
ADAPTERS = [f"{number:064x}" for number in range(200)]


def router(num_replicas: int = 4, **report: object) -> Router:
    made = Router(seed=7)
    for number in range(num_replicas):
        made.join(f"engine-{number}", 0.0)
        made.report(f"engine-{number}", idle(**report), 0.0)
    return made


def idle(**fields: object) -> ReplicaReport:
    known: dict[str, object] = {
        "rows_total": 64,
        "prompt_rate": 10_000.0,
        "load_seconds": 0.5,
        "resident": set(),
    }
    return ReplicaReport(**(known | fields))  # type: ignore[arg-type]


def busy(**fields: object) -> ReplicaReport:
    """A full batch, and nothing waits."""
    return idle(**({"rows_taken": 64} | fields))


def late(seconds: float, **fields: object) -> ReplicaReport:
    waits = {"priority": seconds, "default": seconds, "flex": seconds}
    return busy(predicted_wait=waits, **fields)


def ask(made: Router, now: float = 1.0, **fields: object) -> Choice:
    """Chooses, and lets the request end at once."""
    choice = made.choose(RoutingQuery(**({"tenant": "t"} | fields)), now)  # type: ignore[arg-type]
    made.ended(choice, now)
    return choice


def test_without_replicas_there_is_no_choice() -> None:
    made = Router()
    with pytest.raises(NoReplica):
        made.choose(RoutingQuery("t"), 0.0)
    made.join("engine-0", 0.0)
    assert ask(made).reason == "only"
    made.report("engine-0", idle(draining=True), 1.0)
    with pytest.raises(NoReplica):
        made.choose(RoutingQuery("t"), 2.0)
    made.report("engine-0", idle(), 2.0)
    with pytest.raises(NoReplica):
        made.choose(RoutingQuery("t"), 3.0)


def test_an_adapters_requests_stay_at_its_home() -> None:
    made = router()
    for adapter in ADAPTERS:
        chosen = {ask(made, adapter=adapter, tenant=f"t{number}").replica for number in range(5)}
        assert chosen == set(made.placement.homes(adapter))
    assert ask(made, adapter=ADAPTERS[0]).reason == "adapter"


def test_a_home_that_is_late_is_passed_over_for_the_next() -> None:
    made = router(rows_taken=64)
    adapter = ADAPTERS[0]
    first, second = made.placement.order(adapter, 2)
    made.report(first, late(1.0, resident={adapter}), 1.0)
    assert ask(made, adapter=adapter).replica == first, "two loads elsewhere would take as long"
    made.report(first, late(3.0, resident={adapter}), 1.5)
    choice = ask(made, 1.6, adapter=adapter)
    assert choice.reason == "spill"
    made.report(second, busy(resident={adapter}), 1.7)
    assert ask(made, 1.8, adapter=adapter).replica == second, "it has the adapter now"


def test_a_home_with_many_more_requests_than_the_others_is_passed_over_before_they_wait() -> None:
    made = router(rows_taken=32, load_seconds=0.01)
    adapter = ADAPTERS[0]
    first = made.placement.homes(adapter)[0]
    made.report(first, idle(rows_taken=40, resident={adapter}), 1.0)
    assert ask(made, adapter=adapter).replica == first, "1.18 times the mean"
    made.report(first, idle(rows_taken=56, resident={adapter}), 1.0)
    assert ask(made, adapter=adapter).reason == "spill", "1.47 times the mean"
    for other in made.placement.order(adapter, 4)[1:]:
        made.report(other, idle(rows_taken=56, load_seconds=0.01), 1.0)
    assert ask(made, 3.0, adapter=adapter).replica == first, "all have as many"


def test_a_home_that_is_half_empty_keeps_its_requests_however_idle_the_others_are() -> None:
    made = router(8, load_seconds=0.01)
    home = made.placement.homes(ADAPTERS[0])[0]
    made.report(home, idle(rows_taken=32, resident=set(ADAPTERS)), 1.0)
    assert ask(made, adapter=ADAPTERS[0]).replica == home


def test_an_adapter_in_demand_is_spread_over_its_homes() -> None:
    made = router(8)
    adapter = ADAPTERS[0]
    now = 0.0
    running: list[Choice] = []
    loaded: set[str] = set()
    for _ in range(300):  # 48 open requests, of 64 rows a replica: three copies
        now += 0.5
        choice = made.choose(RoutingQuery("t", adapter=adapter), now)
        running.append(choice)
        assert choice.replica in loaded or not loaded, "no request waits for the load of a copy"
        loaded |= {choice.replica, *choice.preload}
        if len(running) > 48:
            made.ended(running.pop(0), now)
        for number in range(8):
            name = f"engine-{number}"
            own = sum(choice.replica == name for choice in running)
            resident = {adapter} if name in loaded else set()
            made.report(name, idle(rows_taken=own, resident=resident), now)
    homes = made.placement.homes(adapter)
    assert len(homes) == 3
    counts = Counter(choice.replica for choice in running)
    assert set(counts) == set(homes)
    assert min(counts.values()) > 8


def test_a_prefix_leads_to_the_replica_that_computed_it() -> None:
    made = router(8)
    first = ask(made, prompt_ids=PROMPT)
    assert first.reason == "wait"
    assert first.num_tokens == len(PROMPT)
    longer = ask(made, prompt_ids=[*PROMPT, *range(100)])
    assert (longer.replica, longer.reason, longer.num_tokens) == (first.replica, "prefix", 100)
    others = Counter(ask(made, prompt_ids=PROMPT, tenant=f"other-{number}").reason for number in range(20))
    assert others == {"wait": 20}, "another tenant's prefix is none"


def test_a_prefix_is_computed_again_where_that_is_sooner() -> None:
    made = router(2, rows_taken=64)
    first = ask(made, prompt_ids=PROMPT).replica
    for _ in range(2):  # the second has seen what the first may have missed
        made.report(first, late(0.1), 1.0)
    assert ask(made, prompt_ids=PROMPT).replica == first, "0.1 s to compute it, 0.25 s of patience"
    made.report(first, late(3.0), 2.0)
    choice = ask(made, 2.0, prompt_ids=PROMPT)
    assert (choice.replica == first, choice.reason) == (False, "spill")


def test_a_long_prefix_is_worth_a_longer_wait() -> None:
    made = router(2, rows_taken=64)
    long = list(range(40 * PIECE_TOKENS))
    first = ask(made, prompt_ids=long).replica
    made.report(first, late(0.6), 1.0)
    assert ask(made, prompt_ids=long).replica == first, "1 s to compute it elsewhere"


def test_a_restarted_replica_has_no_prefixes() -> None:
    made = router(2)
    first = ask(made, 1.0, prompt_ids=PROMPT).replica
    made.join(first, 5.0)
    assert ask(made, 6.0, prompt_ids=PROMPT).reason == "wait"


def test_a_session_stays_where_it_is() -> None:
    made = router(8)
    first = ask(made, session="s")
    again = [ask(made, session="s") for _ in range(10)]
    assert {(choice.replica, choice.reason) for choice in again} == {(first.replica, "session")}
    made.leave(first.replica)
    assert ask(made, session="s").replica != first.replica


def test_a_session_does_not_take_an_adapter_from_its_home() -> None:
    made = router(8)
    adapter = ADAPTERS[3]
    home = made.placement.homes(adapter)[0]
    for number in range(20):
        assert ask(made, adapter=adapter, session=f"s{number}").replica == home


def test_a_session_returns_to_the_adapters_home_when_where_it_was_has_lost_the_adapter() -> None:
    made = router(8, rows_taken=64)
    adapter = ADAPTERS[3]
    home = made.placement.homes(adapter)[0]
    made.report(home, late(9.0), 1.0)
    elsewhere = ask(made, adapter=adapter, session="s").replica
    assert elsewhere != home
    made.report(home, busy(resident={adapter}), 5.0)
    made.report(elsewhere, busy(resident={adapter}), 5.0)
    assert ask(made, 5.0, adapter=adapter, session="s").replica == elsewhere
    made.report(elsewhere, busy(load_seconds=0.01), 9.0)  # to load it again there would be soon done
    assert ask(made, 9.0, adapter=adapter, session="s").replica == home


def test_idle_replicas_share_requests_on_the_base() -> None:
    made = router(8)
    counts = Counter(made.choose(RoutingQuery(f"t{number}"), 1.0).replica for number in range(400))
    assert set(counts.values()) <= set(range(40, 61)), "two at random, the less loaded"


def test_a_slow_replica_gets_less() -> None:
    """It reports nothing unusual, but its first tokens take five times as long."""
    made = router(3)
    now = 0.0
    counts: Counter[str] = Counter()
    for number in range(600):
        now += 0.05
        choice = made.choose(RoutingQuery(f"t{number}"), now)
        made.first_token(choice, 1.0 if choice.replica == "engine-1" else 0.2, now)
        made.ended(choice, now)
        if number >= 100:
            counts[choice.replica] += 1
        if number % 10 == 0:
            for name in ("engine-0", "engine-1", "engine-2"):
                made.report(name, idle(), now)
    assert counts["engine-1"] < 25, counts
    for number in range(100):  # it has recovered: nothing else is known after some minutes
        now += 5.0
        made.ended(made.choose(RoutingQuery(f"u{number}"), now), now)
        for name in ("engine-0", "engine-1", "engine-2"):
            made.report(name, idle(), now)
    assert Counter(ask(made, now, tenant=f"v{number}").replica for number in range(90))["engine-1"] > 15


@pytest.mark.parametrize("num_replicas", [2, 3, 8, 64])
def test_a_slow_replica_is_tried_again_and_soon_used_once_it_has_recovered(num_replicas: int) -> None:
    """Ten requests a second for each, open for two seconds; for half a minute one replica's first tokens take
    five times as long.
    """
    made = router(num_replicas)
    names = [f"engine-{number}" for number in range(num_replicas)]
    first_tokens: list[tuple[float, int, Choice, float]] = []
    ends: list[tuple[float, int, Choice]] = []
    shares: list[Counter[str]] = [Counter() for _ in range(6)]
    """Of ten seconds each."""
    rate = 10 * num_replicas
    for number in range(rate * 60):
        now = number / rate
        while ends and ends[0][0] <= now:
            at, _, choice = heappop(ends)
            made.ended(choice, at)
        while first_tokens and first_tokens[0][0] <= now:
            at, _, choice, seconds = heappop(first_tokens)
            made.first_token(choice, seconds, at)
        choice = made.choose(RoutingQuery(f"t{number}"), now)
        seconds = 1.0 if choice.replica == "engine-1" and now < 30.0 else 0.2
        heappush(first_tokens, (now + seconds, number, choice, seconds))
        heappush(ends, (now + seconds + 2.0, number, choice))
        shares[int(now // 10)][choice.replica] += 1
        if number % (rate // 2) == 0:
            for name in names:
                view = made.view(name)
                assert view is not None
                made.report(name, idle(rows_taken=view.num_open), now)
    for while_slow in shares[1:3]:
        assert 1 <= while_slow["engine-1"] <= 10, "of a hundred that are its share"
    for recovered in shares[4:]:
        assert recovered["engine-1"] > 70


def test_an_idle_replica_is_not_slow_beside_one_with_many_requests() -> None:
    """Both answer at once: many requests make later tokens slower, and nothing has to wait for them."""
    made = router(2)
    session = next(
        f"s{number}" for number in range(20) if ask(made, session=f"s{number}").replica == "engine-0"
    )
    made.report("engine-0", idle(rows_taken=28), 1.0)
    for number in range(20):
        for query in (RoutingQuery("t", session=session), RoutingQuery(f"u{number}")):
            choice = made.choose(query, 1.0)
            assert choice.replica == ("engine-1" if query.session is None else "engine-0")
            made.first_token(choice, 0.1, 1.0)
            made.ended(choice, 1.0)


def test_neither_an_expected_wait_nor_a_restart_makes_a_replica_slow() -> None:
    made = router(1)
    made.report("engine-0", late(2.0), 0.0)
    choice = made.choose(RoutingQuery("t", prompt_ids=[1] * 488), 1.0)
    made.first_token(choice, choice.expected_wait + 0.5, 4.0)
    view = made.view("engine-0")
    assert view is not None
    assert view.latency.total == pytest.approx(0.5 / 1000)
    choice = made.choose(RoutingQuery("t"), 5.0)
    made.join("engine-0", 6.0)
    made.first_token(choice, 60.0, 65.0)
    view = made.view("engine-0")
    assert view is not None
    assert not view.latency.weight, "it was another process that answered, or none"


def test_a_replica_is_not_slow_beside_what_one_took_before_it_restarted() -> None:
    made = router(2)
    for number in range(40):
        query = RoutingQuery("t", prompt_ids=[number] * 600)
        choice = made.choose(query, 1.0)
        made.first_token(choice, 1.0 if choice.replica == "engine-0" else 0.2, 1.0)
        made.ended(choice, 1.0)
    asked = [RoutingQuery("t", prompt_ids=[1000 + number] * 600) for number in range(16)]
    before = Counter(made.choose(query, 2.0).replica for query in asked)
    assert before["engine-1"] > 12, "it takes a fifth of the other's time"
    made.join("engine-1", 3.0)
    made.report("engine-1", idle(), 3.0)
    made.report("engine-0", idle(), 3.0)
    after = Counter(made.choose(query, 3.0).replica for query in asked)
    assert min(after["engine-0"], after["engine-1"]) >= 4


def test_a_replica_that_loads_adapters_is_not_slow_for_that() -> None:
    made = router(2)
    home = made.placement.homes(ADAPTERS[0])[0]
    own = [adapter for adapter in ADAPTERS if made.placement.homes(adapter)[0] == home]
    for number, adapter in enumerate(own[:30]):
        choice = made.choose(RoutingQuery("t", adapter=adapter), 1.0)
        assert choice.may_load
        made.first_token(choice, 9.0, 1.0)
        made.ended(choice, 1.0)
        base = made.choose(RoutingQuery(f"t{number}"), 1.0)
        made.first_token(base, 0.1, 1.0)
        made.ended(base, 1.0)
    assert Counter(ask(made, tenant=f"u{number}").replica for number in range(40))[home] > 10


def test_nor_for_requests_that_wait_for_a_load_that_another_began() -> None:
    """As long as an adapter is fetched or loaded, no report names it, and all requests on it wait."""
    made = router(2)
    adapter = ADAPTERS[0]
    home = made.placement.homes(adapter)[0]
    for number in range(30):
        choice = made.choose(RoutingQuery(f"t{number}", adapter=adapter), 1.0)
        assert choice.replica == home
        made.first_token(choice, 9.0, 1.0)
        made.ended(choice, 1.0)
        base = made.choose(RoutingQuery(f"u{number}"), 1.0)
        made.first_token(base, 0.1, 1.0)
        made.ended(base, 1.0)
    assert Counter(ask(made, tenant=f"v{number}").replica for number in range(40))[home] > 10


def test_few_replicas_are_looked_at_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = router(1000)
    looked = Counter[int]()
    original = Router._wait

    def counting(self: Router, view, query, now):  # type: ignore[no-untyped-def]
        looked[id(query)] += 1
        return original(self, view, query, now)

    monkeypatch.setattr(Router, "_wait", counting)
    queries = [RoutingQuery("t", adapter=adapter, prompt_ids=PROMPT, session="s") for adapter in ADAPTERS]
    for query in queries:
        made.choose(query, 1.0)
    assert max(looked.values()) <= 12


@given(st.data())
def test_choices_are_available_replicas_and_memory_is_given_back(data: st.DataObject) -> None:
    made = Router(seed=1)
    live: set[str] = set()
    running: list[Choice] = []
    now = 0.0
    for _ in range(data.draw(st.integers(0, 60))):
        now += 0.25
        name = f"engine-{data.draw(st.integers(0, 4))}"
        step = data.draw(st.sampled_from(["join", "leave", "report", "drain", "ask", "ask", "ask", "end"]))
        if step == "join":
            made.join(name, now)
            live.add(name)
        elif step == "leave":
            made.leave(name)
            live.discard(name)
        elif step == "report":
            made.report(name, late(data.draw(st.floats(0, 5)), resident=None), now)
        elif step == "drain":
            made.report(name, idle(draining=True), now)
            live.discard(name)
        elif step == "end" and running:
            choice = running.pop()
            made.first_token(choice, 0.1, now)
            made.ended(choice, now)
        elif step == "ask":
            query = RoutingQuery(
                "t",
                adapter=data.draw(st.sampled_from([None, *ADAPTERS[:3]])),
                prompt_ids=PROMPT[: data.draw(st.sampled_from([10, 300, 1000]))],
                session=data.draw(st.sampled_from([None, "s"])),
            )
            if not live:
                with pytest.raises(NoReplica):
                    made.choose(query, now)
                continue
            choice = made.choose(query, now)
            running.append(choice)
            assert choice.replica in live
            assert (choice.reason == "only") == (len(live) == 1)
    assert made.num_available == len(live)
    assert set(made.placement.live) == live
    for choice in running:
        made.ended(choice, now)
    assert made._num_open == 0
