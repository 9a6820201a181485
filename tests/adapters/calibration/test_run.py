"""Calibrations of Sapling's adapters from end to end: good ones pass, broken ones do not; and going on."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from adapters.calibration.errors import ServingUnavailable
from adapters.calibration.gate import UNSURE_NLL, Gate, StoredDtype
from adapters.calibration.report import CalibrationReport
from adapters.calibration.run import CalibrationRequest, CalibrationStack, calibrate
from adapters.calibration.samples import SampleLimits
from adapters.calibration.serving import ScoringAccount
from engine.client import EngineGone
from engine.protocol import Submit
from kernels.linear_int4.weight import Int4Weight
from tests.adapters.calibration.engines import TorchEngine
from tests.adapters.calibration.sapling import (
    BASE,
    Files,
    copy_base,
    drop_rslora,
    lean_on_small_differences,
    of_another_base,
    pack_all,
    scale_alpha,
    shuffle_layers,
    write_adapter,
    write_samples,
)
from tests.e2e.onboarding import widened_adapter
from tokenization.codec import TextCodec

ASKER = ScoringAccount(tenant="ten_one", model="sapling:mine@1", adapter_id="adp_mine", version=1)
TASK = "sort-numbers"
NUM_SAMPLES = 12
FEW = 8
"""Where it is not the figures that matter: what a calibration takes is what it takes per sample."""


@pytest.fixture(scope="module", autouse=True)
def weights_unpacked_once() -> Iterator[None]:
    """The reference on 4 bits unpacks a weight for every product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Int4Weight, "dequantize", functools.cache(Int4Weight.dequantize))
        yield


class Interrupted(Exception):
    """What a job's progress raises when it is paused."""


@dataclass
class Memory:
    """A checkpoint that forgets nothing, and a progress that can be told to interrupt."""

    parts: dict[str, bytes] = field(default_factory=dict)
    told: list[tuple[str, int, int]] = field(default_factory=list)
    interrupt_at: tuple[str, int, int] | None = None

    async def load(self, name: str) -> bytes | None:
        return self.parts.get(name)

    async def save(self, name: str, data: bytes) -> None:
        self.parts[name] = data

    async def progress(self, phase: str, done: int, total: int) -> None:
        self.told.append((phase, done, total))
        if self.interrupt_at == (phase, done, total):
            raise Interrupted


@dataclass
class Bench:
    """One adapter with all that calibrates it."""

    request: CalibrationRequest
    stack: CalibrationStack
    engine: TorchEngine

    async def run(self, memory: Memory | None = None) -> CalibrationReport:
        memory = memory or Memory()
        return await calibrate(self.request, self.stack, memory.progress, memory)


def make_bench(
    folder: Path,
    codec: TextCodec,
    *,
    task: str = TASK,
    breakage: Callable[[Files], Files] | None = None,
    own: bool = True,
    quantization: str = "int8",
    dtype: StoredDtype | None = None,
    gate: Gate | None = None,
    base: Path = BASE,
    num_samples: int = NUM_SAMPLES,
    limits: SampleLimits | None = None,
    device: str = "cpu",
) -> Bench:
    folder.mkdir(parents=True, exist_ok=True)
    peft_dir = write_adapter(folder / "adapter", task, breakage)
    artifacts_dir = folder / "artifacts"
    engine = TorchEngine(base, artifacts_dir, quantization)
    engine.info = msgspec.structs.replace(engine.info, device=device)
    request = CalibrationRequest(
        ASKER,
        peft_dir,
        pack_all(peft_dir, artifacts_dir),
        samples=write_samples(folder / "samples.jsonl", task, num_samples) if own else None,
        gate=gate or Gate(),
        dtype=dtype,
        limits=limits or SampleLimits(),
    )
    stack = CalibrationStack(engine, codec, base, artifacts_dir, patience=5.0)  # type: ignore[arg-type]
    return Bench(request, stack, engine)


def gain(report: CalibrationReport) -> float:
    return report.measures.gain[report.decision.dtype].nats.value


def found(report: CalibrationReport) -> dict[str, object]:
    """All but what it took."""
    value = json.loads(report.to_json())
    value.pop("cost")
    return dict(value)


@pytest.mark.parametrize("task", ["sort-numbers", "add-numbers", "pirate"])
async def test_a_good_adapter_passes_and_is_served_in_half_the_bytes(
    task: str, tmp_path: Path, sapling_codec: TextCodec
) -> None:
    report = await make_bench(tmp_path, sapling_codec, task=task).run()
    assert report.decision.ready, report.decision.why_not
    assert report.decision.dtype == "float8_e4m3"
    assert gain(report) > 0.5
    assert report.measures.fidelity["float8_e4m3"].top1.value > 0.99
    assert report.data.origin == "tenant"
    assert report.data.num_samples == NUM_SAMPLES


async def test_zeros_that_widen_an_adapter_change_nothing(tmp_path: Path, sapling_codec: TextCodec) -> None:
    bench = make_bench(tmp_path, sapling_codec, task="upper-case", num_samples=FEW)
    wide = widened_adapter("upper-case", tmp_path / "wide", rank=64)
    request = replace(bench.request, peft_dir=wide, artifacts=pack_all(wide, bench.stack.artifacts_dir))
    report, widened = await bench.run(), await replace(bench, request=request).run()
    assert report.decision.ready, report.decision.why_not
    assert widened.decision.ready, widened.decision.why_not
    assert gain(widened) == pytest.approx(gain(report), abs=1e-3)  # sums of other lengths round otherwise
    for name, fidelity in report.measures.fidelity.items():
        assert widened.measures.fidelity[name].nll.value == pytest.approx(fidelity.nll.value, abs=1e-3)
        assert widened.measures.fidelity[name].top1 == fidelity.top1


async def test_samples_in_another_form_than_it_was_trained_on_are_asked_about(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    """Conversations, without the template of conversations: the adapter guesses, and guesses are unstable."""
    bench = make_bench(tmp_path, sapling_codec, task="upper-case")
    plain = tmp_path / "plain.jsonl"
    samples = [json.loads(line)["messages"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    plain.write_text(
        "".join(
            json.dumps({"prompt": asked["content"], "completion": answer["content"]}) + "\n"
            for asked, answer in samples
        )
    )
    report = await replace(bench, request=replace(bench.request, samples=plain)).run()
    assert report.measures.nll_reference.value > UNSURE_NLL
    (why,) = report.decision.why_not
    assert "in the form it was trained on" in why


BREAKAGES: dict[str, Callable[[Files], Files]] = {
    "shuffled layers": shuffle_layers,
    "alpha times 8": scale_alpha(8),
    "alpha over 8": scale_alpha(1 / 8),
    "rsLoRA flag dropped": drop_rslora,
    "adapter of another base": of_another_base,
}
FAILED = {
    "shuffled layers": "gain",
    "alpha times 8": "gain",
    "alpha over 8": "scale",
    "rsLoRA flag dropped": "scale",
    "adapter of another base": "gain",
}
"""By the rule that says what is wrong."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, sapling_codec: TextCodec) -> CalibrationReport:
    """What the unbroken adapter is found to be."""
    return asyncio.run(make_bench(tmp_path_factory.mktemp("good"), sapling_codec).run())


@pytest.mark.parametrize("name", list(BREAKAGES))
async def test_a_broken_adapter_scores_worse_and_fails(
    name: str, good: CalibrationReport, tmp_path: Path, sapling_codec: TextCodec
) -> None:
    broken = await make_bench(tmp_path / "broken", sapling_codec, breakage=BREAKAGES[name]).run()
    nll, nll_broken = (report.measures.fidelity["bfloat16"].nll for report in (good, broken))
    print(f"{name}: {nll.value:.4f} -> {nll_broken.value:.4f} nats, ready {broken.decision.ready}")
    assert nll.high < nll_broken.low, "the intervals are apart"
    assert gain(broken) < gain(good) - 0.2
    assert not broken.decision.ready
    assert FAILED[name] in {rule.name for rule in broken.decision.rules if not rule.passed}


async def test_an_adapter_that_needs_an_unquantised_base_fails_on_four_bits(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    """It passes where nothing is rounded; a plain adapter passes on four bits too."""
    reports = {
        (name, quantization): await make_bench(
            tmp_path / name / quantization,
            sapling_codec,
            breakage=breakage,
            quantization=quantization,
            num_samples=FEW,
        ).run()
        for name, breakage, quantization in (
            ("fragile", lean_on_small_differences, "none"),
            ("fragile", lean_on_small_differences, "int4"),
            ("plain", None, "int4"),
        )
    }
    unquantised, failed, plain = (report.decision for report in reports.values())
    assert unquantised.ready, unquantised.why_not
    assert plain.ready, plain.why_not
    assert not failed.ready
    assert {rule.name for rule in failed.rules if not rule.passed} == {"gain", "nll_rise", "top1"}
    assert gain(reports["fragile", "none"]) == pytest.approx(gain(reports["plain", "int4"]), abs=0.5)


async def test_on_a_default_set_only_a_blow_up_fails(tmp_path: Path, sapling_codec: TextCodec) -> None:
    """reverse-words is no help with other tasks, and is not blamed for it."""
    some = SampleLimits(max_samples=2 * NUM_SAMPLES)  # fewer are of too few tasks
    good = await make_bench(
        tmp_path / "good", sapling_codec, task="reverse-words", own=False, limits=some
    ).run()
    assert good.data.origin == "base"
    assert gain(good) < 0
    assert good.decision.ready, good.decision.why_not
    blown = await make_bench(
        tmp_path / "blown",
        sapling_codec,
        task="reverse-words",
        own=False,
        breakage=scale_alpha(8),
        limits=some,
    ).run()
    assert not blown.decision.ready
    assert "it breaks the model" in blown.decision.why_not[0]


async def test_a_base_without_a_set_of_its_own_is_given_the_general_one(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    bench = make_bench(
        tmp_path,
        sapling_codec,
        own=False,
        base=copy_base(tmp_path / "base"),
        limits=SampleLimits(max_samples=2 * NUM_SAMPLES),
    )
    report = await bench.run()
    assert report.data.origin == "general"
    assert report.data.num_lines >= 64
    assert report.data.num_samples == 2 * NUM_SAMPLES
    assert report.decision.ready, report.decision.why_not


async def test_a_tenant_may_have_bf16(tmp_path: Path, sapling_codec: TextCodec) -> None:
    report = await make_bench(tmp_path, sapling_codec, dtype="bfloat16", num_samples=FEW).run()
    assert report.decision.ready
    assert report.decision.dtype == "bfloat16"
    assert "as requested" in report.decision.dtype_reason


async def test_the_engine_is_asked_as_the_tenant_behind_everybody(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=FEW)
    await bench.run()
    assert len(bench.engine.submits) == 3 * FEW
    assert {submit.tenant for submit in bench.engine.submits} == {"ten_one"}
    assert {submit.priority.value for submit in bench.engine.submits} == {"flex"}
    adapters = {submit.adapter.digest if submit.adapter else None for submit in bench.engine.submits}
    assert adapters == {None, *(ref.digest for ref in bench.request.artifacts.values())}
    assert len({submit.request_id for submit in bench.engine.submits}) == 3 * FEW


async def test_the_same_calibration_gives_the_same_report(tmp_path: Path, sapling_codec: TextCodec) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=FEW)
    first, second = await bench.run(), await bench.run()
    assert found(first) == found(second)
    assert not second.cost.resumed


async def test_interrupted_anywhere_it_goes_on_to_the_same_report(
    tmp_path: Path, sapling_codec: TextCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every boundary of a phase, of a chunk and of a pass, and inside of a pass."""
    monkeypatch.setattr("adapters.calibration.run.CHUNK", 4)
    monkeypatch.setattr(
        "adapters.calibration.run.passes", lambda samples, config: [range(0, 3), range(3, len(samples))]
    )
    bench = make_bench(tmp_path, sapling_codec, num_samples=6)
    whole = Memory()
    wanted = found(await bench.run(whole))
    places = sorted(set(whole.told))
    assert {phase for phase, _, _ in places} == {"samples", "serving", "reference", "report"}
    inside = {("reference", step, 18) for step in range(1, 18)} - {("reference", 9, 18)}
    assert inside < set(places)
    for place in [place for place in places if place not in inside] + [
        ("reference", 4, 18),
        ("reference", 14, 18),
    ]:
        memory = Memory(interrupt_at=place)
        with pytest.raises(Interrupted):
            await bench.run(memory)
        finished = dict(memory.parts)
        memory.interrupt_at = None
        asked = len(bench.engine.submits)
        report = await bench.run(memory)
        assert found(report) == wanted, place
        assert report.cost.resumed == bool(finished)
        served = sum(name.startswith("served") for name in finished)
        if served:
            assert len(bench.engine.submits) - asked < 3 * 6, "what was finished is not asked again"
        if place[0] == "report":
            assert len(bench.engine.submits) == asked


async def test_what_was_saved_of_something_else_is_not_taken(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    memory = Memory()
    one = make_bench(tmp_path / "one", sapling_codec, num_samples=FEW)
    wanted = found(await one.run(memory))
    # Another adapter, other samples, another quantisation: nothing fits but its own.
    for other in (
        make_bench(tmp_path / "two", sapling_codec, breakage=scale_alpha(2), num_samples=FEW),
        make_bench(tmp_path / "three", sapling_codec, task="add-numbers", num_samples=FEW),
        make_bench(tmp_path / "four", sapling_codec, quantization="none", num_samples=FEW),
    ):
        alone = found(await other.run())
        assert found(await other.run(memory)) == alone
    assert found(await one.run(memory)) == wanted
    # And what is damaged is made again.
    memory.parts = {name: data[:-3] for name, data in memory.parts.items()}
    assert found(await one.run(memory)) == wanted


async def test_an_engine_that_comes_back_is_waited_for_and_one_that_does_not_is_not(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=FEW)
    wanted = found(await bench.run())
    bench.engine._faults = iter([EngineGone("restarting")] * 5)
    assert found(await bench.run()) == wanted
    bench.engine._faults = iter([EngineGone("gone for good")] * 100_000)
    bench = replace(bench, stack=replace(bench.stack, patience=0.2))
    with pytest.raises(ServingUnavailable, match="gone for good"):
        await bench.run()


async def test_an_engine_that_comes_back_as_another_is_not_mixed_with_the_first(
    tmp_path: Path, sapling_codec: TextCodec
) -> None:
    bench = make_bench(tmp_path, sapling_codec, num_samples=FEW)
    info = bench.engine.info

    def restart(submit: Submit) -> None:
        bench.engine.info = msgspec.structs.replace(info, quantization="none")

    bench.engine.watch = restart
    with pytest.raises(ServingUnavailable, match="was replaced by a different one"):
        await bench.run()


async def test_it_can_be_cancelled(tmp_path: Path, sapling_codec: TextCodec) -> None:
    bench = make_bench(tmp_path, sapling_codec)
    begun = asyncio.Event()
    bench.engine.watch = lambda submit: begun.set()
    running = asyncio.create_task(bench.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    asked = len(bench.engine.submits)
    assert asked < 3 * NUM_SAMPLES
    await asyncio.sleep(0.1)
    assert len(bench.engine.submits) == asked


async def test_limits_leave_samples_out_and_say_so(tmp_path: Path, sapling_codec: TextCodec) -> None:
    bench = make_bench(tmp_path, sapling_codec)
    limited = CalibrationRequest(
        ASKER,
        bench.request.peft_dir,
        bench.request.artifacts,
        bench.request.samples,
        limits=SampleLimits(max_samples=5),
    )
    report = await Bench(limited, bench.stack, bench.engine).run()
    assert report.data.num_samples == 5
    assert report.data.num_lines == NUM_SAMPLES
    assert report.data.left_out[0].reason == f"5 of the {NUM_SAMPLES} lines are scored, evenly spaced"
