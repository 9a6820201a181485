"""Runs `rootstock up` in a folder, for benchmarks that measure a whole service over HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.programs import CHECKOUT

START_S = 120.0
STOP_S = 60.0
_ROOTSTOCK = (sys.executable, "-m", "cli.main")


@dataclass(frozen=True)
class LocalService:
    """A running service."""

    base_url: str
    """Ends in /v1."""
    data: Path

    def operate(self, *arguments: str) -> str:
        """Runs a `rootstock` command on it. Returns what it prints. Raises RuntimeError when it fails."""
        command = [*_ROOTSTOCK, *arguments, "--data", str(self.data)]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"rootstock {' '.join(arguments)}: {done.stderr}")
        return done.stdout.strip()


@contextmanager
def local_service(folder: Path, *options: str, start_s: float = START_S) -> Iterator[LocalService]:
    """Starts it on any free port with its data in `folder`, which may have those of an earlier one. Stops it
    at the end. Raises RuntimeError, with the end of its log, when it does not start.
    """
    data, log = folder / "data", folder / "up.log"
    serving = data / "serving.json"
    serving.unlink(missing_ok=True)
    command = [*_ROOTSTOCK, "up", "--port", "0", "--data", str(data), *options]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=CHECKOUT, stdout=file, stderr=file) as process,
    ):
        try:
            deadline = time.monotonic() + start_s
            while not serving.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    end = log.read_text(errors="replace")[-3000:]
                    raise RuntimeError(f"rootstock up did not start:\n{end}")
                time.sleep(0.1)
            yield LocalService(str(json.loads(serving.read_text())["base_url"]), data)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)
