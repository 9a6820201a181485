"""Prompts computed on one engine and decoded on another: the tokens are those of one engine."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from adapters.packing import pack
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.weights import base_digest
from engine.prefill import link
from engine.protocol import AdapterRef, SamplingParams, Submit
from engine.transport.curve import KeyPair
from examples.sapling import ADAPTERS, BASE, tokens
from tests.engine.prefill.pair import FORMAT, pair
from tests.engine.runner.bases import VOCAB_SIZE, Adapter, write_adapters, write_base
from tests.engine.runner.rig import make_core, run
from tests.support.arithmetic import arithmetic_threads

GREEDY = SamplingParams(8, temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(8, temperature=0.8, seed=11, ignore_eos=True)
SIZES = {"context_length": 256, "num_blocks": 128}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path, dict[str, Adapter]]:
    path = tmp_path_factory.mktemp("base")
    write_base(path / "base")
    adapters = write_adapters(path / "base", path / "adapters")
    return load_model(path / "base"), path / "adapters" / "packed", adapters


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return "tcp://127.0.0.1:*"


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(length)]


def request(
    name: str,
    prompt_ids: list[int],
    sampling: SamplingParams = GREEDY,
    adapter: AdapterRef | None = None,
    n: int = 1,
) -> Submit:
    return Submit(name, "acme", prompt_ids, sampling, adapter, n=n)


def test_tokens_are_those_of_one_engine_with_adapters_chunks_choices_and_short_prompts_beside(base, endpoint):
    model, artifacts, adapters = base
    submits = [
        request("greedy", prompt(100, 1)),
        request("drawn", prompt(97, 2), SEEDED),
        request("small", prompt(100, 1), SEEDED, adapters["small"].ref),
        request("wide", prompt(64, 3), GREEDY, adapters["wide"].ref),
        request("twice", prompt(130, 4), SEEDED, adapters["mlp"].ref, n=2),
        request("short", prompt(20, 5)),
    ]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill={**SIZES, "max_batch_tokens": 48}) as both:
        both.run(submits)
        assert both.tokens == alone.tokens()
        assert both.fetched == 5
        assert not both.fallbacks
        assert both.prefill.exporter is not None
        assert both.prefill.exporter.num_exported == 5
        # The tenant pays for its prompts once, as if they had been computed here.
        assert {name: event.usage for name, event in both.usage.items()} == {
            name: event.usage for name, event in alone.usage.items()
        }
        stats = both.decode.stats
        assert stats.prefill_tokens < 6 * 16 + 20 + 8, "only the ends of long prompts were computed here"
        both.check_idle()


def test_a_prefix_is_computed_once_and_never_shared_with_other_tenants_or_adapters(base, endpoint):
    model, artifacts, adapters = base
    long = prompt(96, 7)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES) as both:
        both.run([request("first", [*long, 5])])
        # The prefix is here: what is left is short, and is computed here.
        both.run([request("again", [*long, 6])])
        assert both.fetched == 1
        assert both.usage["again"].usage.cached_tokens == 96
        # It is gone here, not there: it comes again, billed as cached, as on one engine.
        both.decode.scheduler.pool.invalidate(list(both.decode.scheduler.pool._by_hash))
        both.run([request("gone", [*long, 7])])
        assert both.fetched == 2
        assert both.usage["gone"].usage.cached_tokens == 80
        both.run([replace_tenant(request("theirs", [*long, 8]), "umbrella")])
        assert both.usage["theirs"].usage.cached_tokens == 0
        both.run([request("adapted", [*long, 8], GREEDY, adapters["small"].ref)])
        assert both.usage["adapted"].usage.cached_tokens == 0
        assert both.fetched == 4
        both.check_idle()


def replace_tenant(submit: Submit, tenant: str) -> Submit:
    return Submit(submit.request_id, tenant, submit.prompt_ids, submit.sampling, submit.adapter)


def test_scores_of_a_prompt_come_from_tokens_computed_here(base, endpoint):
    model, artifacts, _ = base
    scored = SamplingParams(4, temperature=0.0, ignore_eos=True, prompt_logprobs=0, score_from=70)
    submits = [request("scored", prompt(100, 1), scored)]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES) as both:
        both.run(submits)
        assert both.fetched == 1
        assert both.tokens == alone.tokens()


def test_a_fetched_request_survives_its_preemption(base, endpoint):
    model, artifacts, _ = base
    long = SamplingParams(40, temperature=0.0, ignore_eos=True)
    submits = [request(f"r{number}", prompt(90, number), long) for number in range(4)]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    small = {**SIZES, "num_blocks": 26}
    with pair(model, artifacts, endpoint, decode=small, prefill=SIZES, blocks_per_piece=8) as both:
        for submit in submits:
            both.decode.submit(submit)
        # Two prompts are fetched, for more there is no memory. They come before anything runs.
        both.wait_for_ends(2)
        both.finish()
        assert both.tokens == alone.tokens()
        assert (both.fetched, both.fallbacks) == (2, {"memory": 2})
        assert sum(event.preemptions for event in both.usage.values()) > 0
        both.check_idle()


def test_an_abort_travels_and_frees_everything_on_both_sides(base, endpoint):
    model, artifacts, _ = base
    sizes = {**SIZES, "max_batch_tokens": 16}
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=sizes) as both:
        both.decode.submit(request("gone", prompt(200, 1)))
        both.wait(lambda: both.decode.scheduler.fetches.counters.fetched_tokens >= 32)
        both.decode.abort("gone")
        both.run([request("next", prompt(100, 2))])
        both.check_idle()
        assert both.prefill.exporter is not None
        assert both.prefill.exporter.num_open == 0
        assert both.usage["gone"].usage.prompt_tokens == 0, "it never ran"
        assert both.fetched == 1


def test_what_has_come_before_the_engine_is_gone_is_kept_and_the_rest_is_computed_here(base, endpoint):
    model, artifacts, _ = base
    submits = [request("cut", prompt(200, 1))]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill={**SIZES, "max_batch_tokens": 16}) as both:
        both.decode.submit(submits[0])
        both.wait(lambda: both.decode.scheduler.fetches.counters.fetched_tokens >= 64)
        both.sender.close()
        both.sender.close = lambda: None  # type: ignore[method-assign]
        both.finish(prefills=False)
        assert both.tokens == alone.tokens()
        assert both.fallbacks == {"lost": 1}
        assert both.fetched == 0
        assert both.decode.stats.prefill_tokens <= 200 - 64
        assert both.usage["cut"].usage == alone.usage["cut"].usage


def test_an_engine_that_hangs_without_closing_its_connection_counts_as_gone(base, endpoint, monkeypatch):
    model, artifacts, _ = base
    monkeypatch.setattr(link, "SILENCE_LIMIT", 1.0)  # it sends twice as often
    submits = [request("silent", prompt(100, 1))]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    goes_on = threading.Event()
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES) as both:
        both.decode.submit(submits[0])

        def hang() -> None:
            goes_on.wait()

        both.sender._status = hang  # its thread hangs at the next beat
        try:
            both.finish(prefills=False)
        finally:
            goes_on.set()
        assert both.tokens == alone.tokens()
        assert both.fallbacks == {"lost": 1}


@pytest.mark.parametrize(
    "change", [{"base_digest": "e" * 64}, {"kv_dtype": "float8_e4m3fn"}, {"block_size": 32}]
)
def test_engines_whose_caches_differ_exchange_nothing_and_say_why(base, endpoint, change):
    model, artifacts, _ = base
    other = msgspec.structs.replace(FORMAT, **change)
    sizes = {"decode": SIZES, "prefill": SIZES}
    with pair(model, artifacts, endpoint, **sizes, prefill_format=other, is_connected=False) as both:
        both.wait(lambda: bool(both.sources.refusals))
        (name, value), *_ = change.items()
        assert f"{name} {getattr(FORMAT, name)} instead of {value}" in both.sources.refusals[0]
        both.run([request("here", prompt(100, 1))])
        assert both.fallbacks == {"unavailable": 1}


def test_an_engine_that_refuses_a_prompt_leaves_it_here(base, endpoint):
    model, artifacts, adapters = base
    fits = request("fits", prompt(100, 2), GREEDY, adapters["small"].ref)
    submits = [request("long", prompt(200, 1)), fits]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill={**SIZES, "context_length": 128}) as both:
        both.run(submits)
        assert both.tokens == alone.tokens()
        assert both.fallbacks == {"refused": 1}
        assert both.fetched == 1
        both.check_idle()


def test_an_engine_that_makes_no_progress_is_given_up(base, endpoint):
    model, artifacts, _ = base
    submits = [request("late", prompt(100, 1))]
    alone = run(make_core(model, artifacts, **SIZES), submits)
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES, timeout_s=0.05) as both:
        both.run(submits, prefills=False)
        assert both.tokens == alone.tokens()
        assert both.fallbacks == {"timeout": 1}
        both.check_idle()


def test_sapling_answers_the_same_apart_on_quantised_weights(tmp_path, endpoint):
    config, digest = load_config(BASE), base_digest(BASE)
    pirate = pack(ADAPTERS / "pirate", config, digest, tmp_path)
    encoder = tokens.Encoder(BASE)
    text = "The crew of the ship sailed over the sea to find gold, and sang of the wind. " * 6
    prompt_ids = encoder.prompt(f"{text}What is the capital of France?")
    params = {"adapted": (GREEDY, pirate), "base": (SEEDED, None), "drawn": (SEEDED, pirate)}
    submits = [request(name, prompt_ids, sampling, ref) for name, (sampling, ref) in params.items()]
    model = load_model(BASE, "int8")
    alone = run(make_core(model, tmp_path, **SIZES), submits)
    with pair(model, tmp_path, endpoint, decode=SIZES, prefill=SIZES) as both:
        both.run(submits)
        assert both.tokens == alone.tokens()
        assert both.fetched == 3
        both.check_idle()


def test_only_engines_with_the_key_are_served(base, endpoint):
    model, artifacts, _ = base
    key = KeyPair.make()
    keys = {"prefill_keys": [key], "source_keys": [key]}
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES, **keys) as both:
        both.run([request("sealed", prompt(100, 1))])
        assert both.fetched == 1


def test_keys_are_rotated_whichever_engine_switches_first(base, endpoint):
    model, artifacts, _ = base
    old, new = KeyPair.make(), KeyPair.make()
    for number, (prefill, other) in enumerate((([old, new], [new, old]), ([new, old], [old, new]))):
        keys = {"prefill_keys": prefill, "source_keys": other}
        with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES, **keys) as both:
            both.run([request(f"sealed {number}", prompt(100, number))])
            assert both.fetched == 1


def test_a_removed_key_is_refused(base, endpoint, monkeypatch):
    monkeypatch.setattr(link, "RECONNECT_PAUSE", 0.01)
    model, artifacts, _ = base
    keys = {"prefill_keys": [KeyPair.make()], "source_keys": [KeyPair.make()]}
    with pair(model, artifacts, endpoint, decode=SIZES, prefill=SIZES, is_connected=False, **keys) as both:
        time.sleep(0.3)
        assert both.sources.num_connected == 0
