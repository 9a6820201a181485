"""The engine as it is served on a GPU: graphs, overlapped steps, quantised bases, adapters in one arena."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
import pytest
import torch

from adapters.packing import pack
from engine import core
from engine.device import compiled_steps, gpu_forward
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, SamplingParams, Submit
from examples.sapling import ADAPTERS, BASE, tokens
from examples.sapling.tasks import TASKS
from kernels.parallel_compilation import compiled_in_parallel
from tests.gpu.device_engine import DeviceEngine, device_engine

pytestmark = pytest.mark.gpu

PROMPTS_PER_TASK = 20
MODEL_CARD_ACCURACY = 0.93
"""The model card says 0.993 and more over 300 prompts; of 20, one may be wrong."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, AdapterRef]]:
    folder = tmp_path_factory.mktemp("artifacts")
    config, digest = load_config(BASE), base_digest(BASE)
    return folder, {name: pack(ADAPTERS / name, config, digest, folder) for name in TASKS}


def load(quantization: str) -> object:
    return load_model(BASE, quantization, torch.bfloat16, "cuda")


def asked(
    refs: dict[str, AdapterRef], per_task: int, max_tokens: int = 48, **sampling: float
) -> list[Submit]:
    encoder = tokens.Encoder(BASE)
    params = msgspec.structs.replace(SamplingParams(max_tokens, temperature=0.0), **sampling)
    return [
        Submit(f"{name}-{index}", "t", encoder.prompt(example.prompt), params, refs[name])
        for name, task in TASKS.items()
        for index, example in enumerate(task.examples("heldout", per_task, seed=11))
    ]


def correct(engine: DeviceEngine, refs: dict[str, AdapterRef]) -> dict[str, float]:
    """Share of right answers by adapter, on held-out prompts, all adapters in one queue."""
    encoder = tokens.Encoder(BASE)
    answers = engine.run(asked(refs, PROMPTS_PER_TASK)).answers
    shares = {}
    for name, task in TASKS.items():
        examples = task.examples("heldout", PROMPTS_PER_TASK, seed=11)
        right = [
            task.check(example, encoder.decode(answers[f"{name}-{index}", 0].token_ids))
            for index, example in enumerate(examples)
        ]
        shares[name] = sum(right) / len(right)
    return shares


@pytest.mark.parametrize("quantization", ["none", "fp8", "int4"])
@pytest.mark.parametrize("kv_dtype", [None, torch.float8_e4m3fn], ids=["kv-bf16", "kv-fp8"])
def test_saplings_adapters_answer_at_their_model_cards_accuracy(
    quantization: str, kv_dtype: torch.dtype | None, packed: tuple[Path, dict[str, AdapterRef]]
) -> None:
    folder, refs = packed
    with device_engine(load(quantization), folder, max_rows=32, kv_dtype=kv_dtype) as engine:
        shares = correct(engine, refs)
        assert engine.runner.counters.eager_steps == 0
        assert engine.runner.counters.graph_replays > 0
    assert min(shares.values()) >= MODEL_CARD_ACCURACY, shares


def test_fp8_adapters_answer_at_their_model_cards_accuracy(tmp_path: Path) -> None:
    config, digest = load_config(BASE), base_digest(BASE)
    refs = {name: pack(ADAPTERS / name, config, digest, tmp_path, dtype="float8_e4m3") for name in TASKS}
    with device_engine(load("fp8"), tmp_path, max_rows=32) as engine:
        shares = correct(engine, refs)
    assert min(shares.values()) >= MODEL_CARD_ACCURACY, shares


@pytest.mark.parametrize("quantization", ["none", "fp8", "int4"])
def test_a_graph_draws_what_its_kernels_draw(
    quantization: str, packed: tuple[Path, dict[str, AdapterRef]]
) -> None:
    folder, refs = packed
    submits = asked(refs, 2, 24, temperature=0.7, seed=5)
    model = load(quantization)
    with device_engine(model, folder) as engine:
        replayed = engine.run(submits).tokens()
    with device_engine(model, folder, cuda_graphs=False) as engine:
        assert engine.run(submits).tokens() == replayed
        assert engine.runner.counters.graph_replays == 0


@pytest.mark.parametrize("quantization", ["none", "fp8", "int4"])
def test_graphs_are_captured_between_steps_while_adapters_load(
    quantization: str, packed: tuple[Path, dict[str, AdapterRef]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four slots for more adapters: they load in other threads, whatever is captured."""
    monkeypatch.setattr(core, "CAPTURE_EVERY_S", 0.02)
    folder, refs = packed
    model = load(quantization)
    submits = asked(refs, 2, 24, temperature=0.7, seed=5)
    with device_engine(model, folder, max_rows=32, num_slots=4, postpones=True) as engine:
        loads = []
        capture_next = engine.runner.capture_next

        def counted() -> None:
            loads.append(engine.core.stats.adapter_loads)
            capture_next()

        monkeypatch.setattr(engine.runner, "capture_next", counted)
        shares = correct(engine, refs)
        while engine.runner.num_postponed:
            engine.core.step()
        assert len(loads) > 10
        assert loads[-1] > loads[0]
        assert not engine.core.has_captures
        assert engine.runner.counters.eager_steps == 0
        afterwards = engine.run(submits).tokens()
    assert min(shares.values()) >= MODEL_CARD_ACCURACY, shares
    with device_engine(model, folder, max_rows=32, num_slots=4) as engine:
        assert engine.run(submits).tokens() == afterwards


def test_kernels_are_not_asked_for_again_once_all_are_on_disk(
    packed: tuple[Path, dict[str, AdapterRef]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = []

    @contextmanager
    def compiled() -> Iterator[None]:
        asked_for.append(1)
        with compiled_in_parallel():
            yield

    folder, _ = packed
    model = load("fp8")
    with device_engine(model, folder, max_rows=8, max_batch_tokens=32):
        pass
    monkeypatch.setattr(gpu_forward, "compiled_in_parallel", compiled)
    with device_engine(model, folder, max_rows=8, max_batch_tokens=32):
        assert not asked_for
    monkeypatch.setattr(compiled_steps, "_sources", lambda: uuid4().hex)
    with device_engine(model, folder, max_rows=8, max_batch_tokens=32):
        assert asked_for == [1]


def test_every_way_through_the_scheduler_gives_sensible_answers(
    packed: tuple[Path, dict[str, AdapterRef]],
) -> None:
    """Chunked prefill, too few blocks (preemption), too few slots (turns), arrivals one by one."""
    folder, refs = packed
    model = load("fp8")
    for sizes in (
        {"max_batch_tokens": 16},
        {"max_batch_tokens": 16, "max_rows": 16},  # a chunk of one token beside fifteen that decode
        {"num_blocks": 24},
        {"num_slots": 2},
        {"adapter_bytes": 3 << 20},
        {"max_rows": 3},
    ):
        with device_engine(model, folder, **{"max_rows": 8, **sizes}) as engine:
            encoder = tokens.Encoder(BASE)
            answers = engine.run(asked(refs, 4), every=2).answers
            assert not engine.rejected
            right = [
                task.check(example, encoder.decode(answers[f"{name}-{index}", 0].token_ids))
                for name, task in TASKS.items()
                for index, example in enumerate(task.examples("heldout", 4, seed=11))
            ]
            assert sum(right) / len(right) >= MODEL_CARD_ACCURACY, sizes


def test_requests_do_not_depend_on_their_batch_mates(packed: tuple[Path, dict[str, AdapterRef]]) -> None:
    """Same sizes of steps, other mates: eight requests on one adapter, with eight on others or on none."""
    folder, refs = packed
    ours, *others = refs
    mine = [submit for submit in asked(refs, 8, 24) if submit.request_id.startswith(f"{ours}-")]
    with device_engine(load("fp8"), folder) as engine:

        def with_mates(mates: list[Submit]) -> dict[tuple[str, int], list[int]]:
            prompts = [msgspec.structs.replace(mate, prompt_ids=mine[0].prompt_ids) for mate in mates]
            tokens_of = engine.run([*mine, *prompts]).tokens()
            return {key: value for key, value in tokens_of.items() if key[0].startswith(f"{ours}-")}

        everybody = [submit for submit in asked(refs, 8, 24) if not submit.request_id.startswith(f"{ours}-")]
        different = with_mates(everybody[:: len(everybody) // 8][:8])
        alike = with_mates([submit for submit in everybody if submit.request_id.startswith(f"{others[0]}-")])
        alone = with_mates([Submit(f"base-{index}", "t", [5], mine[0].sampling) for index in range(8)])
    assert different == alike == alone


def test_a_batch_invariant_engine_gives_the_same_bits_in_any_company(
    packed: tuple[Path, dict[str, AdapterRef]],
) -> None:
    folder, refs = packed
    submits = asked(refs, 3, 24, logprobs=0)
    with device_engine(load("fp8"), folder, max_rows=32, batch_invariant=True) as engine:
        together = engine.run(submits)
        for submit in submits[::5]:
            # Another tenant finds none of its prompt in the cache, so it is cut as it was.
            alone = engine.run([msgspec.structs.replace(submit, tenant="another")])
            key = submit.request_id, 0
            assert alone.answers[key] == together.answers[key]


def mate_of(submit: Submit, ref: AdapterRef) -> Submit:
    return msgspec.structs.replace(submit, request_id=f"mate-{submit.request_id}", adapter=ref)


def test_one_tenants_broken_adapter_ends_its_own_requests_alone(
    packed: tuple[Path, dict[str, AdapterRef]], tmp_path: Path
) -> None:
    """Finite weights that overflow: their rows fail, batch mates keep every bit."""
    folder, refs = packed
    ours, theirs = list(refs)[:2]
    source = PackedAdapter.read(artifact_path(folder, refs[theirs].digest))
    wild = PackedAdapter(source.manifest, np.full_like(source.slab, 0x7F00))  # 1.7e38 in bf16
    wild.write(artifact_path(folder, wild.digest))
    broken = AdapterRef(wild.digest, refs[theirs].rank)
    mine = [submit for submit in asked(refs, 6, 24, logprobs=0) if submit.request_id.startswith(f"{ours}-")]
    with device_engine(load("fp8"), folder) as engine:
        tame = [mate_of(submit, refs[theirs]) for submit in mine]
        bad = [mate_of(submit, broken) for submit in mine]
        expected = engine.run([*mine, *tame])
        spoiled = engine.run([*mine, *bad])
    for submit in mine:
        key = submit.request_id, 0
        assert spoiled.answers[key].token_ids == expected.answers[key].token_ids
        assert spoiled.answers[f"mate-{submit.request_id}", 0].finish_reason == "error"
