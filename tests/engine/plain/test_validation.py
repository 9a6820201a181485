"""What is refused at the door: each reason once by hand, and then anything at all."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.protocol import AdapterRef, PriorityClass, SamplingParams, Submit
from engine.scheduling.validation import MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_BYTES, MAX_STOPS, EngineLimits
from tests.engine.plain.harness import VOCAB_SIZE, Engine, adapter, submission
from tests.support.examples import examples

INVALID: list[tuple[str, dict[str, Any]]] = [
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": -1}),
    ("min_tokens", {"min_tokens": -1}),
    ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": math.nan}),
    ("temperature", {"temperature": math.inf}),
    ("top_k", {"top_k": -1}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.1}),
    ("top_p", {"top_p": math.nan}),
    ("min_p", {"min_p": -0.1}),
    ("min_p", {"min_p": 1.5}),
    ("presence_penalty", {"presence_penalty": math.nan}),
    ("frequency_penalty", {"frequency_penalty": -math.inf}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("repetition_penalty", {"repetition_penalty": math.inf}),
    ("logit_bias", {"logit_bias": {VOCAB_SIZE: 1.0}}),
    ("logit_bias", {"logit_bias": {-1: 1.0}}),
    ("logit_bias", {"logit_bias": {1: math.nan}}),
    ("stop", {"stop": ("",)}),
    ("stop", {"stop": ("x",) * (MAX_STOPS + 1)}),
    ("stop", {"stop": ("x" * (MAX_STOP_BYTES + 1),)}),
    ("stop", {"stop": ("\ud800",)}),
    ("stop_token_ids", {"stop_token_ids": (VOCAB_SIZE,)}),
    ("stop_token_ids", {"stop_token_ids": (-1,)}),
    ("stop_token_ids", {"stop_token_ids": (1,) * (MAX_STOPS + 1)}),
    ("logprobs", {"logprobs": -1}),
    ("logprobs", {"logprobs": MAX_LOGPROBS + 1}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("prompt_logprobs", {"prompt_logprobs": MAX_LOGPROBS + 1, "max_tokens": 0}),
    ("max_tokens", {"prompt_logprobs": 0, "max_tokens": -1}),
    ("score_from", {"prompt_logprobs": 0, "score_from": 0}),
    ("score_from", {"prompt_logprobs": 0, "score_from": 3}),
    ("score_from", {"score_from": 2}),
    ("n ", {"n": 0}),
    ("n ", {"n": MAX_CHOICES + 1}),
    ("n ", {"n": 10**6}),
    ("tenant", {"tenant": ""}),
    ("adapter.digest", {"adapter": AdapterRef("../../etc/passwd", 8)}),
    ("adapter.digest", {"adapter": AdapterRef("A" * 64, 8)}),
]


@pytest.mark.parametrize(("field", "fields"), INVALID)
def test_a_value_out_of_range_is_refused_by_name(field: str, fields: dict[str, Any]) -> None:
    engine = Engine()
    rejected = engine.submit(submission("r", [1, 2], **fields))
    assert rejected is not None
    assert (rejected.request_id, rejected.code) == ("r", "invalid")
    assert rejected.message.startswith(field)
    assert not engine.core.has_work
    assert engine.core.stats.rejected == 1


@pytest.mark.parametrize("prompt_ids", [[], [VOCAB_SIZE], [-1], [1, 2**62]])
def test_a_prompt_of_no_or_unknown_tokens_is_refused(prompt_ids: list[int]) -> None:
    rejected = Engine().submit(submission("r", prompt_ids))
    assert rejected is not None
    assert rejected.code == "invalid"
    assert rejected.message.startswith("prompt_ids")


@pytest.mark.parametrize(
    "changes", [{"request_id": ""}, {"request_id": "r" * 300}, {"submitted_at": math.nan}]
)
def test_an_envelope_the_ledger_could_not_key_is_refused(changes: dict[str, Any]) -> None:
    rejected = Engine().submit(msgspec.structs.replace(submission("r", [1]), **changes))
    assert rejected is not None
    assert rejected.code == "invalid"
    assert rejected.message.startswith(next(iter(changes)))


@pytest.mark.parametrize("prompt_len", [64, 65, 1000])
def test_a_prompt_that_fills_the_context_is_refused(prompt_len: int) -> None:
    rejected = Engine(context_length=64).submit(submission("r", [1] * prompt_len))
    assert rejected is not None
    assert rejected.code == "context_length_exceeded"
    assert "64" in rejected.message
    assert str(prompt_len) in rejected.message


def test_the_longest_prompt_yields_one_token() -> None:
    engine = Engine(context_length=64)
    engine.submit(submission("r", [1] * 63, max_tokens=1000))
    engine.run()
    engine.check_idle()
    assert len(engine.tokens("r")) == 1
    assert engine.reason("r") == "length"


def test_the_longest_prompt_can_be_scored() -> None:
    engine = Engine(context_length=64)
    assert engine.submit(submission("long", [1] * 64, max_tokens=0, prompt_logprobs=0)) is not None
    assert engine.submit(submission("r", [1] * 63, max_tokens=0, prompt_logprobs=0)) is None
    engine.run()
    assert len(engine.scores["r"]) == 62


def test_max_tokens_past_the_context_ends_at_the_context() -> None:
    engine = Engine(context_length=32)
    engine.submit(submission("r", [1] * 20, max_tokens=10**9))
    engine.run()
    assert len(engine.tokens("r")) == 12


def test_what_does_not_fit_into_all_blocks_is_refused_and_what_just_fits_runs() -> None:
    engine = Engine(num_blocks=6, block_size=4, context_length=64)
    rejected = engine.submit(submission("big", [1] * 10, max_tokens=12))
    assert rejected is not None
    assert rejected.code == "context_length_exceeded"
    assert "20 tokens" in rejected.message
    assert engine.submit(submission("fits", [1] * 10, max_tokens=11)) is None
    engine.run()
    engine.check_idle()
    assert len(engine.tokens("fits")) == 11


def test_an_engine_without_slots_refuses_adapters() -> None:
    rejected = Engine(num_slots=0).submit(submission("r", [1], adapter=adapter("a")))
    assert rejected is not None
    assert rejected.code == "adapter_unavailable"


def test_an_id_in_use_is_refused_and_can_be_used_again_later() -> None:
    engine = Engine()
    assert engine.core.submit(submission("r", [1])) is None
    rejected = engine.core.submit(submission("r", [2]))
    assert rejected is not None
    assert rejected.code == "duplicate"
    engine.run()
    assert engine.core.submit(submission("r", [1])) is None


def test_a_full_queue_sheds_the_lower_classes_first() -> None:
    engine = Engine(max_waiting=16)

    def fill(priority: PriorityClass) -> int:
        count = 0
        while engine.submit(submission(f"{priority}{count}", [1], priority=priority)) is None:
            count += 1
        rejected = engine.core.submit(submission("last", [1], priority=priority))
        assert rejected is not None
        assert rejected.code == "overloaded"
        assert priority.value in rejected.message
        return count

    # FLEX makes way for the others: they have the places up to which the queue takes their class.
    assert [fill(priority) for priority in reversed(PriorityClass)] == [8, 14, 16]
    assert engine.submit(submission("many", [1], priority=PriorityClass.PRIORITY, n=2)) is not None
    engine.run()
    engine.check_idle()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context_length", 0),
        ("vocab_size", 0),
        ("max_rows", 0),
        ("max_waiting", 0),
        ("slot_patience_s", -1.0),
    ],
)
def test_limits_that_make_no_sense_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        EngineLimits(**{"context_length": 64, "vocab_size": 10, field: value})


def test_a_token_budget_below_the_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="max_batch_tokens"):
        EngineLimits(context_length=64, vocab_size=10, max_batch_tokens=8, max_rows=9)


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 70)
floats = st.floats() | st.sampled_from([0.0, 0.5, 1.0])
anything = st.builds(
    Submit,
    request_id=st.text(max_size=4),
    tenant=st.text(max_size=3),
    prompt_ids=st.lists(integers, max_size=4) | st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=70),
    sampling=st.builds(
        SamplingParams,
        max_tokens=integers,
        temperature=floats,
        top_k=integers,
        top_p=floats,
        min_p=floats,
        presence_penalty=floats,
        frequency_penalty=floats,
        repetition_penalty=floats,
        logit_bias=st.dictionaries(integers, floats, max_size=2),
        seed=st.none() | integers,
        min_tokens=integers | st.just(0),
        stop=st.lists(st.text(max_size=3), max_size=2).map(tuple),
        stop_token_ids=st.lists(integers, max_size=2).map(tuple),
        ignore_eos=st.booleans(),
        logprobs=st.none() | integers,
    ),
    adapter=st.none()
    | st.builds(AdapterRef, digest=st.text(max_size=70), rank=integers)
    | st.just(adapter("a")),
    priority=st.sampled_from(PriorityClass),
    n=integers | st.just(1),
    labels=st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=2),
    submitted_at=floats,
)


def sane(submit: Submit, data: st.DataObject) -> Submit:
    """Put a few of its fields right, so that some get past the door."""
    good = submission("r", [1, 2, 3], 5)
    broken = data.draw(st.sets(st.sampled_from(SamplingParams.__struct_fields__), max_size=2))
    sampling = msgspec.structs.replace(
        good.sampling, **{name: getattr(submit.sampling, name) for name in broken}
    )
    wild = data.draw(st.sets(st.sampled_from(["prompt_ids", "tenant", "adapter", "n", "labels"]), max_size=1))
    return msgspec.structs.replace(good, sampling=sampling, **{name: getattr(submit, name) for name in wild})


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(submit=anything, data=st.data())
def test_no_submit_crashes_the_engine(submit: Submit, data: st.DataObject) -> None:
    engine = Engine(num_blocks=40)
    if data.draw(st.booleans()):
        submit = sane(submit, data)
    msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=Submit)  # could have come over the wire
    rejected = engine.submit(submit)
    engine.submit(submission("witness", [5, 6], 3))
    engine.run()
    engine.check_idle()
    assert (rejected is None) == (
        submit.request_id in engine.finished and submit.request_id in engine.submitted
    )
    assert len(engine.tokens("witness")) == 3
