"""Runs a rank other than 0: a process that computes its part of every step that rank 0 plans.

`python -m engine.parallel.rank` reads its task (JSON) from standard input. It handles messages one after the
other, so that steps, loads and unloads happen in the order in which rank 0 decided them. It ends when rank 0
says so or is gone, and when a step fails; it says why, where it can.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog
import torch
import zmq

from engine.lora.loader import OnDone
from engine.model.collectives import ShardGroup
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.shards import Shard
from engine.parallel import joining
from engine.parallel.messages import (
    AdapterDone,
    Alive,
    Begin,
    Failed,
    FromRank,
    IdleAdapter,
    LoadAdapter,
    RankTask,
    Ready,
    Step,
    Stop,
    ToRank,
    UnloadAdapter,
    decoder,
    encode,
)
from engine.parallel.rank_engines import RankEngine, make_engine
from engine.protocol import AdapterRef
from telemetry import logs

log = structlog.get_logger(__name__)

ALIVE_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
_tasks = msgspec.json.Decoder(RankTask)


class Reports:
    """Sends reports to rank 0, from any thread."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 1000
        self._socket.connect(endpoint)
        self._lock = threading.Lock()

    def send(self, report: FromRank) -> None:
        """Sends a report; once this is closed, nothing: the thread that says it is alive may outlast it."""
        with self._lock:
            if not self._socket.closed:
                self._socket.send(encode(report))

    def close(self) -> None:
        with self._lock:
            self._socket.close()


LoadModel = Callable[[RankTask, ShardGroup], Model]
MakeEngine = Callable[[RankTask, Model, Begin, OnDone], RankEngine]


def load_base(task: RankTask, group: ShardGroup) -> Model:
    """Loads the rank's part of the base."""
    dtype = torch.float32 if task.device == "cpu" else torch.bfloat16
    return load_model(Path(task.base), task.quantization, dtype, task.device, group)


def run(task: RankTask, load: LoadModel, make: MakeEngine) -> None:
    """Serves rank 0 until it says Stop or is gone."""
    context = zmq.Context()
    reports = Reports(context, task.reports)
    steps = context.socket(zmq.PULL)
    steps.bind(task.steps)
    threading.Thread(target=_keep_alive, args=(reports, task), daemon=True, name="alive").start()
    try:
        torch.set_num_threads(task.threads)
        if task.device != "cpu":
            torch.cuda.set_device(torch.device(task.device))
        store = joining.connect_store(task.store_port)
        group = joining.join(store, Shard(task.rank, task.size), task.backend, torch.device(task.device))
        _serve(task, load(task, group), make, steps, reports)
    except Exception as error:  # the process's edge: rank 0 says why the engine ends
        log.exception("rank failed", rank=task.rank, reason=str(error))
        reports.send(Failed(task.rank, str(error)))
        raise SystemExit(1) from error
    finally:
        reports.close()


def _serve(task: RankTask, model: Model, make: MakeEngine, steps: zmq.Socket, reports: Reports) -> None:
    log.info("weights loaded", rank=task.rank, of=task.size, device=task.device)
    decode = decoder(ToRank).decode
    engine: RankEngine | None = None

    def loaded(slot: int, digest: str, error: str | None) -> None:
        reports.send(AdapterDone(task.rank, slot, digest, error))

    while True:
        message = decode(steps.recv())
        if isinstance(message, Begin):
            engine = make(task, model, message, loaded)
            gc.collect()
            gc.freeze()  # as in rank 0's process
            reports.send(Ready(task.rank))
            continue
        if isinstance(message, Stop):
            return
        assert engine is not None, f"{type(message).__name__} before Begin"
        match message:
            case Step():
                engine.step(message)
            case LoadAdapter(slot, digest, rank):
                adapter = AdapterRef(digest, rank)
                engine.loader.size_of(adapter)  # which rank 0's slot table has reserved
                engine.loader.start_load(slot, adapter)
            case UnloadAdapter(slot):
                engine.loader.unload(slot)
            case IdleAdapter(slot):
                engine.loader.idle(slot)


def _keep_alive(reports: Reports, task: RankTask) -> None:
    """Tells rank 0 that this process runs, and ends it when rank 0's is gone."""
    pause = threading.Event()
    while not pause.wait(ALIVE_SECONDS):
        if os.getppid() != task.parent:
            os._exit(1)
        reports.send(Alive(task.rank))


def main(load: LoadModel = load_base, make: MakeEngine = make_engine) -> int:
    """Runs the rank that standard input describes, with the model and the engine of these functions."""
    # The kernel ends this process with its parent, whatever it is doing then.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A terminal's Ctrl-C reaches the whole group of processes: rank 0 decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure("engine")
    run(_tasks.decode(sys.stdin.buffer.read()), load, make)
    return 0


if __name__ == "__main__":
    sys.exit(main())
