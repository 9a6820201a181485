"""Times every kernel against its floor: `python -m kernels.bench [op ...] [--out FILE] [--list] [--device
cpu]`.

An op is timed only if all its checks pass: after a failed check the op has no figures and the exit code is 1.
`kernels/<op>/cases.py` lists in `BENCHES` what is timed (see `Bench`).

A floor is what the op's bytes take at the copy bandwidth measured on the same device in the same run, or its
operations at the measured peak, whichever is longer.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from kernels.timing import Ceilings, measure_ceilings, time_us

_FOLDER = Path(__file__).resolve().parent


class Bench(Protocol):
    """One shape of an op. May have a `precision`, "fp8", where its operations are not bf16's."""

    @property
    def name(self) -> str: ...

    @property
    def bytes(self) -> int:
        """What has to be read and written at least."""
        ...

    @property
    def flops(self) -> int: ...

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        """(run, check): `run` takes other buffers every time, more than caches hold; `check` raises
        AssertionError where the result is off the reference's."""
        ...


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    op: str
    case: str
    us: float
    gigabytes_per_s: float
    floor_us: float
    floor_percent: float


class Red(Exception):
    """A check failed: a wrong result is not worth timing."""


def find_benches(package: str = "kernels", folder: Path = _FOLDER) -> dict[str, Sequence[Bench]]:
    """Returns benches by op, without ops that have none."""
    found = {}
    for path in sorted(folder.glob("*/cases.py")):
        benches = getattr(importlib.import_module(f"{package}.{path.parent.name}.cases"), "BENCHES", None)
        if benches:
            found[path.parent.name] = benches
    return found


def time_op(op: str, benches: Sequence[Bench], ceilings: Ceilings, device: torch.device) -> list[Figure]:
    """Returns all figures of an op, or raises Red."""
    figures = []
    for bench in benches:
        run, check = bench.make(device)
        try:
            check()
        except AssertionError as error:
            raise Red(f"{op} {bench.name}: {_first_line(error)}") from error
        us = time_us(run, device)
        del run, check
        if device.type == "cuda":
            torch.cuda.empty_cache()
        floor_us = ceilings.floor_us(bench.bytes, bench.flops, getattr(bench, "precision", "bf16"))
        figures.append(Figure(op, bench.name, us, bench.bytes / us / 1e3, floor_us, 100 * floor_us / us))
    return figures


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """Returns the lines of the table, its head first."""
    width = max([len(figure.case) for figure in figures] + [4])
    name = max([len(figure.op) for figure in figures] + [2])
    yield f"{'op':<{name}} {'case':<{width}} {'us':>9} {'GB/s':>7} {'floor us':>9} {'% of floor':>10}"
    for one in figures:
        yield (
            f"{one.op:<{name}} {one.case:<{width}} {one.us:9.2f} {one.gigabytes_per_s:7.0f}"
            f" {one.floor_us:9.2f} {one.floor_percent:9.0f}%"
        )


def envelope(device: torch.device) -> dict[str, Any]:
    """Returns the context of the figures."""
    hardware: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
        hardware["triton"] = importlib.import_module("triton").__version__
    return {
        "hardware": hardware,
        "commit": _commit(),
        "command": " ".join(["python", *sys.orig_argv[1:]]),
    }


def _commit() -> str:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
            cwd=_FOLDER,
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return described.stdout.strip()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", metavar="op", help="all of them by default")
    parser.add_argument("--out", type=Path, help="JSON with the figures")
    parser.add_argument("--list", action="store_true", help="list the ops and exit")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, benches: dict[str, Sequence[Bench]] | None = None) -> int:
    """Returns the exit code: 1 when an op failed its checks, 2 when one is not known."""
    arguments = _arguments(argv)
    known = find_benches() if benches is None else benches
    unknown = sorted(set(arguments.ops) - known.keys())
    if unknown:
        _say(f"no benches: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    chosen = {op: known[op] for op in arguments.ops or known}
    if arguments.list:
        for op, cases in chosen.items():
            for bench in cases:
                _say(f"{op} {bench.name}")
        return 0
    ceilings = measure_ceilings(arguments.device)
    figures: list[Figure] = []
    refused: dict[str, str] = {}
    for op, cases in chosen.items():
        try:
            figures += time_op(op, cases, ceilings, arguments.device)
        except Red as red:
            refused[op] = str(red)
        if arguments.out:  # after each: a run that is stopped keeps what is done
            _write(arguments.out, arguments.device, ceilings, figures, refused)
    peaks = ", ".join(f"{name} {value / 1e12:.0f} TFLOP/s" for name, value in ceilings.peak.items())
    _say(f"copy {ceilings.copy / 1e9:.0f} GB/s, {peaks}")
    for line in table(figures):
        _say(line)
    for problem in refused.values():
        _say(f"REFUSED, check is red: {problem}")
    return 1 if refused else 0


def _write(
    path: Path, device: torch.device, ceilings: Ceilings, figures: list[Figure], refused: dict[str, str]
) -> None:
    report = {
        **envelope(device),
        "ceilings": asdict(ceilings),
        "figures": [asdict(figure) for figure in figures],
        "refused": refused,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
