"""Predicted waits and shedding as arithmetic: a queue that the test fills, and paces that it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.protocol import PriorityClass
from engine.request import Request
from engine.scheduling.fairness import FairQueue
from engine.scheduling.overload import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, LoadShedder
from engine.scheduling.validation import EngineLimits
from tests.engine.plain.arrivals import Arrivals
from tests.engine.plain.harness import submission

PRIORITY, DEFAULT, FLEX = PriorityClass


class Site:
    """Ten rows, all of them taken by DEFAULT requests of one tenant, each for ten seconds: one comes free
    every second. Prompts are computed at 1000 tokens a second.
    """

    def __init__(self, **limits: Any) -> None:
        self.arrivals = Arrivals()
        self.queue = FairQueue()
        self.running = SimpleNamespace(
            requests=[None] * 10, num_rows=[0, 10, 0], num_tenants=[0, 1, 0], max_rows=10
        )
        self.timing = SimpleNamespace(row_seconds=10.0, prompt_rate=1000.0, now=0.0)
        self.bound = SimpleNamespace(num_open_rows=0)
        self.limits = EngineLimits(
            **{"context_length": 4096, "vocab_size": 64, "max_batch_tokens": 64, "max_rows": 10, **limits}
        )
        self.load_shedder = LoadShedder(self.limits, self.queue, self.running, self.timing, self.bound)  # type: ignore[arg-type]

    def wait_in_queue(
        self, number: int, priority: PriorityClass = DEFAULT, tenant: str = "", prompt_len: int = 1
    ) -> list[Request]:
        """Of tenants of their own unless told."""
        requests = [
            self.arrivals.request(tenant or f"{priority}-{each}", priority, prompt_len=prompt_len)
            for each in range(number)
        ]
        for request in requests:
            self.queue.push(request, self.timing.now)
        return requests

    def wait(self, priority: PriorityClass = DEFAULT, tenant: str = "new", **request: int) -> float:
        return self.load_shedder.predicted_wait(priority, tenant, **request)

    def refusal(self, priority: PriorityClass = DEFAULT, **fields: Any) -> str | None:
        refused = self.load_shedder.rejection(
            submission("new", [1], priority=priority, tenant="new", **fields)
        )
        return None if refused is None else refused.message


@pytest.fixture
def site() -> Site:
    return Site()


def test_rows_are_waited_for_at_the_pace_at_which_they_come_free(site: Site) -> None:
    """Of ten running requests of one tenant a new one may claim its share, which is five."""
    assert site.wait() == 0.0
    site.running.num_tenants[1] = 10
    assert site.wait() == pytest.approx(1 - 10 / 11)
    site.wait_in_queue(5)
    assert site.wait() == pytest.approx(6 - 10 / 11)
    assert site.wait(num_choices=4) == pytest.approx(9 - 10 / 11)


def test_rows_that_are_free_are_not_waited_for_unless_blocks_are_short(site: Site) -> None:
    site.wait_in_queue(20)
    site.running.num_tenants[1] = 10
    before = site.wait()
    site.bound.num_open_rows = 3
    assert site.wait() == pytest.approx(before - 3)
    site.load_shedder.is_short_of_blocks = True
    assert site.wait() == pytest.approx(before)


def test_rows_of_lower_classes_are_not_waited_for(site: Site) -> None:
    site.running.num_rows, site.running.num_tenants = [0, 4, 6], [0, 4, 6]
    site.wait_in_queue(20)
    assert site.wait() == pytest.approx(21 - 6 - 4 / 5)
    site.wait_in_queue(20, PRIORITY)
    ahead = site.load_shedder._work_ahead(PRIORITY, "new", 1, 1)
    assert ahead.rows == 21 - 10
    site.queue.priority_is_ahead = True
    assert site.load_shedder._work_ahead(PRIORITY, "new", 1, 1).rows == 21 - 6, "DEFAULT need not make way"


def test_classes_that_wait_share_the_pace_by_weight(site: Site) -> None:
    site.running.num_tenants[1] = 10
    site.wait_in_queue(10)
    alone = site.wait()
    site.wait_in_queue(100, PRIORITY)
    assert site.wait() == pytest.approx(alone * 20 / 4), "four of 20 parts are its own"
    assert site.load_shedder._throughput_share(PRIORITY) == pytest.approx(16 / 20)
    assert site.load_shedder._throughput_share(FLEX) == 1.0


def test_no_class_waits_for_more_than_all_that_waits(site: Site) -> None:
    site.running.num_tenants[1] = 10
    site.wait_in_queue(100)
    alone = site.wait()
    site.wait_in_queue(10, PRIORITY)
    assert site.wait() == pytest.approx(alone + 10)


def test_flex_waits_for_all_of_the_others(site: Site) -> None:
    site.wait_in_queue(7, DEFAULT, prompt_len=200)
    site.wait_in_queue(3, PRIORITY, prompt_len=200)
    site.wait_in_queue(2, FLEX)
    assert site.wait(FLEX) == pytest.approx(2 + 1 + 10)
    site.timing.row_seconds = None
    assert site.wait(FLEX) == pytest.approx((2 + 1 + 10 * 200) / 1000)


def test_flex_waits_at_least_as_long_as_one_that_waits_already(site: Site) -> None:
    site.bound.num_open_rows = 10
    site.wait_in_queue(1, FLEX)
    site.timing.now = 25.0
    assert site.wait(FLEX) == 25.0
    assert site.wait(DEFAULT) == 0.0


def test_requests_that_return_go_before_all_others(site: Site) -> None:
    site.running.num_tenants[1] = 10
    before = site.wait()
    for request in (site.arrivals.request("gone"), site.arrivals.request("gone")):
        site.queue.push_returning(request, 0.0)
    assert site.wait() == pytest.approx(before + 2)


def test_tenants_take_turns(site: Site) -> None:
    """One with three of its own waits for three of each other's, as far as they have so many, and its own."""
    site.running.num_tenants[1] = 10
    for tenant in "abc":
        site.wait_in_queue(9, tenant=tenant)
    of_new = site.load_shedder._work_ahead(DEFAULT, "new", 1, 1)
    assert of_new.rows == pytest.approx(3 + 1 - 10 / 11)
    assert site.load_shedder._work_ahead(DEFAULT, "a", 1, 1).rows == 27 + 1


def test_prompts_are_waited_for_at_the_pace_at_which_they_are_computed(site: Site) -> None:
    site.timing.row_seconds = None
    site.wait_in_queue(4, prompt_len=500)
    assert site.wait(num_tokens=100) == pytest.approx(2.1)
    assert Site().wait(num_tokens=64) == 0.0, "it fits into a step"


def test_a_request_is_refused_whose_wait_is_longer_than_its_target() -> None:
    site = Site(ttft_targets={DEFAULT: 5.0})
    site.running.num_tenants[1] = 10
    site.wait_in_queue(5)
    assert site.refusal() is not None
    assert "exceeds the 5 s limit" in (site.refusal() or "")
    assert site.refusal(ttft_target=6.0) is None, "its own target counts"
    assert site.refusal(ttft_target=2.0) is not None


def test_a_lower_class_is_refused_once_a_higher_waits_for_a_quarter_of_its_target() -> None:
    site = Site(ttft_targets={PRIORITY: 40.0})
    site.wait_in_queue(19, PRIORITY)
    assert site.wait(PRIORITY) == 10.0
    assert site.refusal() is None
    site.wait_in_queue(1, PRIORITY, tenant="one-more")
    assert "estimated wait of priority requests (11.0 s) exceeds" in (site.refusal() or "")
    assert site.refusal(PRIORITY) is None, "not for its own sake"


@pytest.mark.parametrize(("priority", "room"), [(PRIORITY, 16), (DEFAULT, 14), (FLEX, 8)])
def test_the_queue_is_kept_for_the_higher_classes(priority: PriorityClass, room: int) -> None:
    site = Site(max_waiting=16)
    site.wait_in_queue(room - 2, priority)
    fits = submission("new", [1], priority=priority, n=2)
    assert site.load_shedder.rejection_if_full(fits) is None
    assert site.load_shedder.rejection_if_full(submission("new", [1], priority=priority, n=3)) is not None
    site.wait_in_queue(1, priority, tenant="one-more")
    assert site.load_shedder.rejection_if_full(fits) is not None, "choices count"


def test_the_lowest_class_leaves_a_full_queue_first(site: Site) -> None:
    default, flex = site.wait_in_queue(2), site.wait_in_queue(2, FLEX)
    assert site.load_shedder.request_to_displace(submission("new", [1], priority=PRIORITY)) in flex
    for request in flex:
        site.queue.discard(request)
    assert site.load_shedder.request_to_displace(submission("new", [1], priority=PRIORITY)) in default


def test_of_its_own_class_only_who_has_more_waiting_leaves(site: Site) -> None:
    greedy = site.wait_in_queue(4, tenant="greedy")
    site.wait_in_queue(2, tenant="small")
    displaced = site.load_shedder.request_to_displace
    assert displaced(submission("new", [1], tenant="small")) is greedy[-1]
    assert displaced(submission("new", [1], tenant="small", n=2)) is None, "it would have as many"
    assert displaced(submission("new", [1], tenant="greedy")) is None


def test_a_time_to_try_again_is_neither_too_short_nor_too_long() -> None:
    site = Site(max_waiting=1)
    site.queue.push(site.arrivals.request("a"), 0.0)
    refused = site.load_shedder.rejection_if_full(submission("new", [1]))
    assert refused is not None
    assert refused.retry_after == MIN_RETRY_SECONDS
    site.timing.row_seconds = 1e6
    site.running.num_tenants[1] = 10
    refused = site.load_shedder.rejection_if_full(submission("new", [1]))
    assert refused is not None
    assert refused.retry_after == MAX_RETRY_SECONDS
