"""Adds to every benchmark report the hardware, the commit and the command.

Does not import torch only to name a device.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


def write_report(path: Path, figures: dict[str, Any]) -> None:
    """Write `figures` as JSON with "hardware", "commit" and "command" added. Creates the folder.

    Raises ValueError when the figures claim one of those keys for themselves.
    """
    envelope = {"hardware": hardware(), "commit": commit(), "command": command()}
    taken = envelope.keys() & figures.keys()
    if taken:
        raise ValueError(f"figures may not set {', '.join(sorted(taken))}: the report does")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**envelope, **figures}, indent=2) + "\n", encoding="utf-8")


def conclude(figures: dict[str, Any], out: Path | None, *, clean: bool) -> int:
    """Writes the report if `out` names a file, prints the figures, and returns the trial's exit code."""
    if out is not None:
        write_report(out, figures)
    for name, value in figures.items():
        print(f"{name}: {value}")
    return 0 if clean else 1


def hardware() -> dict[str, Any]:
    """CPU model and cores this process may use; the GPUs' names and number where the driver shows any."""
    described: dict[str, Any] = {"cpu": _cpu_model(), "cores": _usable_cores()}
    gpus = _gpu_models()
    if gpus:
        described["gpu"] = gpus[0]
        described["gpus"] = len(gpus)
    return described


def commit() -> str:
    """The commit's hash, "-dirty" added when tracked files differ; "unknown" without a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("-dirty" if changed else "")


def command() -> str:
    """The command line, as one would type it: the interpreter without its path."""
    return " ".join(["python", *sys.orig_argv[1:]])


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_ROOT, check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_models() -> list[str]:
    """From the driver's own files; from torch only where the benchmark has loaded it anyway."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    models = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("Model:"):
                models.append(line.partition(":")[2].strip())
    return models
