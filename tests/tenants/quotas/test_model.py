"""The scripts against a model in plain Python, and against what a limit promises, whatever happens when."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tenants.quotas import scripts
from tests.support.examples import examples
from tests.tenants.quotas.model import Cost, Model, Rule, window_of
from tests.tenants.quotas.scripted import Scripted

LIFETIME, SILENCE, GRACE = 60_000, 40_000, 20_000
STARTS = [
    int(datetime(*moment, tzinfo=UTC).timestamp() * 1000) + 1
    for moment in ((2026, 11, 30, 23, 58), (2027, 12, 31, 23, 59), (2028, 2, 28, 23, 59), (2028, 2, 29, 12))
]


@pytest.fixture(scope="module")
def client(redis_server: object) -> Iterator[redis.Redis]:
    made = redis.Redis.from_url(redis_server.url)  # type: ignore[attr-defined]
    yield made
    made.close()


def rules() -> st.SearchStrategy[list[Rule]]:
    tokens = st.sampled_from([7, 60, 1000])
    every = [
        st.builds(Rule, st.just("rpm"), st.just("rate"), st.just("requests"), st.sampled_from([0, 1, 3, 7])),
        st.builds(Rule, st.just("tpm"), st.just("rate"), st.just("tokens"), tokens),
        st.builds(Rule, st.just("otpm"), st.just("rate"), st.just("output"), tokens),
        st.builds(Rule, st.just("places"), st.just("held"), st.just("requests"), st.sampled_from([0, 1, 3])),
        st.builds(Rule, st.just("rpd"), st.just("day"), st.just("requests"), st.sampled_from([2, 9])),
        st.builds(
            Rule, st.just("tpm-month"), st.just("month"), st.just("tokens"), st.sampled_from([50, 900])
        ),
        st.builds(Rule, st.just("spend"), st.just("month"), st.just("spend"), st.sampled_from([5, 400])),
        st.builds(Rule, st.just("balance"), st.just("ever"), st.just("spend"), st.sampled_from([5, 400])),
        st.builds(Rule, st.just("contract:p"), st.just("contract"), st.just("tokens"), tokens),
    ]
    return st.sets(st.integers(0, len(every) - 1), min_size=1).flatmap(
        lambda chosen: st.tuples(*(every[number] for number in sorted(chosen))).map(list)
    )


COUNTS = st.integers(0, 5) | st.integers(0, 80)
COSTS = st.builds(Cost, st.just(1), COUNTS, COUNTS, COUNTS)
PASSES = st.sampled_from([0, 1, 7, 999, 8_571, 20_000, 59_999, 60_000, 61_000, 3_600_000, 86_400_000])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), COSTS, st.booleans()),
        st.tuples(st.just("reserve"), COSTS, st.booleans()),
        st.tuples(st.just("settle"), COSTS, st.integers(0, 99)),
        st.tuples(st.just("cancel"), st.just(Cost(0)), st.integers(0, 99)),
        st.tuples(st.just("die"), st.none(), st.integers(0, 99)),
        st.tuples(st.just("pass"), PASSES, st.none()),
        st.tuples(st.just("jump"), PASSES, st.none()),
        st.tuples(st.just("set back"), st.integers(1, 60_000), st.none()),
    ),
    max_size=40,
)


class Both:
    """The scripts and the model, told the same, compared after every step."""

    def __init__(self, client: redis.Redis, rules: list[Rule], seeds: dict[str, int], now: int) -> None:
        client.flushall()
        self.scripted = Scripted(client, rules, seeds)
        self.model = Model(rules, seeds)
        self.now = now
        self.deadlines: dict[str, int] = {}
        self.dead: set[str] = set()
        self.heard: tuple[int, int] | None = None
        self.serial = 0
        self.turn(0)

    def turn(self, ms: int) -> None:
        """Move the clock, renew what lives, sweep what does not."""
        self.now += ms
        self.scripted.set_clock(self.now)
        living = [name for name in self.deadlines if name not in self.dead]
        self.hear()
        assert self.scripted.renew(living) == []
        for name in living:
            self.deadlines[name] = self.now + LIFETIME
        self.scripted.sweep()
        self.expire()

    def hear(self) -> None:
        since, last = self.heard or (self.now, self.now)
        if self.now - last > SILENCE or self.now < since:
            since = self.now
        self.heard = since, self.now

    def expire(self) -> None:
        overdue = [name for name, deadline in self.deadlines.items() if deadline <= self.now]
        assert self.heard is not None
        if overdue and self.now - self.heard[0] >= GRACE:
            for name in overdue:
                self.model.expire(self.now, name)
                del self.deadlines[name]

    def step(self, what: str, value: object, choice: object) -> None:
        if what == "reserve":
            assert isinstance(value, Cost)
            likely = Cost(1, value.input, value.output // 2, 0) if choice else value
            name = f"r{self.serial}"
            self.serial += 1
            expected = self.model.reserve(self.now, name, value, likely)
            assert self.scripted.reserve(name, value, likely) == expected
            if expected == "taken":
                assert self.scripted.within == self.model.reservations[name].within
                self.deadlines[name] = self.now + LIFETIME
        elif what in ("settle", "cancel", "die"):
            unsettled = [n for n, r in self.model.reservations.items() if r.state != "settled"]
            if not unsettled:
                return
            assert isinstance(choice, int)
            name = unsettled[choice % len(unsettled)]
            if what == "die":
                self.dead.add(name)
                return
            assert isinstance(value, Cost)
            self.model.settle(self.now, name, value)
            assert self.scripted.settle(name, value) == 1
            assert self.scripted.settle(name, Cost(1, 9, 9, 9)) == 0, "it is settled once"
            self.deadlines.pop(name, None)
        else:
            assert isinstance(value, int)
            if what == "jump":
                self.turn(value)
            elif what == "set back":
                self.turn(-value)
            else:
                for _ in range(min(value // 10_000, 8)):
                    self.turn(10_000)
                self.turn(value - min(value // 10_000, 8) * 10_000)

    def compare(self) -> None:
        counts = {}
        for rule in self.model.rules:
            if rule.kind in ("rate", "contract"):
                counts[rule.name] = (math.ceil(self.model.rates[rule.name].level(self.now)), 0)
            elif rule.kind == "held":
                counts[rule.name] = (0, self.model.places[rule.name])
            else:
                window = self.model.windows.get(rule.name)
                gone = window is None or window.start < window_of(rule.kind, self.now)[0]
                counts[rule.name] = (0, 0) if window is None or gone else (window.used, window.held)
        names = [rule.name for rule in self.model.rules]
        assert dict(zip(names, self.scripted.state(), strict=True)) == counts


MODEL = settings(
    max_examples=examples(60),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@MODEL
@given(
    rules(),
    st.dictionaries(st.sampled_from(["rpd", "spend", "balance"]), st.integers(0, 4)),
    st.sampled_from(STARTS),
    STEPS,
)
def test_the_scripts_do_as_the_model(
    client: redis.Redis,
    rules: list[Rule],
    seeds: dict[str, int],
    start: int,
    steps: list[tuple[str, object, object]],
) -> None:
    """Several limits at once, all or nothing; bursts at the edges of minutes, days, months, of a leap year
    too; clocks set forth and back; processes that die; each settled once.
    """
    both = Both(client, rules, seeds, start)
    for step in steps:
        both.step(*step)
        both.compare()
    for name in [*both.deadlines]:
        both.step(
            "settle",
            Cost(),
            [n for n, r in both.model.reservations.items() if r.state != "settled"].index(name),
        )
    assert client.zcard("rootstock:quota:{tnt_1}:open") == 0
    held = [rule.name for rule in rules if rule.kind == "held"]
    assert all(both.model.places[name] == 0 for name in held)
    both.compare()


@MODEL
@given(
    st.sampled_from([1, 7, 60, 997]),
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 13, 500, 8_571, 30_000, 60_000]), st.integers(1, 60), st.integers(0, 3)
        ),
        min_size=1,
        max_size=40,
    ),
)
@example(60, [(0, 1, 0), (60_000, 54, 2), (0, 27, 0), (0, 7, 2)])  # one expires while the next one would wait
def test_never_more_than_the_burst_and_the_rate(
    client: redis.Redis, limit: int, steps: list[tuple[int, int, int]]
) -> None:
    """Over any stretch of time no more is used than the limit, and the limit's share of the stretch: also
    when more is reserved than used, and the rest returned at some later moment.
    """
    client.flushall()
    scripted = Scripted(client, [Rule("rpm", "rate", "tokens", limit)], {})
    now, used, open_ = STARTS[0], [], []
    for number, (passes, amount, how) in enumerate(steps):
        now += passes
        scripted.set_clock(now)
        cost = Cost(1, amount)
        if scripted.reserve(f"r{number}", cost, cost) == "taken":
            uses = [0, amount // 2, amount][how % 3]
            used.append((now, uses))
            open_.append((f"r{number}", uses))
        elif scripted.wait:
            # Truthful to the millisecond: not a moment earlier. What expires by then has not expired yet.
            with scripted.undone():
                scripted.set_clock(now + scripted.wait - 1)
                assert scripted.reserve(f"early{number}", cost, cost) == "limited"
        if how == 3 and open_:
            name, uses = open_.pop(0)
            scripted.settle(name, Cost(1, uses))
    for first, (begin, _) in enumerate(used):
        total = 0
        for end, amount in used[first:]:
            total += amount
            assert total <= limit + Fraction(end - begin, 60_000) * limit


def test_months_begin_and_end_as_calendars_say(client: redis.Redis) -> None:
    """A millisecond before and after every month's beginning, for a hundred and thirty years."""
    shared = Path(scripts.__file__).with_name("lua") / "shared.lua"
    text = (
        shared.read_text()
        + """
        local answer = {}
        for i = 1, #ARGV do
          local first, next = month_of(tonumber(ARGV[i]))
          answer[i] = string.format("%.0f %.0f", first, next)
        end
        return answer
    """
    )
    months = [datetime(year, month, 1, tzinfo=UTC) for year in range(1970, 2101) for month in range(1, 13)]
    beginnings = [int(month.timestamp()) * 1000 for month in months]
    moments = [begin + offset for begin in beginnings[1:-1] for offset in (-1, 0, 1)]
    spans = client.eval(text, 0, *moments)
    expected = []
    for before, begin, after in zip(beginnings, beginnings[1:], beginnings[2:], strict=False):
        expected += [f"{before} {begin}", f"{begin} {after}", f"{begin} {after}"]
    assert [span.decode() for span in spans] == expected


def test_a_wait_is_exact(client: redis.Redis) -> None:
    client.flushall()
    scripted = Scripted(client, [Rule("tpm", "rate", "tokens", 7)], {})
    scripted.set_clock(STARTS[0])
    assert scripted.reserve("a", Cost(1, 7), Cost(1, 7)) == "taken"
    assert scripted.reserve("b", Cost(1, 2), Cost(1, 2)) == "limited"
    assert scripted.wait == math.ceil(2 * 60_000 / 7)
    scripted.set_clock(STARTS[0] + scripted.wait - 1)
    assert scripted.reserve("c", Cost(1, 2), Cost(1, 2)) == "limited"
    scripted.set_clock(STARTS[0] + math.ceil(2 * 60_000 / 7))
    assert scripted.reserve("d", Cost(1, 2), Cost(1, 2)) == "taken"


def test_a_clock_set_back_by_hours_stops_nobody_for_longer_than_a_minute(client: redis.Redis) -> None:
    client.flushall()
    scripted = Scripted(client, [Rule("rpm", "rate", "requests", 1)], {})
    scripted.set_clock(STARTS[0])
    assert scripted.reserve("a", Cost(), Cost()) == "taken"
    scripted.set_clock(STARTS[0] - 7_200_000)
    assert scripted.reserve("b", Cost(), Cost()) == "limited"
    assert scripted.wait <= 60_000
    scripted.set_clock(STARTS[0] - 7_200_000 + scripted.wait)
    assert scripted.reserve("c", Cost(), Cost()) == "taken"


def test_a_list_of_prompts_is_settled_prompt_by_prompt(client: redis.Redis) -> None:
    client.flushall()
    both = [Rule("rpd", "day", "requests", 5), Rule("tpd", "day", "tokens", 100)]
    scripted = Scripted(client, both, {})
    scripted.set_clock(STARTS[0])
    assert scripted.reserve("a", Cost(1, 30, 30), Cost(1, 30, 30), parts=3) == "taken"
    assert scripted.settle_part("a", 1, Cost(1, 10, 1)) == 2
    assert scripted.settle_part("a", 1, Cost(1, 10, 1)) == 0, "the journal says it twice"
    assert scripted.settle_part("a", 0, Cost(1, 10, 2)) == 2
    assert scripted.state() == [(0, 1), (0, 60)], "until all are there, all is held"
    assert scripted.settle_part("a", 2, Cost(1, 10, 3)) == 1
    assert scripted.state() == [(1, 0), (36, 0)]
    assert scripted.settle("a", Cost(1, 30, 6)) == 0, "the API was slower"
    assert scripted.state() == [(1, 0), (36, 0)]


def test_prompts_that_end_after_the_reservation_expired_are_charged_once(client: redis.Redis) -> None:
    client.flushall()
    rules = [Rule("rpd", "day", "requests", 5), Rule("tpd", "day", "tokens", 100)]
    scripted = Scripted(client, rules, {})
    now = STARTS[-1]
    scripted.set_clock(now)
    scripted.sweep()
    assert scripted.reserve("a", Cost(1, 30, 30), Cost(1, 30, 30), parts=2) == "taken"
    assert scripted.settle_part("a", 0, Cost(1, 10, 2)) == 2
    for _ in range(7):
        now += 10_000
        scripted.set_clock(now)
        scripted.sweep()
    assert scripted.state() == [(1, 0), (12, 0)], "what was used is charged, the rest returned"
    assert scripted.settle_part("a", 1, Cost(1, 20, 7)) == 1
    assert scripted.state() == [(1, 0), (39, 0)]
    assert scripted.settle("a", Cost(1, 30, 9)) == 0


def test_renewing_names_what_is_not_there(client: redis.Redis) -> None:
    client.flushall()
    scripted = Scripted(client, [Rule("places", "held", "requests", 5)], {})
    scripted.set_clock(STARTS[0])
    scripted.reserve("a", Cost(), Cost())
    assert scripted.renew(["a", "b"]) == ["b"]


def test_an_id_reserves_once(client: redis.Redis) -> None:
    client.flushall()
    scripted = Scripted(client, [Rule("places", "held", "requests", 5)], {})
    scripted.set_clock(STARTS[0])
    assert scripted.reserve("a", Cost(), Cost()) == "taken"
    assert scripted.reserve("a", Cost(), Cost()) == "known"
    assert scripted.state() == [(0, 1)]
