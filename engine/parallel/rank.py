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
from pathlib import Path
from typing import Any

import msgspec
import structlog
import torch
import zmq

from engine.batch import NO_SLOT
from engine.device.batch_state import Ints
from engine.device.cpu_forward import CpuForward
from engine.device.runner_options import CacheLayout
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.model.collectives import ShardGroup
from engine.model.config import load_config
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
    LoadAdapter,
    RankTask,
    Ready,
    Step,
    Stop,
    ToRank,
    UnloadAdapter,
    batch_of,
    decoder,
    encode,
)
from engine.protocol import AdapterRef
from telemetry import logs

log = structlog.get_logger(__name__)

ALIVE_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1


class Reports:
    """Sends reports to rank 0, from any thread."""

    def __init__(self, context: zmq.Context, endpoint: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.linger = 1000
        self._socket.connect(endpoint)
        self._lock = threading.Lock()

    def send(self, report: FromRank) -> None:
        with self._lock:
            self._socket.send(encode(report))

    def close(self) -> None:
        with self._lock:
            self._socket.close()


class RankEngine:
    """The rank's part of the model, its keys and values, and its parts of adapters."""

    def __init__(self, task: RankTask, model: Model, begin: Begin, reports: Reports) -> None:
        whole, shard = load_config(Path(task.base)), Shard(task.rank, task.size)
        self._reports = reports
        self._rank = task.rank
        self._pool = AdapterPool(whole, begin.num_slots, model.device, model.dtype, shard)
        self._loader: AdapterLoader[Any] = AdapterLoader(Path(task.artifacts_dir), self._pool, self._loaded)
        cache = CacheLayout(begin.num_blocks, begin.block_size)
        self._forward = CpuForward(model, self._pool, cache, begin.max_rows, begin.max_len)
        self._drawing: Ints | None = None
        """Rows that drew a token in the last step, which rank 0 tells with the next one."""

    @torch.inference_mode()
    def step(self, step: Step) -> None:
        """Computes a step with the other ranks."""
        forward, batch = self._forward, batch_of(step)
        if self._drawing is not None and self._drawing.size:
            forward.state.learn(self._drawing, torch.tensor(step.drawn, dtype=torch.int64).numpy())
        shares = forward.apply(batch)
        forward.run(shares, batch.scored)
        self._drawing = shares.rows[shares.samples]

    def load(self, wanted: LoadAdapter) -> None:
        """Begins to load an adapter."""
        self._loader.start_load(wanted.slot, AdapterRef(wanted.digest, wanted.rank))

    def unload(self, slot: int) -> None:
        """Empties a slot."""
        self._loader.unload(slot)

    def _loaded(self, slot: int, digest: str, error: str | None) -> None:
        assert slot != NO_SLOT
        self._reports.send(AdapterDone(self._rank, slot, digest, error))


def run(task: RankTask) -> None:
    """Serves rank 0 until it says Stop or is gone."""
    context = zmq.Context()
    reports = Reports(context, task.reports)
    steps = context.socket(zmq.PULL)
    steps.bind(task.steps)
    threading.Thread(target=_keep_alive, args=(reports, task), daemon=True, name="alive").start()
    try:
        torch.set_num_threads(task.threads)
        group = joining.join(joining.connect_store(task.store_port), Shard(task.rank, task.size))
        _serve(task, group, steps, reports)
    except Exception as error:  # the process's edge: rank 0 says why the engine ends
        log.exception("rank failed", rank=task.rank, reason=str(error))
        reports.send(Failed(task.rank, str(error)))
        raise SystemExit(1) from error
    finally:
        reports.close()


def _serve(task: RankTask, group: ShardGroup, steps: zmq.Socket, reports: Reports) -> None:
    model = load_model(Path(task.base), task.quantization, group=group)
    log.info("weights loaded", rank=task.rank, of=task.size)
    decode = decoder(ToRank).decode
    engine: RankEngine | None = None
    while True:
        message = decode(steps.recv())
        match message:
            case Begin():
                engine = RankEngine(task, model, message, reports)
                gc.collect()
                gc.freeze()  # as in rank 0's process
                reports.send(Ready(task.rank))
            case Stop():
                return
            case Step():
                assert engine is not None, "a step before Begin"
                engine.step(message)
            case LoadAdapter():
                assert engine is not None, "a load before Begin"
                engine.load(message)
            case UnloadAdapter(slot):
                assert engine is not None, "an unload before Begin"
                engine.unload(slot)


def _keep_alive(reports: Reports, task: RankTask) -> None:
    """Tells rank 0 that this process runs, and ends it when rank 0's is gone."""
    pause = threading.Event()
    while not pause.wait(ALIVE_SECONDS):
        if os.getppid() != task.parent:
            os._exit(1)
        reports.send(Alive(task.rank))


def main() -> int:
    # The kernel ends this process with its parent, whatever it is doing then.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A terminal's Ctrl-C reaches the whole group of processes: rank 0 decides when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure("engine")
    run(msgspec.json.decode(sys.stdin.buffer.read(), type=RankTask))
    return 0


if __name__ == "__main__":
    sys.exit(main())
