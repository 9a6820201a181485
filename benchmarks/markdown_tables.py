"""Writes tables of the documents in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a table; None is an empty cell."""
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    whole = isinstance(value, int) or abs(value) >= 1000
    return f"{value:,.0f}".replace(",", " ") if whole else f"{value:g}"


def circumstances(report: Mapping[str, Any], name: str) -> str:
    """Returns what a report was measured with."""
    hardware, versions = report.get("hardware", {}), report.get("versions", {})
    parts = [f"`{name}`", hardware.get("gpu", hardware.get("cpu", "")), f"torch {versions.get('torch')}"]
    if "copy_tb_s" in report:
        parts.append(f"copy {report['copy_tb_s']} TB/s")
    if "startup" in report:
        startup = report["startup"]
        parts.append(f"start: weights {startup['weights_s']} s, engine {startup['engine_s']} s")
    return ", ".join(part for part in parts if part)
