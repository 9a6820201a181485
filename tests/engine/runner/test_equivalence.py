"""One request, one answer: batched, chunked, preempted or cached, on whatever mix of adapters."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model.loading import load_model
from engine.model.model import Model
from engine.protocol import SamplingParams, Submit
from tests.engine.runner.bases import VOCAB_SIZE, Adapter, write_adapters, write_base
from tests.engine.runner.rig import make_core, run
from tests.support.arithmetic import arithmetic_threads
from tests.support.examples import examples

NAMES = (None, "small", "wide", "mlp", "mixed")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> tuple[Model, Path, dict[str, Adapter]]:
    path = tmp_path_factory.mktemp("base")
    write_base(path / "base")
    adapters = write_adapters(path / "base", path / "adapters")
    return load_model(path / "base"), path / "adapters" / "packed", adapters


def submits(adapters: dict[str, Adapter], num: int, seed: int, max_tokens: int = 12) -> list[Submit]:
    """Requests of all kinds: base and adapters, greedy and drawn, short and long, some sharing a prefix."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCAB_SIZE) for _ in range(40)]
    found = []
    for index in range(num):
        prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 40))]
        if rng.random() < 0.4:
            prompt = shared[: rng.randint(16, 40)] + prompt[:8]
        sampling = rng.choice(
            [
                SamplingParams(max_tokens, temperature=0.0, ignore_eos=True),
                SamplingParams(max_tokens, temperature=0.8, seed=rng.randrange(2**40), ignore_eos=True),
                SamplingParams(max_tokens, top_p=0.8, top_k=30, seed=rng.randrange(9), ignore_eos=True),
                SamplingParams(
                    max_tokens, temperature=0.9, seed=3, repetition_penalty=1.3, presence_penalty=0.5
                ),
                SamplingParams(max_tokens, temperature=0.0, frequency_penalty=1.0, logit_bias={5: 4.0}),
                SamplingParams(max_tokens, min_tokens=6, seed=5, stop_token_ids=(9, 11, 50), logprobs=2),
            ]
        )
        name = rng.choice(NAMES)
        adapter = adapters[name].ref if name else None
        found.append(
            Submit(f"r{index}", f"tenant-{index % 2}", prompt, sampling, adapter, n=rng.choice([1, 1, 2]))
        )
    return found


def one_by_one(model: Model, artifacts: Path, requests: list[Submit]) -> dict[tuple[str, int], list[int]]:
    alone = {}
    for request in requests:
        alone |= run(make_core(model, artifacts), [request]).tokens()
    return alone


def test_batched_chunked_preempted_and_cached_answers_are_those_given_alone(base):
    model, artifacts, adapters = base
    requests = submits(adapters, 14, seed=1)
    alone = one_by_one(model, artifacts, requests)
    assert len({tuple(tokens) for tokens in alone.values()}) > 10, "answers that differ prove something"

    batched = run(make_core(model, artifacts), requests)
    assert batched.tokens() == alone

    chunked = run(make_core(model, artifacts, max_batch_tokens=16), requests)
    assert chunked.tokens() == alone

    # Blocks for two or three requests: the others are preempted over and over.
    starved = run(make_core(model, artifacts, num_blocks=9), requests)
    assert starved.tokens() == alone
    assert starved.core.stats.preemptions > 0

    core = make_core(model, artifacts)
    run(core, requests)
    again = run(core, requests)
    assert again.tokens() == alone
    assert core.stats.cached_tokens > 0
    assert any(event.usage.cached_tokens for event in again.usage.values())

    # Three slots for four adapters: they take turns.
    swapped = run(make_core(model, artifacts, num_slots=2), requests, every=2)
    assert swapped.tokens() == alone
    assert swapped.core.stats.adapter_evictions > 0


@settings(
    max_examples=examples(12),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 10**6),
    num=st.integers(1, 10),
    every=st.integers(0, 3),
    max_rows=st.integers(1, 12),
    budget=st.integers(12, 80),
    num_blocks=st.integers(8, 40),
    num_slots=st.integers(1, 5),
)
def test_any_schedule_gives_the_same_answers(base, seed, num, every, max_rows, budget, num_blocks, num_slots):
    model, artifacts, adapters = base
    requests = submits(adapters, num, seed, max_tokens=8)
    core = make_core(
        model,
        artifacts,
        max_rows=max_rows,
        max_batch_tokens=budget,
        num_blocks=num_blocks,
        num_slots=num_slots,
    )
    assert run(core, requests, every=every).tokens() == one_by_one(model, artifacts, requests)


def test_logprobs_are_the_same_in_any_batch(base):
    model, artifacts, adapters = base
    sampling = SamplingParams(6, temperature=0.0, logprobs=3, ignore_eos=True)
    requests = [
        Submit(f"r{i}", "t", list(range(3, 12 + 5 * i)), sampling, adapters[name].ref if name else None)
        for i, name in enumerate(NAMES)
    ]
    together = run(make_core(model, artifacts), requests).answers
    for request in requests:
        key = (request.request_id, 0)
        alone = run(make_core(model, artifacts), [request]).answers[key]
        assert [logprob.token_id for logprob in alone.logprobs] == alone.token_ids
        assert together[key].logprobs == alone.logprobs
        # Greedy: the token chosen is the likeliest, and so is its log-probability.
        assert all(logprob.top[0].logprob == logprob.logprob for logprob in alone.logprobs)
