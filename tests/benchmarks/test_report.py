"""Reports say on what, from which commit and how they were made."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import bookkeeping
from benchmarks.report import write_report


def test_a_report_carries_its_circumstances(tmp_path: Path) -> None:
    path = tmp_path / "results" / "figures.json"
    write_report(path, {"tok_s": 12.5})
    report = json.loads(path.read_text())
    assert report["tok_s"] == 12.5
    assert 1 <= report["hardware"]["cores"] <= (os.cpu_count() or 1)
    assert report["hardware"]["cpu"]
    assert report["commit"] == "unknown" or len(report["commit"].removesuffix("-dirty")) == 40
    assert report["command"].startswith("python ")


def test_figures_may_not_pass_for_circumstances(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="commit"):
        write_report(tmp_path / "x.json", {"commit": "of my choosing"})
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("depth", [0, 1])
def test_bookkeeping_keeps_every_row_running(depth: int) -> None:
    load = bookkeeping.Load(num_rows=8, num_adapters=2, sampling={"stop": ("###",)}, depth=depth)
    figures = bookkeeping.measure(load, num_steps=20)
    assert load.scheduler.num_running == 8
    assert 0 < figures["schedule_commit_ms"]["p50"] <= figures["schedule_commit_ms"]["p99"]
    assert figures["runner_ms"]["p50"] > 0
    load.scheduler.check_integrity()
