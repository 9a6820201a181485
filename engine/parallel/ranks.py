"""Starts the other ranks' processes, sends them messages, and notices when one is gone.

Used in rank 0, the engine's process. Its steps fail as soon as a rank is gone, since their sums do; what is
watched here says which rank it was and why, and ends a rank that hangs so that the sums fail, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
import structlog
import zmq

from engine.parallel.messages import (
    AdapterDone,
    Alive,
    Failed,
    FromRank,
    RankTask,
    Ready,
    Stop,
    ToRank,
    decoder,
    encode,
)
from engine.transport.silence import Silence

log = structlog.get_logger(__name__)

PROGRAM = ("-m", "engine.parallel.rank")
START_SECONDS = 600.0
"""For all ranks to load their weights."""
SILENT_SECONDS = 5.0
"""Without a report, after which a rank counts as hung."""
LOOK_MS = 100
STOP_SECONDS = 3.0


class RankLost(RuntimeError):
    """A rank is gone, and with it the engine."""


class Ranks:
    """The ranks 1 to `size` - 1. `send` is called by the step loop and the slot table, in order."""

    def __init__(
        self, make_task: Callable[[int, str, str], RankTask], size: int, program: Sequence[str] = PROGRAM
    ) -> None:
        """Starts the processes. `make_task(rank, steps, reports)` returns a rank's task, with the endpoints
        of its messages; `program`: the interpreter's arguments.
        """
        self.on_lost: Callable[[RankLost], None] = lambda _: None
        """Called once, from the watching thread."""
        self.on_adapter: Callable[[int, str, str | None], None] = lambda *_: None
        """Called with (slot, digest, error) for every rank's load, from the watching thread."""
        self._folder = Path(tempfile.mkdtemp(prefix="rs-ranks-"))
        self._context = zmq.Context(io_threads=1)
        self._reports = self._context.socket(zmq.PULL)
        reports = f"ipc://{self._folder}/reports"
        self._reports.bind(reports)
        self._sockets: dict[int, zmq.Socket] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._silence: dict[int, Silence] = {}
        self._ready: set[int] = set()
        self._lost: RankLost | None = None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._send_lock = threading.Lock()
        for rank in range(1, size):
            steps = f"ipc://{self._folder}/rank-{rank}"
            socket = self._sockets[rank] = self._context.socket(zmq.PUSH)
            socket.linger = 0
            socket.sndhwm = 0
            socket.connect(steps)
            self._processes[rank] = _start(make_task(rank, steps, reports), program)
        self._watch = threading.Thread(target=self._keep_watching, name="ranks", daemon=True)
        self._watch.start()

    def wait_started(self) -> None:
        """Waits until every rank's process runs. Raises RankLost."""
        self._wait_for_all(self._silence, "did not start")

    def wait_ready(self) -> None:
        """Waits until every rank has loaded its weights and allocated its memory. Raises RankLost."""
        self._wait_for_all(self._ready, "were not ready")
        # All are connected and none connects again: an engine that is killed leaves no folder behind.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _wait_for_all(self, heard: Collection[int], what: str) -> None:
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._lost is not None or len(heard) == len(self._processes), START_SECONDS
            )
            if self._lost is not None:
                raise self._lost
            if not ended:
                missing = ", ".join(str(rank) for rank in self._processes if rank not in heard)
                raise RankLost(f"ranks {missing} {what} within {START_SECONDS:g} s")

    def send(self, message: ToRank) -> None:
        """Sends a message to all ranks."""
        payload = encode(message)
        with self._send_lock:
            for socket in self._sockets.values():
                socket.send(payload)

    def loss(self, within: float) -> RankLost | None:
        """Returns which rank is gone, waiting for that to be noticed."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, within)
            return self._lost

    def close(self) -> None:
        """Ends the ranks' processes."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._watch.join()
        self.send(Stop())
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for socket in (*self._sockets.values(), self._reports):
            socket.close(0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    # The watching thread ----------------------------------------------------------------------------------

    def _keep_watching(self) -> None:
        decode = decoder(FromRank).decode
        while not self._closing.is_set():
            if self._reports.poll(LOOK_MS):
                self._take(decode(self._reports.recv()))
            else:
                self._look_for_losses()

    def _take(self, report: FromRank) -> None:
        with self._changed:
            now = time.monotonic()
            self._silence.setdefault(report.rank, Silence(now)).heard(now)
            if isinstance(report, Ready):
                self._ready.add(report.rank)
            self._changed.notify_all()
        match report:
            case AdapterDone(_, slot, digest, error):
                self.on_adapter(slot, digest, error)
            case Failed(rank, reason):
                self._lose(rank, f"failed: {reason}")
            case Alive() | Ready():
                pass

    def _look_for_losses(self) -> None:
        now = time.monotonic()
        for rank, process in self._processes.items():
            status = process.poll()
            if status is not None:
                ended = f"signal {-status}" if status < 0 else f"status {status}"
                self._lose(rank, f"ended with {ended}")
            elif rank in self._silence and self._silence[rank].seconds(now) > SILENT_SECONDS:
                process.kill()
                self._lose(rank, f"did not answer for {SILENT_SECONDS:g} s and was killed")

    def _lose(self, rank: int, why: str) -> None:
        with self._changed:
            if self._lost is not None:
                return
            self._lost = RankLost(f"rank {rank} of {len(self._processes) + 1} {why}")
            self._changed.notify_all()
        log.critical("a rank is gone", rank=rank, reason=why)
        self.on_lost(self._lost)


def _start(task: RankTask, program: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, *program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(task))
    process.stdin.close()
    return process
