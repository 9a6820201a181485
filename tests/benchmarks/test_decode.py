"""The table of decode steps, run on a CPU with a tiny model: the same code, seconds instead of minutes."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import decode, floor
from benchmarks.decode import main, parse, with_ratios
from benchmarks.shapes import shape
from benchmarks.step_profile import Span, shares_us, table

TINY = ["--shape", "tiny", "--quantization", "none", "--device", "cpu", "--repeats", "3"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "OUTPUT_LEN", 33)  # long enough for a step's time to stand out from noise
    monkeypatch.setattr(decode, "PREFILLS", ((4, 16, (0, 2)), (2, 64, (0, 2))))
    monkeypatch.setattr(decode, "MIXED_LOAD", (9, 16, 8, (0, 2)))


@pytest.mark.quiet
def test_every_section_is_measured(short: None, tmp_path: Path) -> None:
    out, profile = tmp_path / "decode.json", tmp_path / "profile.txt"
    batches = ["--batches", "1:0,3:0,3:2", "--rank", "8,mixed", "--adapter-dtype", "bf16,fp8"]
    main([*TINY, *batches, "--out", str(out), "--profile", str(profile)])
    report = json.loads(out.read_text())
    assert {"hardware", "commit", "command", "versions", "copy_tb_s", "startup"} <= report.keys()
    assert [(row["batch"], row["distinct"], row["rank"], row["adapter_dtype"]) for row in report["rows"]] == [
        (1, 0, None, None), (3, 0, None, None), (3, 2, "8", "bf16"),
        (3, 2, "mixed", "bf16"), (3, 2, "8", "fp8"), (3, 2, "mixed", "fp8"),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["step_ms"] > 0
        assert row["ratio"] == pytest.approx(row["step_ms"] / row["floor_ms"], rel=0.2)
        assert row["decode_tok_s"] == pytest.approx(1e3 * row["batch"] / row["step_ms"], rel=0.01)
    floors = {(row["distinct"], row["rank"], row["adapter_dtype"]): row["floor_ms"] for row in report["rows"]}
    assert floors[2, "8", "fp8"] <= floors[2, "8", "bf16"] < floors[2, "mixed", "bf16"]
    prefills = report["prefill"]
    assert all(row["prompt_tok_s"] > 0 for row in prefills)
    assert all(row["ratio_to_base"] == 1 for row in prefills if not row["distinct"])
    assert {row["distinct"] for row in report["mixed_load"]} == {0, 2}
    assert all(row["requests"] == 9 and row["preemptions"] == 0 for row in report["mixed_load"])
    assert "batch 3, 2 distinct adapters" in profile.read_text()
    assert "aten::" in profile.read_text()


def test_a_run_that_is_cut_off_keeps_its_rows(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = decode.Bench.row

    def row(bench: decode.Bench, batch: int, distinct: int, adapters: decode.Adapters) -> dict[str, Any]:
        if batch == 2:
            raise KeyboardInterrupt
        return measured(bench, batch, distinct, adapters)

    monkeypatch.setattr(decode.Bench, "row", row)
    out = tmp_path / "decode.json"
    with pytest.raises(KeyboardInterrupt):
        main([*TINY, "--sections", "rows", "--batches", "1:0,2:0", "--out", str(out)])
    assert [row["batch"] for row in json.loads(out.read_text())["rows"]] == [1]


def test_a_step_is_the_difference_over_its_tokens(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """First tokens take half a second, and every other a tenth: no adapters, bandwidth 1 GB/s."""
    # Seven full collections, of up to a second and a half each after thousands of tests.
    monkeypatch.setattr(decode, "gc", SimpleNamespace(collect=lambda: 0))

    class Engine:
        class model:
            config = shape("tiny")

        class sizes:
            kv_dtype = "auto"

        class library:
            register = staticmethod(lambda *_: [])

        def make_resident(self, adapters: list) -> None:
            assert not adapters

        def answer(self, prompts: list, output_len: int, adapters: list) -> float:
            return 0.5 + 0.1 * (output_len - 1)

    bench = decode.Bench(Engine(), "none", 1e9, repeats=3)  # type: ignore[arg-type]
    row = bench.row(4, 0, decode.Adapters("16", "bf16"))
    assert row["step_ms"] == pytest.approx(100)
    assert row["decode_tok_s"] == pytest.approx(40)
    num_bytes = floor.step_bytes(shape("tiny"), "none", "auto", 4, floor.mean_context(128, 32))
    assert row["floor_ms"] == pytest.approx(num_bytes / 1e6, abs=0.001)
    assert row["rank"] is None


def test_prefill_is_compared_with_the_same_prompts_without_adapters() -> None:
    rows = [
        {"prompts": 4, "prompt_len": 16, "distinct": 0, "prompt_tok_s": 100.0},
        {"prompts": 4, "prompt_len": 16, "distinct": 4, "prompt_tok_s": 90.0},
        {"prompts": 8, "prompt_len": 16, "distinct": 4, "prompt_tok_s": 90.0},
    ]
    assert [row.get("ratio_to_base") for row in with_ratios(rows)] == [1.0, 0.9, None]


@pytest.mark.parametrize(
    "wrong", [["--batches", "4:8"], ["--batches", "4"], ["--rank", "0"], ["--sections", "all"]]
)
def test_what_cannot_be_measured_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", "x", *wrong])
    assert wrong[1] in capsys.readouterr().err


def test_a_moment_of_a_profile_belongs_to_the_kernel_that_ends_first() -> None:
    spans = [Span("norm", 2, 11), Span("gemm", 0, 10), Span("shrink", 4, 8), Span("gemm", 12, 20)]
    assert shares_us(spans) == [1, 6, 4, 8]
    assert shares_us([Span("gemm", 0, 10), Span("gemm", 0, 10), Span("norm", 10, 10)]) == [10, 0, 0]
    assert shares_us([]) == []


def test_a_profile_counts_overlapping_kernels_once_as_busy() -> None:
    spans = [Span("gemm", 0, 10), Span("shrink", 4, 8), Span("gemm", 12, 20), Span("norm", 18, 22)]
    assert sum(shares_us(spans)) == 20
    text = table(spans, num_steps=2, wall_us=50)
    assert "2 steps, 25.0 us each" in text
    assert "device busy 10.0 us, idle between the first kernel and the last 1.0 us" in text
    first = text.splitlines()[4].split()
    assert first == ["7.0", "70.0%", "1.0", "7.00", "9.00", "gemm"]
