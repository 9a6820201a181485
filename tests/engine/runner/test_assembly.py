"""The GPU engine is put together from the sizes that its memory allows, on a machine that has none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock
from unittest.mock import create_autospec

import pytest
import torch
from structlog.testing import capture_logs

import engine.device.gpu_runner
from benchmarks import floor
from engine import assembly, device_parts
from engine.core import EngineCore
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.lora.device_pool import DevicePool
from engine.lora.draft_adapters import DraftAdapterError
from engine.model.cache import KVCache
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.outputs import DeviceGauges, RunnerCounters
from engine.protocol import EngineInfo, SamplingParams, Submit
from engine.settings import DeviceSettings, EngineSettings, SchedulingSettings
from engine.vocabulary import Vocabulary
from tests.engine.runner.bases import VOCAB_SIZE, write_base

if TYPE_CHECKING:
    from engine.server import EngineServer
    from engine.work_beside import WorkBeside

GIB = 1 << 30
SAPLING = Path(__file__).resolve().parents[3] / "examples" / "sapling" / "weights" / "base"


class Server:
    engine_id = "engine-0"
    incarnation = "first"

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        raise AssertionError("nothing is loaded here")

    def wake(self) -> None:
        raise AssertionError("nothing is compiled here")


class Beside:
    """What is known at once, and no tokenizer."""

    def base_digest(self) -> str:
        return "0" * 64

    def begin_tokenizer(self) -> None:
        pass


BESIDE = cast("WorkBeside", Beside())


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in for the device's runner: of its signature, so that a wrong call is caught."""
    real = engine.device.gpu_runner.DeviceRunner
    made = create_autospec(real, spec_set=False)
    made.scratch_bytes = real.scratch_bytes
    made.return_value.depth = 1
    made.return_value.num_postponed = 0
    made.return_value.counters = RunnerCounters(graph_replays=3)
    made.return_value.capture.side_effect = lambda on_progress, postpones: on_progress(2, 2)
    monkeypatch.setattr(engine.device.gpu_runner, "DeviceRunner", made)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (60 * GIB, 64 * GIB))
    return made


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_a_gpu_engine_gets_what_its_memory_allows(tmp_path: Path, runner: Any, kv_dtype: str) -> None:
    write_base(tmp_path)
    model = load_model(tmp_path, dtype=torch.bfloat16)
    settings = EngineSettings(base=tmp_path, artifacts_dir=tmp_path)
    device_settings = DeviceSettings(
        kv_dtype=kv_dtype,  # type: ignore[arg-type]
        adapter_bytes=8 << 20,
        adapter_cache_bytes=16 << 20,
        max_graph_rows=32,
        batch_invariant=True,
    )
    sizes = device_parts.Sizes(context_length=1024, max_rows=64, max_batch_tokens=512, num_slots=9)
    parts = device_parts.gpu_parts(
        model, sizes, settings, device_settings, cast("EngineServer", Server()), BESIDE
    )
    assert runner.return_value.capture.call_args.kwargs == {"postpones": False}, "a bit may not change"
    assert parts.captures is None
    given_model, pool, cache, limits, options = runner.call_args.args
    assert given_model is model
    assert isinstance(pool, DevicePool)
    assert (pool.num_slots, pool.capacity) == (9, 8 << 20)
    assert parts.num_blocks == 64 * 1024 // device_parts.BLOCK_SIZE + 1
    dtype = torch.float8_e4m3fn if kv_dtype == "fp8" else torch.bfloat16
    assert cache == CacheLayout(parts.num_blocks, device_parts.BLOCK_SIZE, dtype)
    assert limits == BatchLimits(max_rows=64, max_len=1024, max_batch_tokens=512)
    assert options == RunnerOptions(
        max_graph_rows=32, batch_invariant=True, mask_threads=device_settings.mask_threads
    )
    assert parts.gauges() == DeviceGauges(
        device="cpu",
        quantization="none",
        kv_dtype="float8_e4m3fn" if kv_dtype == "fp8" else "bfloat16",
        adapter_bytes_total=8 << 20,
    )
    parts.loader.close()
    pool.close()


def test_graphs_of_a_gpu_engine_are_captured_behind_requests(tmp_path: Path, runner: Any) -> None:
    runner.return_value.num_postponed = 5
    write_base(tmp_path)
    model = load_model(tmp_path, dtype=torch.bfloat16)
    sizes = device_parts.Sizes(context_length=1024, max_rows=64, max_batch_tokens=512, num_slots=9)
    settings = EngineSettings(base=tmp_path, artifacts_dir=tmp_path)
    device_settings = DeviceSettings(adapter_bytes=8 << 20, adapter_cache_bytes=16 << 20)
    parts = device_parts.gpu_parts(
        model, sizes, settings, device_settings, cast("EngineServer", Server()), BESIDE
    )
    assert runner.return_value.capture.call_args.kwargs == {"postpones": True}
    assert parts.captures is runner.return_value
    parts.loader.close()


def test_what_does_not_fit_beside_the_weights_is_refused(
    tmp_path: Path, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (GIB, 8 * GIB))
    write_base(tmp_path)
    model = load_model(tmp_path, dtype=torch.bfloat16)
    sizes = device_parts.Sizes(context_length=1024, max_rows=64, max_batch_tokens=512, num_slots=9)
    with pytest.raises(ValueError, match="memory does not suffice"):
        device_parts.gpu_parts(
            model,
            sizes,
            EngineSettings(base=tmp_path),
            DeviceSettings(),
            cast("EngineServer", Server()),
            BESIDE,
        )
    assert not runner.called


def test_fp8_keys_and_values_take_half_of_the_bytes(tmp_path: Path) -> None:
    config = write_base(tmp_path)
    in_bf16, in_fp8 = (
        KVCache.block_bytes(config, device_parts.BLOCK_SIZE, dtype)
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    )
    assert in_bf16 == 2 * in_fp8


def test_what_a_model_holds_is_what_its_steps_are_counted_by(tmp_path: Path) -> None:
    config = write_base(tmp_path)
    model = load_model(tmp_path)  # in fp32: twice the bytes of bf16
    assert model.weight_bytes == 2 * floor.linear_bytes(config, "none")
    assert model.head_bytes == 2 * floor.head_bytes(config)
    assert KVCache.block_bytes(config, 1, torch.bfloat16) == floor.kv_token_bytes(config, "auto")
    assert KVCache.block_bytes(config, 1, torch.float8_e4m3fn) == floor.kv_token_bytes(config, "fp8")


@pytest.mark.parametrize("bandwidth", [None, 5e10])
def test_an_engine_counts_what_its_steps_read(tmp_path: Path, bandwidth: float | None) -> None:
    """On a CPU: what its memory can do is known where it is set."""
    config = load_config(SAPLING)
    device_settings = DeviceSettings(device="cpu", num_blocks=16, memory_bandwidth=bandwidth)
    settings = EngineSettings(base=SAPLING, artifacts_dir=tmp_path)
    core, _ = assembly.build_engine(settings, device_settings, cast("EngineServer", Server()), "build")
    ask = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)
    core.submit(Submit(request_id="r", tenant="acme", prompt_ids=[5, 6, 7], sampling=ask, submitted_at=1.0))
    while core.has_work:
        core.step()
    token_bytes = 2 * floor.kv_token_bytes(config, "auto")
    weights = 2 * (floor.linear_bytes(config, "none") + floor.head_bytes(config))
    assert core.stats.step_bytes == 3 * weights + (3 + 4 + 5) * token_bytes
    assert core.stats.memory_bandwidth == (bandwidth or 0.0)
    assert core.view(core.stats).memory, "what the memory is used for is told as before"


def test_a_gpus_bandwidth_is_measured_where_none_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[torch.device] = []

    def copied(device: torch.device, num_bytes: int) -> float:
        requests.append(device)
        return 4.5e12

    monkeypatch.setattr(assembly, "copy_bandwidth", copied)
    gpu = torch.device("cuda", 0)
    assert assembly._bandwidth(DeviceSettings(), gpu) == 4.5e12
    assert assembly._bandwidth(DeviceSettings(memory_bandwidth=1e12), gpu) == 1e12
    assert requests == [gpu]


@pytest.mark.parametrize(("told", "context", "window"), [(None, 64, 64), (64, 64, 64), (32, 32, None)])
def test_a_context_bounded_by_a_sliding_window_is_logged_and_told(
    tmp_path: Path, told: int | None, context: int, window: int | None
) -> None:
    write_base(tmp_path, "mistral", sliding_window=64)
    settings = EngineSettings(base=tmp_path, artifacts_dir=tmp_path, context_length=told)
    with capture_logs() as logs:
        _, info = _built(settings)
    assert (info.context_length, info.sliding_window) == (context, window)
    warned = [
        entry["context_length"] for entry in logs if entry["event"] == "context bounded by the sliding window"
    ]
    assert warned == ([64] if told is None else [])


def test_a_context_beyond_the_sliding_window_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path, "mistral", sliding_window=64)
    settings = EngineSettings(base=tmp_path, artifacts_dir=tmp_path, context_length=65)
    with pytest.raises(ValueError, match="65 is more than the 64 tokens of the base's sliding window"):
        _built(settings)


def test_a_context_that_no_window_bounds_is_told_without_one(tmp_path: Path) -> None:
    write_base(tmp_path, "mistral", sliding_window=None)
    assert _built(EngineSettings(base=tmp_path, artifacts_dir=tmp_path))[1].sliding_window is None


def _built(settings: EngineSettings) -> tuple[EngineCore, EngineInfo]:
    vocabulary = create_autospec(Vocabulary, token_bytes=[b"x"] * VOCAB_SIZE)
    with mock.patch.object(assembly.Vocabulary, "load", return_value=vocabulary):
        return assembly.build_engine(
            settings, DeviceSettings(device="cpu", kv_bytes=1 << 20), cast("EngineServer", Server()), "test"
        )


def test_a_draft_adapter_needs_speculation_and_what_packs_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set ROOTSTOCK_ENGINE_SPECULATION=true too"):
        SchedulingSettings(drafter=tmp_path)
    with pytest.raises(ValueError, match="PACKED_DRAFTER is set and nothing is drafted"):
        SchedulingSettings(packed_drafter="{}")
    with pytest.raises(ValueError, match="unset one of them"):
        SchedulingSettings(drafter=tmp_path, packed_drafter="{}", speculation=True)
    write_base(tmp_path)
    scheduling = SchedulingSettings(drafter=tmp_path, speculation=True)
    settings = EngineSettings(base=tmp_path, artifacts_dir=tmp_path, scheduling=scheduling)
    vocabulary = create_autospec(Vocabulary, token_bytes=[b"x"] * VOCAB_SIZE)
    with (
        mock.patch.object(assembly.Vocabulary, "load", return_value=vocabulary),
        pytest.raises(ValueError, match="start the engine by `rootstock serve-engine`"),
    ):
        assembly.build_engine(settings, DeviceSettings(device="cpu"), cast("EngineServer", Server()), "test")
    named = scheduling.model_copy(update={"drafter": None, "packed_drafter": '{"digest": "/etc/passwd"}'})
    with (
        mock.patch.object(assembly.Vocabulary, "load", return_value=vocabulary),
        pytest.raises(DraftAdapterError, match="ROOTSTOCK_ENGINE_PACKED_DRAFTER: "),
    ):
        assembly.build_engine(
            settings.model_copy(update={"scheduling": named}),
            DeviceSettings(device="cpu"), cast("EngineServer", Server()), "test",
        )  # fmt: skip
