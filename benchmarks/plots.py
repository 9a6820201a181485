"""Draws the documents' plots and tables of the GPU and its host, from the committed results and nothing else.

    python -m benchmarks.plots

draws one SVG per plot under docs/plots/, and rewrites in the documents what stands between
`<!-- table: NAME -->` or `<!-- plot: NAME -->` and `<!-- end -->`. What has no results is not drawn, and its
table says so.

`benchmarks.tables` defines the tables, `telemetry.svg` draws the charts.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.tables import DECODE, PEER, ROOT, SERVING, TABLES, Results, committed
from telemetry.svg import Axis, Series, bar_chart, line_chart

PLOTS = ROOT / "docs/plots"
DOCUMENTS = tuple(
    ROOT / name
    for name in (
        "README.md",
        "docs/performance.md",
        "docs/performance/gpu.md",
        "docs/performance/history.md",
        "docs/performance/kernels.md",
    )
)

_BLOCK = re.compile(r"(<!-- (?P<kind>table|plot): (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def step_times(results: Results) -> str | None:
    """Step time by batch and distinct adapters, against the floor and the peer."""
    report = results(DECODE)
    if report is None or "rows" not in report:
        return None
    rows = [row for row in report["rows"] if row["rank"] in (None, "16")]
    places = {(row["batch"], row["distinct"]): place for place, row in enumerate(rows)}
    series = [
        Series(name, [(place, row[key]) for place, row in enumerate(rows)], line=False)
        for name, key in (("Rootstock", "step_ms"), ("floor: bytes over copy bandwidth", "floor_ms"))
    ]
    peer = results(PEER)
    if peer is not None:
        points = [
            (places[key], row["step_ms"])
            for row in peer["rows"]
            if (key := (row["batch"], row["distinct"])) in places
        ]
        series.append(Series(peer["peer"], points, line=False))
    categories = tuple(f"{batch} / {distinct}" for batch, distinct in places)
    return line_chart(
        f"Decode step, {report['shape']}, {report['quantization']} base",
        Axis("rows in the batch / distinct adapters of rank 16", categories=categories),
        Axis("ms per step", log=True),
        series,
    )


def steps_by_adapters(results: Results) -> str | None:
    """Step time at the largest batch by distinct adapters of rank 16, beside the peer."""
    report, peer = results(DECODE), results(PEER)
    if report is None or peer is None or "rows" not in report:
        return None
    batch = max(row["batch"] for row in report["rows"])
    numbers = sorted({row["distinct"] for row in report["rows"] if row["batch"] == batch})
    places = {number: place for place, number in enumerate(numbers)}
    series = [
        Series(
            name,
            [
                (places[row["distinct"]], row["step_ms"])
                for row in sorted(rows, key=lambda row: row["distinct"])
                if row["batch"] == batch and row["distinct"] in places
            ],
        )
        for name, rows in (("Rootstock", report["rows"]), (peer["peer"], peer["rows"]))
    ]
    return line_chart(
        f"Time of a decode step of {batch} rows, {report['shape']}, {report['hardware']['gpu']}",
        Axis("distinct adapters of rank 16 in the batch", categories=tuple(map(str, numbers))),
        Axis("ms per step"),
        series,
    )


def adapter_kinds(results: Results) -> str | None:
    """Step time at 256 rows by distinct adapters, for each rank and type measured."""
    rows = []
    for name in (
        DECODE,
        "decode-llama-3.1-8b-fp8-ranks.json",
        "decode-llama-3.1-8b-fp8-adapters-fp8.json",
    ):
        rows += (results(name) or {}).get("rows", [])
    if not rows:
        return None
    batch = max(row["batch"] for row in rows)
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["batch"] == batch and row["distinct"]:
            kind = f"rank {row['rank']}, {row['adapter_dtype']}"
            lines.setdefault(kind, []).append((row["distinct"], row["step_ms"]))
    if not lines:
        return None
    return line_chart(
        f"Decode step of {batch} rows",
        Axis("distinct adapters in the batch", log=True, marks=_values(lines)),
        Axis("ms per step"),
        [Series(kind, sorted(points)) for kind, points in sorted(lines.items())],
    )


def throughput(results: Results) -> str | None:
    """Output tokens per second by number of registered adapters, at every rate."""
    report = results(SERVING)
    if report is None:
        return None
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in report["rows"]:
        saturated = row["rate"] == "inf" and row["steady_output_tok_s"] is not None
        name = "all at once" if row["rate"] == "inf" else f"{row['rate']:g} requests/s"
        value = row["steady_output_tok_s"] if saturated else row["output_tok_s"]
        lines.setdefault(name, []).append((row["registered"], value))
    return line_chart(
        f"Throughput over registered adapters, {report['slots']} resident, Zipf {report['zipf']:g}",
        Axis("registered adapters", log=True, marks=_values(lines)),
        Axis("output tokens per second"),
        [Series(name, sorted(points)) for name, points in lines.items()],
    )


def latency(results: Results) -> str | None:
    """TTFT and TPOT percentiles by number of registered adapters, at the highest finite rate."""
    report = results(SERVING)
    finite = [row for row in (report or {}).get("rows", []) if row["rate"] != "inf"]
    if not finite:
        return None
    rate = max(row["rate"] for row in finite)
    rows = sorted((row for row in finite if row["rate"] == rate), key=lambda row: row["registered"])
    series = [
        Series(f"{name} {quantile}", [(row["registered"], row[key][quantile]) for row in rows])
        for name, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))
        for quantile in ("p50", "p99")
    ]
    return line_chart(
        f"Latency at {rate:g} requests per second",
        Axis("registered adapters", log=True, marks=tuple(row["registered"] for row in rows)),
        Axis("ms", log=True),
        series,
    )


def kernels(results: Results) -> str | None:
    """Each kernel's share of the speed that its bytes allow."""
    report = results("kernels.json")
    if report is None or not report["figures"]:
        return None
    bars = [(f"{one['op']} {one['case']}", round(one["floor_percent"], 1)) for one in report["figures"]]
    return bar_chart("Kernels: % of the floor of bytes", "% of floor", bars, limit=100)


def gateway(results: Results) -> str | None:
    """What one API process adds by the rate of requests."""
    report = results("gateway.json")
    if report is None:
        return None
    rows = sorted([*report["by_rate"], report["at_half"]], key=lambda row: row["rate"])
    series = [
        Series(f"{quantile} added", [(row["rate"], row["added_ms"][quantile]) for row in rows])
        for quantile in ("p50", "p95", "p99")
    ]
    where = report["setting"]["placement"]["measured processes"].partition(":")[0]
    return line_chart(
        f"One API process ({where}), saturated at {report['saturating_rps']:,.0f} requests/s",
        Axis("requests per second"),
        Axis("ms added", log=True),
        series,
    )


def _values(lines: dict[str, list[tuple[float, float]]]) -> tuple[float, ...]:
    """All x there are, ascending: where the axis is to have its marks."""
    return tuple(sorted({x for points in lines.values() for x, _ in points}))


PLOTTED: dict[str, Callable[[Results], str | None]] = {
    "step-time": step_times,
    "steps-by-adapters": steps_by_adapters,
    "adapter-kinds": adapter_kinds,
    "throughput": throughput,
    "latency": latency,
    "kernels": kernels,
    "gateway": gateway,
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes every plot that has results, and removes those that have none any more."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Any] = []
    for name, plot in PLOTTED.items():
        path = folder / f"{name}.svg"
        drawn = plot(results)
        if drawn is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(drawn, encoding="utf-8")
            written.append(path)
    return written


def rewrite(document: str, results: Results, folder: str = "plots") -> str:
    """Returns the document with every table and link rendered anew.

    Args:
        folder: where the plots are, as seen from the document.

    Raises:
        KeyError: the document names a table or plot that is not known.
    """

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        if match["kind"] == "table":
            return f"{match[1]}{TABLES[name](results)}\n{match[4]}"
        return f"{match[1]}{_link(name, results, folder)}{match[4]}"

    return _BLOCK.sub(replaced, document)


def blocks_in(document: str) -> list[tuple[str, str]]:
    """(kind, name) of each."""
    return [(match["kind"], match["name"]) for match in _BLOCK.finditer(document)]


def plots_from(document: Path) -> str:
    """Returns the way to the plots from a document's folder."""
    return Path(os.path.relpath(PLOTS, document.parent)).as_posix()


def _link(name: str, results: Results, folder: str) -> str:
    drawn = PLOTTED[name](results)
    if drawn is None:
        return ""
    title = ElementTree.fromstring(drawn).attrib["aria-label"]  # noqa: S314  our own
    return f"![{title}]({folder}/{name}.svg)\n"


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for path in draw(committed(), PLOTS):
        print(path.relative_to(ROOT))
    for path in DOCUMENTS:
        document = path.read_text(encoding="utf-8")
        path.write_text(rewrite(document, committed(), plots_from(path)), encoding="utf-8")


if __name__ == "__main__":
    main()
