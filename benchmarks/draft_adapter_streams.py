"""Runs sapling's tasks on sapling's adapters, for benchmarks of draft adapters: true prompts, true answers.

Guesses of a draft adapter depend on what is said, so random weights and prompts would tell nothing. Each
stream has an adapter of its own: where there are more streams than adapters, copies under other digests,
which the engine treats as others. A single stream is measured on each adapter in turn.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from adapters.packing import pack
from benchmarks.in_process import InProcessEngine, Sizes
from benchmarks.random_adapters import AdapterLibrary
from cli.draft_adapters import pack_drafter
from engine.device.runner_options import RunnerOptions
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.device_pool import DevicePool
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.lora.loader import AdapterLoader, OnDone
from engine.lora.pool import AdapterPool
from engine.model.config import ModelConfig, load_config
from engine.model.model import Model
from engine.model.shards import Shard
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, SamplingParams, Submit
from engine.scheduling.drafter import Drafter
from engine.speculation.suffixes import NOTHING, Guess
from engine.speculation.texts import OpenText, Texts
from examples.sapling import ADAPTERS, BASE, tokens
from examples.sapling.tasks import TASKS

BASE_DRAFTER = "base"
"""The folder of the base's draft adapter, among those of its adapters."""
MAX_ANSWER = 160
ADAPTER_BYTES = 64 << 20
"""For all adapters on a GPU."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A client: it asks one question after the other."""

    tenant: str
    task: str
    ref: AdapterRef


class PackedStreams:
    """Sapling's adapters and draft adapters, packed for its base. Use as a context: it ends the folder."""

    def __init__(self, drafters: Path, num_streams: int) -> None:
        """`drafters` has a folder "base", and folders named as the adapters whose draft adapters they are."""
        self._folder = tempfile.TemporaryDirectory(prefix="draft-adapters-")
        self.path = Path(self._folder.name)
        config, digest = load_config(BASE), base_digest(BASE)
        names = sorted(TASKS)[:num_streams]
        packed = {
            name: self._read(pack(ADAPTERS / name, config, digest, self.path, "float32")) for name in names
        }
        self.streams = [
            self._stream(number, names[number % len(names)], packed) for number in range(num_streams)
        ]

        def drafter(name: str) -> DraftAdapter | None:
            folder = drafters / name
            return pack_drafter(folder, BASE, digest, self.path) if folder.is_dir() else None

        self.general = drafter(BASE_DRAFTER)
        if self.general is None:
            raise SystemExit(f"{drafters} has no folder {BASE_DRAFTER!r}: name one that has")
        own = {name: drafter(name) for name in names}
        self.own = {
            stream.ref.digest: found for stream in self.streams if (found := own[stream.task]) is not None
        }

    def _read(self, ref: AdapterRef) -> PackedAdapter:
        return PackedAdapter.read(artifact_path(self.path, ref.digest))

    def _stream(self, number: int, task: str, packed: dict[str, PackedAdapter]) -> Stream:
        one = packed[task]
        # The name of the base is in the manifest, and so in the digest; this engine does not compare it.
        other = hashlib.sha256(f"copy {number}".encode()).hexdigest()
        copy = PackedAdapter(msgspec.structs.replace(one.manifest, base_digest=other), one.slab)
        copy.write(artifact_path(self.path, copy.digest))
        return Stream(f"tenant-{number}", task, AdapterRef(copy.digest, copy.manifest.rank))

    def choice(self, *, with_own: bool) -> DraftAdapterChoice:
        """Returns the base's draft adapter, and those of the adapters if asked for."""
        return DraftAdapterChoice(self.general, self.own if with_own else {})

    def __enter__(self) -> PackedStreams:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


class NoTexts(Texts):
    """Texts in which nothing is found: what draft adapters do alone."""

    def open(self, tenant: str, adapter_digest: str | None, token_ids: list[int]) -> OpenText:
        """Adds a text."""
        opened = super().open(tenant, adapter_digest, token_ids)
        return _SilentText(opened.tenant, opened.index, opened.text)


class _SilentText(OpenText):
    __slots__ = ()

    def guess(self, most: int) -> Guess:
        """Returns nothing."""
        return NOTHING


@dataclass(frozen=True, slots=True)
class TaskRound:
    """What all streams' answers took."""

    seconds: float
    num_steps: int
    answers: dict[str, list[int]]

    @classmethod
    def of(cls, parts: Sequence[TaskRound]) -> TaskRound:
        """Returns several, one after the other, as one."""
        answers = {name: token_ids for one in parts for name, token_ids in one.answers.items()}
        return cls(sum(one.seconds for one in parts), sum(one.num_steps for one in parts), answers)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.answers.values()))


class TaskEngine(InProcessEngine):
    """An engine that reads its adapters from a folder, as a served one does."""

    def __init__(
        self,
        model: Model,
        packed: PackedStreams,
        drafter: Drafter | None = None,
        choice: DraftAdapterChoice | None = None,
    ) -> None:
        self._artifacts = packed.path
        num_streams = len(packed.streams)
        sizes = Sizes(
            max_rows=256,
            max_len=512,
            max_batch_tokens=1024,
            kv_tokens=num_streams * 512,
            num_slots=2 * num_streams + 1,
            adapter_bytes=ADAPTER_BYTES,
        )
        options = RunnerOptions(max_graph_rows=max(32, num_streams))
        super().__init__(
            model, AdapterLibrary(model.config), sizes, options, drafter=drafter, draft_adapters=choice
        )
        self._clock = time.process_time if model.device.type == "cpu" else time.perf_counter
        self._encoder = tokens.Encoder(BASE)

    def _pool_on_cpu(self) -> Any:
        model = self.model
        return AdapterPool(model.config, self.sizes.num_slots, model.device, model.dtype)

    def _pool_on_gpu(self, whole: ModelConfig, shard: Shard) -> Any:
        sizes, device = self.sizes, self.model.device
        return DevicePool(
            whole, sizes.num_slots, sizes.adapter_bytes, sizes.adapter_bytes, device, shard=shard
        )

    def _make_loader(self, on_done: OnDone) -> AdapterLoader[Any]:
        self._local_loader = AdapterLoader(self._artifacts, self._pool, on_done)
        return self._local_loader

    def run(self, streams: Sequence[Stream], questions: int, seed: int) -> TaskRound:
        """Has each stream ask so many held-out questions of its task, one after the other; greedy answers."""
        asked = {
            stream.tenant: [
                self._encoder.prompt(one.prompt)
                for one in TASKS[stream.task].examples("heldout", questions, seed=seed + number)
            ]
            for number, stream in enumerate(streams)
        }
        by_tenant = {stream.tenant: stream for stream in streams}
        steps, answers = self.core.stats.steps, dict[str, list[int]]()
        began = self._clock()
        for tenant in asked:
            self._ask(by_tenant[tenant], asked[tenant])
        while self.core.scheduler.has_requests or self.core.has_work:
            for chunk in self.step():
                answers.setdefault(chunk.request_id, []).extend(chunk.token_ids)
                tenant = chunk.request_id.rpartition("/")[0]
                if chunk.finish_reason is not None and asked[tenant]:
                    self._ask(by_tenant[tenant], asked[tenant])
        seconds = self._clock() - began
        return TaskRound(seconds, self.core.stats.steps - steps, answers)

    def _ask(self, stream: Stream, left: list[list[int]]) -> None:
        prompt_ids = left.pop()
        params = SamplingParams(MAX_ANSWER, temperature=0.0)
        name = f"{stream.tenant}/{len(left)}"
        rejected = self.core.submit(
            Submit(name, stream.tenant, prompt_ids, params, stream.ref, submitted_at=time.time())
        )
        assert rejected is None, rejected

    def load_all(self, streams: Sequence[Stream]) -> None:
        """Loads the streams' adapters, so that no round waits for one."""
        slots = self.core.scheduler.slot_allocator.slots
        for stream in streams:
            self.core.prefetch(stream.ref)
        until = time.monotonic() + 60
        while any(slots.find(one.ref.digest) is None for one in streams) or slots.num_loading:
            assert time.monotonic() < until, "adapters do not load"
            self.core.step()
            time.sleep(0.001)

    def __enter__(self) -> TaskEngine:
        super().__enter__()
        torch.set_num_threads(1)
        return self
