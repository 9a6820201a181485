"""Whatever comes in whatever order: every request gets the tokens it would get alone, is billed for exactly
those, and nothing is held at the end."""

from __future__ import annotations

from random import Random

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from engine.protocol import PriorityClass, Submit
from tests.engine.plain.harness import VOCAB_SIZE, Engine, adapter, alone, scored_of, submission
from tests.support.examples import examples

ADAPTERS = [adapter(name) for name in "abcde"]
# Few distinct beginnings, so that prefixes are shared (or would be, were they not another tenant's).
BEGINNINGS = [[1] * 9, [1] * 5 + [2] * 8, [3] * 4]


@st.composite
def submissions(draw: st.DrawFn, request_id: str) -> Submit:
    prompt_ids = draw(st.sampled_from(BEGINNINGS)) + draw(
        st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=10)
    )
    scores = draw(st.sampled_from([None, None, 0, 2]))
    max_tokens = draw(st.integers(1 if scores is None else 0, 24))
    return submission(
        request_id,
        prompt_ids,
        max_tokens,
        tenant=draw(st.sampled_from(["acme", "bolt", "cog"])),
        adapter=draw(st.none() | st.sampled_from(ADAPTERS)),
        priority=draw(st.sampled_from(PriorityClass)),
        n=draw(st.integers(1, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.none() | st.integers(-5, 5)),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.integers(0, max_tokens)),
        stop=tuple(draw(st.lists(st.text("abc", min_size=1, max_size=2), max_size=2))),
        stop_token_ids=tuple(draw(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=2))),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        prompt_logprobs=scores,
        score_from=1 if scores is None else draw(st.integers(1, len(prompt_ids))),
    )


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    requests=st.lists(submissions("r"), min_size=1, max_size=12),
    num_blocks=st.integers(13, 30),
    num_slots=st.integers(1, 4),
    max_rows=st.integers(1, 8),
    max_batch_tokens=st.integers(8, 40),
    flex_wait_s=st.sampled_from([0.0, 5.0, 1000.0]),
    random=st.integers(0, 2**32).map(Random),
)
def test_any_load_is_served_as_if_each_were_alone(
    requests: list[Submit],
    num_blocks: int,
    num_slots: int,
    max_rows: int,
    max_batch_tokens: int,
    flex_wait_s: float,
    random: Random,
) -> None:
    engine = Engine(
        num_blocks=num_blocks,
        num_slots=num_slots,
        auto_load=False,
        max_rows=max_rows,
        max_batch_tokens=max_batch_tokens,
        max_flex_tokens=max_batch_tokens // 4,
        flex_wait_s=flex_wait_s,
        max_waiting=1000,
    )
    coming = [
        msgspec.structs.replace(submit, request_id=f"r{number}") for number, submit in enumerate(requests)
    ]
    aborted: set[str] = set()
    while coming or engine.core.has_work or engine.loads:
        action = random.random()
        if coming and action < 0.4:
            assert engine.submit(coming.pop()) is None
        elif engine.loads and (action < 0.5 or not engine.core.has_work):
            engine.finish_load()
        elif action < 0.52:
            engine.abort_one(random, aborted)
        else:
            engine.now += 1.0
            engine.step()
    engine.check_idle()
    assert not engine.rejected
    for submit in engine.submitted.values():
        check_answer(engine, submit, aborted)
    event("preempted" if engine.core.stats.preemptions else "never preempted")
    event(f"made way: {sorted(engine.core.stats.preempted)}")
    event("evicted" if engine.core.stats.adapter_evictions else "never evicted")
    event("cached" if engine.core.stats.cached_tokens else "nothing cached")


def check_answer(engine: Engine, submit: Submit, aborted: set[str]) -> None:
    scores = engine.scores[submit.request_id]
    if submit.request_id in aborted:
        assert scores == scored_of(submit)[: len(scores)]
    else:
        assert scores == scored_of(submit)
    for index in range(submit.n):
        tokens, reason, stop = alone(submit, index)
        given_tokens = engine.tokens(submit.request_id, index)
        last = engine.chunks[submit.request_id][index][-1]
        if last.finish_reason == "abort":
            assert submit.request_id in aborted
            assert given_tokens == tokens[: len(given_tokens)]
        else:
            assert given_tokens == tokens
            assert (last.finish_reason, last.stop) == (reason, stop)
        for chunk in engine.chunks[submit.request_id][index]:
            wants_logprobs = submit.sampling.logprobs is not None and chunk.token_ids
            assert (chunk.logprobs is not None) == bool(wants_logprobs)
            if chunk.logprobs is not None:
                assert [entry.token_id for entry in chunk.logprobs] == chunk.token_ids
