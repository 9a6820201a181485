"""What is made of the moments and gaps that onboarding's benchmarks see."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.calibration.samples import read_samples
from benchmarks.beside_calibrations import _figures
from benchmarks.onboarding import FILES, NUM_SAMPLES, SAPLING, Onboarding, _summary, _write_samples, variant
from tokenization.codec import TextCodec


def test_what_calibration_took_is_told_apart() -> None:
    runs = [
        Onboarding(2_000_000, 1.0, 1.5, 3.0, 3.0 + calibration, 3.5 + calibration, 16, 400, 5.0, 4.0)
        for calibration in (9.0, 5.0, 6.0)
    ]
    figures = _summary(runs)
    assert (figures["calibration_s"], figures["first_token_s"]) == (6.0, 9.5)
    assert figures["worst_first_token_s"] == 12.5
    assert figures["without_calibration_s"] == pytest.approx(3.5)
    assert figures["worst_without_calibration_s"] == pytest.approx(3.5)
    assert (figures["megabytes"], figures["samples"], figures["tokens"]) == (2.0, 16, 400)
    assert len(figures["runs"]) == 3


def test_a_variant_has_other_bytes_of_the_same_length(tmp_path: Path) -> None:
    source = SAPLING / "adapters" / "pirate"
    contents = {(source / FILES[0]).read_bytes()} | {
        (variant(source, tmp_path / str(number), number) / FILES[0]).read_bytes() for number in range(3)
    }
    assert len(contents) == 4
    assert len({len(content) for content in contents}) == 1


def test_the_larger_base_brings_samples_that_can_be_read(tmp_path: Path) -> None:
    _write_samples(tmp_path / "calibration.jsonl")
    codec = TextCodec.load(SAPLING / "base")
    found = read_samples(tmp_path / "calibration.jsonl", "base", codec, 512)
    assert (len(found.samples), found.cut, found.left_out) == (NUM_SAMPLES, [], [])


def test_turns_are_told_together_and_one_by_one() -> None:
    figures = _figures([[0.010, 0.010, 0.040], [0.020] * 5])
    assert (figures["gaps"], figures["p50_ms"], figures["mean_ms"]) == (8, 20.0, 20.0)
    assert (figures["means_ms"], figures["medians_ms"]) == ([20.0, 20.0], [10.0, 20.0])
