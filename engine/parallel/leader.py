"""Starts a tensor-parallel group from rank 0, and makes what the engine is assembled from: its connection to
the others, a runner and an adapter loader that involve them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
import torch

from engine.core import Runner
from engine.lora.loader import AdapterLoader, OnDone
from engine.model.collectives import ShardGroup
from engine.model.config import ModelConfig
from engine.model.shards import Shard, check_divides
from engine.parallel import joining
from engine.parallel.messages import Begin, RankTask
from engine.parallel.ranks import PROGRAM, RankLost, Ranks
from engine.parallel.runner import ParallelLoader, ParallelRunner
from engine.signing.settings import VerificationSettings

log = structlog.get_logger(__name__)


class Leader:
    """Rank 0's side of a group. Always `close` it, unless the process ends: the ranks end with it."""

    def __init__(
        self,
        config: ModelConfig,
        devices: Sequence[str],
        base: Path,
        quantization: str,
        artifacts_dir: Path,
        threads: int,
        program: Sequence[str] = PROGRAM,
        signing: VerificationSettings | None = None,
    ) -> None:
        """Starts the other ranks and waits for them to join. They load their weights while rank 0 does.

        `devices`: each rank's, such as "cuda:1"; `program`: the interpreter's arguments for the other ranks;
        `signing`: the signatures that adapters must have.
        Raises: ValueError when the base cannot be divided over as
        many ranks; RankLost.
        """
        size = len(devices)
        check_divides(config, size)
        # NCCL wants a GPU for each rank. Over gloo several can share one, slowly: for tests.
        backend = "nccl" if devices[0] != "cpu" and len(set(devices)) == size else "gloo"
        began = time.monotonic()
        self.config = config
        store = joining.open_store()

        def task(rank: int, steps: str, reports: str) -> RankTask:
            return RankTask(
                rank,
                size,
                parent=os.getpid(),
                store_port=store.port,
                steps=steps,
                reports=reports,
                base=str(base),
                quantization=quantization,
                artifacts_dir=str(artifacts_dir),
                threads=threads,
                device=devices[rank],
                backend=backend,
                signing_keys="" if signing is None else signing.public_keys,
                requires_signature=signing is not None and signing.required,
            )

        self._ranks = Ranks(task, size, program)
        try:
            self._ranks.wait_started()
            self.group: ShardGroup = joining.join(store, Shard(0, size), backend, torch.device(devices[0]))
        except BaseException:
            self._ranks.close()
            raise
        log.info("ranks joined", ranks=size, seconds=round(time.monotonic() - began, 2))

    def on_lost(self, callback: Callable[[RankLost], None]) -> None:
        """Has `callback` called, from another thread, when a rank is gone."""
        self._ranks.on_lost = callback

    def loader(self, on_done: OnDone, make_local: Callable[[OnDone], AdapterLoader[Any]]) -> ParallelLoader:
        """Returns the loader of adapters on all ranks; `make_local` makes rank 0's own."""
        return ParallelLoader(self._ranks, self.group.shard.size, on_done, make_local)

    def begin(self, sizes: Begin) -> None:
        """Has the other ranks allocate memory, and on GPUs capture their steps together with this one."""
        self._ranks.send(sizes)

    def runner(self, local: Runner) -> ParallelRunner:
        """Waits for the other ranks, and returns what runs steps on all. Raises RankLost."""
        self._ranks.wait_ready()
        return ParallelRunner(local, self._ranks)

    def close(self) -> None:
        """Ends the other ranks and leaves the group."""
        self._ranks.close()
        joining.leave()
