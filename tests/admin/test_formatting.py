"""Figures in words."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from admin import formatting
from admin.adapters.upload_fields import upload_field_of
from telemetry.svg import Axis, Series, line_chart, without_style


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (300_784, "301 kB"),
        (99_600, "100 kB"),
        (999_600, "1.0 MB"),
        (2 << 30, "2.1 GB"),
        (10**16, "10000 TB"),
    ],
)
def test_sizes(num_bytes: int | None, text: str) -> None:
    assert formatting.size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "past", "future"),
    [
        (0, "just now", "just now"),
        (44, "just now", "in less than a minute"),
        (45, "1 minute ago", "in 1 minute"),
        (3 * 60, "3 minutes ago", "in 3 minutes"),
        (59 * 60, "59 minutes ago", "in 59 minutes"),
        (59.6 * 60, "1 hour ago", "in 1 hour"),
        (23.4 * 3600, "23 hours ago", "in 23 hours"),
        (23.6 * 3600, "1 day ago", "in 1 day"),
        (30 * 86400, "30 days ago", "in 30 days"),
        (31 * 86400, "2030-04-29", "2030-06-30"),
    ],
)
def test_times_relative_to_now(seconds: float, past: str, future: str) -> None:
    now = datetime(2030, 5, 30, 12, tzinfo=UTC)
    assert formatting.ago(now - timedelta(seconds=seconds), now) == past
    assert formatting.ago(now + timedelta(seconds=seconds), now) == future


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "a few seconds"),
        (12, "about 10 seconds"),
        (54, "about 55 seconds"),
        (70, "about a minute"),
        (200, "about 3 minutes"),
        (3 * 3600, "about 3 hours"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


def test_what_is_no_number_is_a_dash() -> None:
    for value in (None, math.nan, math.inf):
        assert formatting.figure(value) == formatting.short(value) == formatting.percent(value) == "–"
    assert formatting.figure(-0.5, 2) == "−0.50"
    assert formatting.short(1234.5) == "1.23e+03"
    assert formatting.percent(0.9788) == "97.88 %"


@pytest.mark.parametrize(
    ("param", "slot"),
    [
        (None, "form"),
        ("name", "name"),
        ("calibration.file_id", "calibration"),
        ("adapter_model.safetensors", "weights"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", "weights"),
        ("__metadata__", "weights"),
        ("adapter_config.json", "config"),
        ("target_modules", "config"),
        ("r", "config"),
    ],
)
def test_which_field_of_the_page_a_refusal_is_about(param: str | None, slot: str) -> None:
    assert upload_field_of(param) == slot


def test_a_chart_inside_a_page_brings_neither_style_nor_ground() -> None:
    chart = line_chart("Title", Axis("x"), Axis("y"), [Series("one", [(0, 1), (1, 2)])])
    inside = without_style(chart)
    assert inside.startswith("<svg")
    assert inside.endswith("</svg>\n")
    assert "<style" not in inside
    assert "var(--paper)" not in inside
    assert inside.count("<circle") == chart.count("<circle")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (2.25, "2.25"),
        (12.34, "12.3"),
        (999, "999"),
        (1234, "1.2k"),
        (999_999, "1M"),
        (-2.5e9, "−2.5B"),
        (1e15, "1000T"),
    ],
)
def test_compact_numbers(value: float | None, text: str) -> None:
    assert formatting.compact(value) == text


@pytest.mark.parametrize(
    ("micro_usd", "exact", "rough"),
    [
        (None, "–", "–"),
        (0, "$0.00", "$0"),
        (1, "$0.000001", "$0.000001"),
        (12_345, "$0.012345", "$0.0123"),
        (500_000, "$0.50", "$0.50"),
        (1_234_567, "$1.234567", "$1.23"),
        (10_000_000, "$10.00", "$10"),
        (-5_500_000, "−$5.50", "−$5.50"),
        (1_234_000_000, "$1,234.00", "$1,234"),
        (20_000_000_000, "$20,000.00", "$20k"),
    ],
)
def test_money(micro_usd: int | None, exact: str, rough: str) -> None:
    assert formatting.usd(micro_usd) == exact
    assert formatting.usd_roughly(micro_usd) == rough
