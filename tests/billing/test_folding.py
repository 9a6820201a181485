from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import MalformedEvent
from billing.folding import decode, fold, measure, merge
from billing.rates import RATE_LABEL
from engine.protocol import PriorityClass, UsageEvent
from tests.billing.strategies import histories
from tests.support.journal import NOW, usage_event


def test_a_row_says_what_the_event_says() -> None:
    row = measure(
        usage_event(
            "req-9",
            prompt=20,
            completion=7,
            cached=16,
            reasoning=5,
            n=2,
            scheduled_at=NOW + 0.25,
            first_token_at=NOW + 0.5,
            finished_at=NOW + 2,
            finish_reason="stop,length",
            adapter_digest="d" * 64,
            preemptions=3,
        )
    )
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (20, 16, 7)
    assert row.reasoning_tokens == 5
    assert (row.queue_seconds, row.first_token_seconds, row.total_seconds) == (0.25, 0.5, 2.0)
    assert (row.tenant_id, row.key_id, row.model) == ("tnt_a", "key_a", "sapling:pirate@1")
    assert (row.adapter_id, row.adapter_version, row.adapter_digest) == ("adp_a", 1, "d" * 64)
    assert (row.finish_reason, row.num_choices, row.preemptions) == ("stop,length", 2, 3)
    assert (row.endpoint, row.service_tier, row.engine_id) == ("chat.completions", "default", "engine-0")


def test_an_event_without_labels_is_billed_to_its_tenant_all_the_same() -> None:
    row = measure(usage_event(labels={}, priority=PriorityClass.FLEX))
    assert (row.tenant_id, row.key_id, row.model, row.adapter_id, row.adapter_version) == (
        "tnt_a",
        "",
        "",
        None,
        None,
    )
    assert row.service_tier == "flex"


def test_a_row_says_whose_it_is_and_what_it_pays() -> None:
    labels = {"project_id": "proj_a", "user_id": "usr_a", RATE_LABEL: "prc_1:4:3:5:175"}
    row = measure(usage_event(labels=labels))
    assert (row.project_id, row.user_id) == ("proj_a", "usr_a")
    assert (row.price_id, row.input_price, row.cached_input_price, row.output_price) == ("prc_1", 4, 3, 5)
    assert row.price_percent == 175
    free = measure(usage_event(labels={}))
    assert (free.project_id, free.user_id, free.price_id, free.output_price) == (None, None, "", 0)


@pytest.mark.parametrize(
    "rate",
    [
        "nothing",
        "prc_1:1:2:3",
        "prc_1:1:2:3:4:5",
        f"prc_1:1:2:{2 * 10**12 + 1}:100",
        "prc_1:1:2:3:10001",
        "\x00:1:2:3:4",
    ],
)
def test_a_rate_that_no_price_list_has_is_refused(rate: str) -> None:
    with pytest.raises(MalformedEvent, match=r"rate is|price_id"):
        measure(usage_event(labels={RATE_LABEL: rate}))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"prompt": -1}, "prompt_tokens"),
        ({"completion": -1}, "completion_tokens"),
        ({"completion": 2**63}, "completion_tokens"),
        ({"cached": 11}, "cached_tokens"),
        ({"cached": -1}, "cached_tokens"),
        ({"reasoning": 6}, "reasoning_tokens"),
        ({"reasoning": -1}, "reasoning_tokens"),
        ({"n": -1}, "n is"),
        ({"preemptions": 2**31}, "preemptions"),
        ({"submitted_at": math.nan}, "submitted_at"),
        ({"submitted_at": math.inf}, "submitted_at"),
        ({"submitted_at": 0.0}, "submitted_at"),
        ({"submitted_at": 1e300}, "submitted_at"),
        ({"recorded_at": -1.0}, "recorded_at"),
        ({"finished_at": math.inf}, "finished_at"),
        ({"tenant": ""}, "tenant is empty"),
        ({"tenant": "a\x00"}, "zero byte"),
        ({"request_id": "x" * 513}, "request_id has 513"),
        ({"labels": {"adapter_version": "one"}}, "adapter_version"),
        ({"labels": {"adapter_version": "٣"}}, "adapter_version"),
        ({"labels": {"model": "m\x00"}}, "model has a zero byte"),
    ],
)
def test_what_the_ledger_cannot_hold_is_malformed(changes: dict[str, Any], names: str) -> None:
    with pytest.raises(MalformedEvent, match=names):
        measure(usage_event(**changes))


@pytest.mark.parametrize(
    "payload",
    [None, b"", b"\xc1", b"null", msgspec.msgpack.encode({"request_id": 5}), msgspec.msgpack.encode([1, 2])],
)
def test_what_is_no_event_is_malformed(payload: bytes | None) -> None:
    with pytest.raises(MalformedEvent):
        decode(payload)


def test_a_newer_engine_may_say_more() -> None:
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(usage_event())) | {"invented_later": 1}
    assert decode(msgspec.msgpack.encode(document)) == usage_event()


def test_an_older_engine_counts_no_reasoning() -> None:
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(usage_event()))
    del document["usage"]["reasoning_tokens"]
    assert measure(decode(msgspec.msgpack.encode(document))).reasoning_tokens == 0


def test_clocks_that_disagree_make_no_negative_durations() -> None:
    assert measure(usage_event(scheduled_at=NOW - 1)).queue_seconds == 0.0


def test_a_row_has_the_largest_of_each_count() -> None:
    one = measure(usage_event(prompt=20, cached=4, completion=9, reasoning=6, preemptions=1))
    other = measure(
        usage_event(prompt=12, cached=11, completion=8, reasoning=7, preemptions=2, recorded_at=NOW + 5)
    )
    for merged in (merge(one, other), merge(other, one), *fold([one, other]), *fold([other, one])):
        assert (merged.prompt_tokens, merged.cached_tokens, merged.completion_tokens) == (20, 11, 9)
        assert merged.reasoning_tokens == 7
        assert (merged.preemptions, merged.recorded_at) == (2, NOW + 5)


def test_a_time_is_kept_to_the_microsecond() -> None:
    """As PostgreSQL keeps it: a request is known by it."""
    assert measure(usage_event(submitted_at=NOW + 0.123456)).submitted_at == NOW + 0.123456
    assert measure(usage_event(submitted_at=NOW + 0.1234564)).submitted_at == NOW + 0.123456


def test_durations_are_those_of_the_event_that_knows_them() -> None:
    begun = measure(usage_event(scheduled_at=NOW + 1))
    ended = measure(usage_event(first_token_at=NOW + 2, finished_at=NOW + 4, finish_reason="stop"))
    for merged in (merge(begun, ended), merge(ended, begun)):
        assert (merged.queue_seconds, merged.first_token_seconds, merged.total_seconds) == (1, 2, 4)
        assert merged.finish_reason == "stop"


def test_the_engines_own_reason_beats_that_of_its_restart() -> None:
    stopped = measure(usage_event(finish_reason="stop"))
    for restarted in ("error", "abort"):
        lost = measure(usage_event(finish_reason=restarted))
        assert merge(stopped, lost).finish_reason == merge(lost, stopped).finish_reason == "stop"


@given(histories(), st.randoms(use_true_random=False))
def test_order_and_duplicates_do_not_matter(events: list[UsageEvent], random: Any) -> None:
    rows = [measure(event) for event in events]
    shuffled = rows + random.choices(rows, k=len(rows))
    random.shuffle(shuffled)
    assert fold(shuffled) == fold(rows)


@given(histories(), st.randoms(use_true_random=False))
def test_folding_in_parts_is_folding_at_once(events: list[UsageEvent], random: Any) -> None:
    rows = [measure(event) for event in events]
    cut = random.randint(0, len(rows))
    assert fold(fold(rows[:cut]) + fold(rows[cut:])) == fold(rows)
