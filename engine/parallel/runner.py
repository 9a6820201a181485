"""Runs steps on all ranks of a group, and loads adapters on all of them: rank 0's side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from engine.batch import Batch, CompletedStep, LaunchedStep
from engine.core import Runner
from engine.lora.loader import AdapterLoader, OnDone
from engine.lora.slots import NO_SLOT
from engine.outputs import RunnerCounters
from engine.parallel.messages import IdleAdapter, LoadAdapter, UnloadAdapter, step_message
from engine.parallel.ranks import Ranks
from engine.protocol import AdapterRef

NOTICE_SECONDS = 2.0
"""A step that fails waits this long for the news of which rank is gone."""


class ParallelRunner:
    """Sends each batch to the other ranks, and runs it on this one."""

    def __init__(self, local: Runner, ranks: Ranks) -> None:
        self._local = local
        self._ranks = ranks
        self._drawn: list[int] = []

    @property
    def depth(self) -> int:
        return self._local.depth

    @property
    def counters(self) -> RunnerCounters:
        return self._local.counters

    def launch(self, batch: Batch) -> LaunchedStep:
        """Launches the batch on all ranks. Raises RankLost when one is gone."""
        self._ranks.send(step_message(batch, self._drawn))
        try:
            step = self._local.launch(batch)
        except RuntimeError as error:
            lost = self._ranks.loss(NOTICE_SECONDS)
            if lost is None:
                raise
            raise lost from error
        if isinstance(step, CompletedStep):
            self._drawn = step.drawn.token_ids
        return step


class ParallelLoader:
    """Loads adapters on all ranks; the slot table's memory. A load has ended when it has on every rank."""

    def __init__(
        self, ranks: Ranks, size: int, on_done: OnDone, make_local: Callable[[OnDone], AdapterLoader[Any]]
    ) -> None:
        """`on_done` is called once for each load, with the first rank's error if any had one. `make_local`
        returns rank 0's own loader.
        """
        self._ranks = ranks
        self._size = size
        self._on_done = on_done
        self._ended: dict[tuple[int, str], list[str | None]] = {}
        self._lock = threading.Lock()
        self._local = make_local(self._ended_on_one)
        ranks.on_adapter = self._ended_on_one

    def _ended_on_one(self, slot: int, digest: str, error: str | None) -> None:
        with self._lock:
            errors = self._ended.setdefault((slot, digest), [])
            errors.append(error)
            if len(errors) < self._size:
                return
            del self._ended[slot, digest]
        self._on_done(slot, digest, next((error for error in errors if error is not None), None))

    # The slot table's memory.

    @property
    def capacity(self) -> int | None:
        return self._local.capacity

    @property
    def load_seconds(self) -> float:
        return self._local.load_seconds

    def size_of(self, ref: AdapterRef) -> int | None:
        return self._local.size_of(ref)

    def start_load(self, slot: int, ref: AdapterRef) -> None:
        self._ranks.send(LoadAdapter(slot, ref.digest, ref.rank))
        self._local.start_load(slot, ref)

    def refuse(self, ref: AdapterRef, reason: str) -> None:
        self._on_done(NO_SLOT, ref.digest, reason)

    def idle(self, slot: int) -> None:
        self._ranks.send(IdleAdapter(slot))
        self._local.idle(slot)

    def unload(self, slot: int) -> None:
        self._ranks.send(UnloadAdapter(slot))
        self._local.unload(slot)
