"""Starts the engine processes of `benchmarks.cluster`, with a Redis for their journals.

They are null engines, or compute on a random base.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.local.redis import start_redis

RANK = 16
"""Of all adapters."""


@dataclass(frozen=True)
class Engines:
    """What every replica runs."""

    command: Sequence[str]
    settings: Mapping[str, str]
    """ROOTSTOCK_* variables, without their prefix."""
    described: str
    gpus: Sequence[str] = ()
    """The replicas are on these in turn."""


def null_engines(step_s: float, rows: int, slots: int) -> Engines:
    """Engines with steps of a fixed time, without a model. Their adapters load at once."""
    settings = {
        "ENGINE_NULL": "true",
        "ENGINE_NULL_STEP_SECONDS": str(step_s),
        "ENGINE_NULL_DEPTH": "1",
        "ENGINE_MAX_ROWS": str(rows),
        "DEVICE_NUM_SLOTS": str(slots),
    }
    described = f"null, {rows} rows, steps of {1000 * step_s:g} ms, adapters load at once"
    return Engines((sys.executable, "-m", "engine.main"), settings, described)


def random_engines(
    shape: str, quantization: str, gpus: Sequence[str], rows: int, slots: int, adapters: int, max_len: int
) -> Engines:
    """Engines on a random base, on `gpus` in turn."""
    command = [
        sys.executable, "-m", "benchmarks.cluster_engine", "--shape", shape, "--quantization", quantization,
        "--adapters", str(adapters), "--rank", str(RANK), "--max-len", str(max_len),
    ]  # fmt: skip
    settings = {"ENGINE_MAX_ROWS": str(rows), "DEVICE_NUM_SLOTS": str(slots)}
    described = f"{shape} {quantization}, {rows} rows; adapters of rank {RANK} in page-locked memory"
    return Engines(command, settings, described, gpus)


@contextmanager
def running(engines: Engines, count: int) -> Iterator[list[str]]:
    """Runs so many replicas. Yields their endpoints."""
    with tempfile.TemporaryDirectory(prefix="rs-") as name:
        folder = Path(name)
        redis = start_redis(folder, ephemeral=True)
        processes: list[subprocess.Popen[bytes]] = []
        endpoints = [f"ipc://{folder}/{number}.sock" for number in range(count)]
        try:
            for number, endpoint in enumerate(endpoints):
                settings = {
                    **engines.settings,
                    "ENGINE_ENGINE_ID": f"engine-{number}",
                    "ENGINE_ENDPOINT": endpoint,
                    "ENGINE_REDIS_URL": redis.url,
                    "ENGINE_DATA_DIR": str(folder),
                }
                environment = os.environ | {f"ROOTSTOCK_{key}": value for key, value in settings.items()}
                if engines.gpus:
                    environment["CUDA_VISIBLE_DEVICES"] = engines.gpus[number % len(engines.gpus)]
                with (folder / f"{number}.log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(engines.command, env=environment, stdout=log, stderr=log)
                    )
            yield endpoints
        finally:
            for number, process in enumerate(processes):
                if process.poll() is not None:
                    print((folder / f"{number}.log").read_text(errors="replace")[-2000:], file=sys.stderr)
                process.kill()
                process.wait(30)
            redis.stop()
