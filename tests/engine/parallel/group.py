"""Whole engines of one or several ranks, without their servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest import mock
from unittest.mock import create_autospec

from cli.draft_adapters import pack_drafter
from engine import assembly
from engine.core import EngineCore
from engine.lora.draft_adapters import DraftAdapter
from engine.parallel.leader import Leader
from engine.parallel.messages import ToRank
from engine.protocol import Submit
from engine.scheduling.drafter import Drafter
from engine.settings import DeviceSettings, EngineSettings, SchedulingSettings
from engine.vocabulary import Vocabulary
from tests.engine.runner.bases import VOCAB_SIZE
from tests.engine.runner.rig import Answer, Run

if TYPE_CHECKING:
    from engine.server import EngineServer

PATIENCE_S = 60.0


class Server:
    """What an engine's parts need of its server."""

    engine_id = "engine-0"
    incarnation = "first"

    def __init__(self) -> None:
        self.core: EngineCore
        self.failures: list[Exception] = []

    def adapter_loaded(self, slot: int, digest: str, error: str | None) -> None:
        self.core.adapter_loaded(slot, digest, error)

    def wake(self) -> None:
        pass

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class Group:
    """An engine's core, and its connection to its other ranks."""

    def __init__(self, core: EngineCore, leader: Leader | None, server: Server) -> None:
        self.core = core
        self.server = server
        self._leader = leader

    @property
    def rank_pids(self) -> list[int]:
        assert self._leader is not None
        return [process.pid for process in self._leader._ranks._processes.values()]

    def send(self, message: ToRank) -> None:
        assert self._leader is not None
        self._leader._ranks.send(message)

    def run(self, submits: Iterable[Submit]) -> Run:
        """Answers requests that all arrive at once."""
        core = self.core
        answers = Run({}, {}, core)
        waiting = set()
        for submit in submits:
            rejected = core.submit(submit)
            assert rejected is None, rejected
            waiting.add(submit.request_id)
        until = time.monotonic() + PATIENCE_S
        while waiting:
            assert time.monotonic() < until, f"{sorted(waiting)} did not end"
            if not core.has_work:
                time.sleep(0.001)  # an adapter is loading
                continue
            outputs = core.step()
            assert not outputs.rejected, outputs.rejected
            for found in outputs.scores:
                answers.scores.setdefault(found.request_id, []).extend(found.logprobs)
            for chunk in outputs.chunks:
                answer = answers.answers.setdefault((chunk.request_id, chunk.index), Answer())
                answer.token_ids += chunk.token_ids
                answer.logprobs += chunk.logprobs or []
                answer.finish_reason = chunk.finish_reason
            waiting -= {finished.request_id for finished, _ in outputs.finished}
        core.check_integrity()
        return answers


@contextmanager
def engine_of(
    ranks: int,
    base: Path,
    artifacts_dir: Path,
    *,
    device: str = "cpu",
    is_sapling: bool = False,
    own_gpus: bool = False,
    drafter: Drafter | None = None,
    draft_folder: Path | None = None,
    **sizes: int | str | bool,
) -> Iterator[Group]:
    """An engine on this machine's CPU, or with all ranks on one GPU, or each on its own. `sizes` are settings
    of engine and device. With a `drafter` it speculates, and the draft adapter in `draft_folder` guesses.
    """
    server = Server()
    leaders: list[Leader] = []

    class Recorded(Leader):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            leaders.append(self)

    fields = {name for name in sizes if name in EngineSettings.model_fields}
    # However slow the machine: no request is rejected for the wait that is predicted.
    patient = SchedulingSettings(
        priority_ttft_seconds=inf,
        default_ttft_seconds=inf,
        flex_ttft_seconds=inf,
        speculation=drafter is not None,
        drafter=draft_folder,
    )

    def pack(folder: Path, digest: str) -> DraftAdapter:
        return pack_drafter(folder, base, digest, artifacts_dir)

    settings = EngineSettings(
        base=base, artifacts_dir=artifacts_dir, scheduling=patient, **{name: sizes[name] for name in fields}
    )
    device_sizes = {name: value for name, value in sizes.items() if name not in fields}
    device_settings = DeviceSettings(device=device, tensor_parallel=ranks, **device_sizes)
    vocabulary = create_autospec(Vocabulary, token_bytes=[b"x"] * VOCAB_SIZE)
    load = Vocabulary.load if is_sapling else lambda _: vocabulary
    devices = assembly._rank_devices if own_gpus else lambda found, size: [str(found)] * size
    with (
        mock.patch.object(assembly, "Leader", Recorded),
        mock.patch.object(assembly, "_rank_devices", devices),
        mock.patch.object(assembly.Vocabulary, "load", load),
        mock.patch.object(assembly, "_drafter", return_value=drafter),
        mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}),
    ):
        try:
            core, _ = assembly.build_engine(
                settings, device_settings, cast("EngineServer", server), "test", pack_drafter=pack
            )
            server.core = core
            yield Group(core, leaders[0] if leaders else None, server)
        finally:
            for leader in leaders:
                leader.close()
