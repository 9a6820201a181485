"""Plots and tables come from the committed results alone, and say what those say."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.plots import DOCUMENTS, PLOTS, PLOTTED, blocks_in, draw, plots_from, rewrite
from benchmarks.tables import MISSING, PEER, RESULTS, TABLES, committed
from telemetry.svg import Axis, Series, bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def series_in(text: str) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(text)  # noqa: S314  our own
    return {group.attrib["data-series"]: group for group in root.iter(f"{SVG}g")}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Made-up results of every kind, beside the peer's true ones."""
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(RESULTS / PEER, folder)
    peer = json.loads((folder / PEER).read_text())
    quantiles = {"p50": 1.25, "p90": 2.0, "p95": 3.0, "p99": 4.75}
    decode_rows = [
        {
            **row, "adapter_dtype": "bf16" if row["distinct"] else None, "step_ms": row["step_ms"] / 2,
            "floor_ms": 1.5, "ratio": 1.17, "decode_tok_s": 12345.6,
        }
        for row in peer["rows"]
    ]  # fmt: skip
    serving_row: dict[str, Any] = {
        "output_tok_s": 1000.5, "steady_output_tok_s": None, "ttft_ms": quantiles, "tpot_ms": quantiles,
        "goodput": {"share": 0.75, "per_s": 3.5}, "loads": 7, "cold": {"added_ms": {"p50": 8.5, "p99": 40.0}},
    }  # fmt: skip
    reports: dict[str, Any] = {
        "decode-llama-3.1-8b-fp8-r16.json": {
            "shape": "llama-3.1-8b", "quantization": "fp8", "rows": decode_rows, "copy_tb_s": 4.27,
            "hardware": {"gpu": "NVIDIA H200"}, "versions": {"torch": "2.11.0"},
            "startup": {"weights_s": 3.5, "engine_s": 20.25}, "mixed_load": peer["mixed_load"][:1] and [
                {**peer["mixed_load"][0], "seconds": 9.5, "output_tok_s": 20700.1}
            ],
            "prefill": [
                {"prompts": 256, "prompt_len": 128, "distinct": 8, "seconds": 0.41, "prompt_tok_s": 79922.0,
                 "ratio_to_base": 0.953},
            ],
        },
        "gateway.json": {
            "saturating_rps": 2000.0,
            "setting": {"placement": {"measured processes": "pinned to 2 cores each: 0, 1"}},
            "at_half": {"rate": 1000.0, "added_ms": {"p50": 2.0, "p95": 5.0, "p99": 8.0}},
            "by_rate": [{"rate": 1500.0, "added_ms": {"p50": 3.0, "p95": 9.0, "p99": 24.0}}],
        },
        "serving-llama-3.1-8b-fp8.json": {
            "slots": 256, "zipf": 1.0, "versions": {"torch": "2.11.0"}, "hardware": {"gpu": "NVIDIA H200"},
            "rows": [
                {"registered": registered, "rate": rate, **serving_row}
                for registered in (8, 1000) for rate in (10.0, "inf")
            ],
            "cold_start": dict.fromkeys(
                (
                    "cold_ttft_ms", "warm_ttft_ms", "added_ms", "load_ms", "itl_during_loads_ms",
                    "itl_otherwise_ms", "itl_ratio",
                ),
                quantiles,
            ),
        },
        "kernels.json": {
            "figures": [{"op": "lora", "case": "shrink qkv", "us": 10.125, "gigabytes_per_s": 3400.4,
                         "floor_us": 8.0625, "floor_percent": 79.6}],
            "refused": {"rope_kv": "off"},
        },
        "quality.json": {
            "summary": [{"model": "sapling", "quantization": "fp8", "kv_dtype": "auto",
                         "adapter_dtype": "bf16", "mean_kl": 0.0012, "max_kl": 0.3, "top1": 0.998,
                         "accuracy": 0.99, "accuracy_exact": 1.0}],
        },
    }  # fmt: skip
    for name, report in reports.items():
        (folder / name).write_text(json.dumps(report))
    return folder


def test_every_plot_parses_and_has_its_series(results: Path, tmp_path: Path) -> None:
    written = draw(committed(results), tmp_path / "plots")
    assert {path.stem for path in written} == PLOTTED.keys()
    found = {path.stem: series_in(path.read_text()) for path in written}
    assert found["step-time"].keys() == {"Rootstock", "floor: bytes over copy bandwidth", "vLLM 0.26.0"}
    marks = [title.text for title in found["step-time"]["vLLM 0.26.0"].iter(f"{SVG}title")]
    assert marks[0] == "vLLM 0.26.0: 3.5"
    assert len(marks) == 9
    assert found["adapter-kinds"].keys() == {"rank 16, bf16"}
    assert found["throughput"].keys() == {"10 requests/s", "all at once"}
    assert found["latency"].keys() == {"TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"}
    bars = (tmp_path / "plots/kernels.svg").read_text()
    assert "lora shrink qkv" in bars
    assert ">79.6<" in bars


def test_a_plot_without_results_is_not_drawn_and_goes_when_they_go(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plots"
    draw(committed(results), folder)
    (results / "serving-llama-3.1-8b-fp8.json").unlink()
    written = draw(committed(results), folder)
    assert {path.stem for path in folder.glob("*.svg")} == {path.stem for path in written}
    assert {"throughput", "latency"}.isdisjoint(path.stem for path in written)
    assert draw(committed(tmp_path / "nothing"), folder) == []


def test_marks_stand_where_their_numbers_are() -> None:
    text = line_chart(
        "a < b",
        Axis("x", log=True, marks=(1, 10, 100)),
        Axis("y"),
        [Series("s", [(1, 0), (10, 5), (100, 10)])],
    )
    group = series_in(text)["s"]
    circles = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in group.iter(f"{SVG}circle")]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)  # decades are equally wide
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y2  # upwards is more
    assert "prefers-color-scheme: dark" in text


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="no points"):
        line_chart("t", Axis("x"), Axis("y"), [])
    with pytest.raises(ValueError, match="logarithmic"):
        line_chart("t", Axis("x"), Axis("y", log=True), [Series("s", [(1, 0)])])
    with pytest.raises(ValueError, match="no bars"):
        bar_chart("t", "x", [], 100)


def test_tables_say_what_the_results_say(results: Path) -> None:
    read = committed(results)
    decode = TABLES["decode"](read)
    assert "| 256 | 64 | 16 | bf16 | 16.05 | 1.5 | 1.17 | 12 346 | 7.8 | 32.1 |" in decode
    assert "copy 4.27 TB/s" in decode
    assert "| 768 | 256 / 256 | 0 | 9.5 | 20 700 | 21 000 | 18 767 |" in TABLES["mixed-load"](read)
    assert "| 256 | 128 | 8 | 0.41 | 79 922 | 0.953 |" in TABLES["prefill"](read)
    serving = TABLES["serving"](read)
    assert "| 1 000 | inf | 1 000 |  | 1.25 / 4.75 | 1.25 / 4.75 | 75.0% | 3.5 | 7 |" in serving
    assert "| lora | shrink qkv | 10.12 | 3 400 | 8.06 | 80 |" in TABLES["kernels"](read)
    assert "rope_kv" in TABLES["kernels"](read)
    assert "| sapling | fp8 | auto | bf16 | 0.0012 | 0.3 | 0.998 | 0.99 | 1 |" in TABLES["quality"](read)


def test_tables_without_results_say_so(tmp_path: Path) -> None:
    read = committed(tmp_path)
    assert {table(read) for table in TABLES.values()} == {MISSING}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_documents_are_what_the_committed_results_say(path: Path) -> None:
    document = path.read_text(encoding="utf-8")
    assert rewrite(document, committed(), plots_from(path)) == document, "run python -m benchmarks.plots"


def test_every_table_and_plot_stands_in_a_document() -> None:
    known = {("table", name) for name in TABLES} | {("plot", name) for name in PLOTTED}
    assert {block for path in DOCUMENTS for block in blocks_in(path.read_text(encoding="utf-8"))} == known


def test_a_plot_is_linked_where_it_is_drawn(results: Path, tmp_path: Path) -> None:
    block = "<!-- plot: step-time -->\n<!-- end -->"
    assert "![Decode step, llama-3.1-8b, fp8 base](plots/step-time.svg)" in rewrite(block, committed(results))
    assert rewrite(block, committed(tmp_path)) == block


def test_a_number_changed_by_hand_is_found(results: Path) -> None:
    block = "<!-- table: decode -->\n<!-- end -->"
    document = rewrite(f"text\n\n{block}\n\nmore text\n", committed(results))
    forged = document.replace("16.05", "15.05")
    assert forged != document
    assert rewrite(forged, committed(results)) == document


def test_the_committed_plots_are_drawn_from_the_committed_results(tmp_path: Path) -> None:
    drawn = draw(committed(), tmp_path)
    assert {path.name: path.read_text() for path in drawn} == {
        path.name: path.read_text() for path in PLOTS.glob("*.svg")
    }, "run python -m benchmarks.plots"


def test_the_peer_was_asked_for_the_same_work() -> None:
    peer = committed()(PEER)
    assert peer is not None
    assert {(row["batch"], row["distinct"]) for row in peer["rows"]} == {
        (1, 0), (32, 0), (128, 0), (256, 0), (1, 1), (32, 32), (256, 8), (256, 64), (256, 256),
    }  # fmt: skip
