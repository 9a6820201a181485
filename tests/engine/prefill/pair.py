"""An engine that decodes and one that computes prompts for it: real models and sockets, steps in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.core import EngineCore
from engine.device.cache_copies import HostCacheCopies
from engine.device.cpu_runner import ModelRunner
from engine.gauges import EngineStats
from engine.model.model import Model
from engine.prefill.exporting import PromptExporter
from engine.prefill.messages import CacheFormat, Greeting
from engine.prefill.sender import PromptSender
from engine.prefill.sources import PromptSources
from engine.protocol import Rejected, Submit, UsageEvent
from engine.scheduling.prompt_fetches import FetchEnded
from engine.transport.curve import Address, KeyPair, ServerKeys
from tests.engine.runner.rig import make_core

MIN_TOKENS = 32
FORMAT = CacheFormat("d" * 64, "none", "float32", 16, 2, 2, 16)


@dataclass
class Pair:
    decode: EngineCore
    prefill: EngineCore
    sources: PromptSources
    sender: PromptSender
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    usage: dict[str, UsageEvent] = field(default_factory=dict)
    rejected: dict[str, Rejected] = field(default_factory=dict)

    @property
    def fetched(self) -> int:
        return self.decode.scheduler.fetches.counters.fetched

    @property
    def fallbacks(self) -> dict[str, int]:
        return self.decode.scheduler.fetches.counters.fallbacks

    def wait(self, condition: Callable[[], bool], *, prefills: bool = True) -> None:
        """Steps both engines until `condition`; without `prefills`, only the one that decodes."""
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "no progress"
            busy = False
            if prefills and self.prefill.has_work:
                outputs = self.prefill.step()
                assert not outputs, "a prompt for others leaves no trace"
                busy = True
            if self.decode.has_work:
                self.step()
                busy = True
            if not busy:
                time.sleep(0.0005)

    def wait_for_ends(self, count: int) -> None:
        """Steps only the engine that computes prompts, until that many have come."""
        ended = 0
        deadline = time.monotonic() + 60
        while ended < count:
            assert time.monotonic() < deadline, "no progress"
            if self.prefill.has_work:
                self.prefill.step()
            else:
                time.sleep(0.0005)
            ended = sum(isinstance(event, FetchEnded) for event in list(self.decode._prompt_events))

    def step(self) -> None:
        outputs = self.decode.step()
        for chunk in outputs.chunks:
            self.tokens.setdefault((chunk.request_id, chunk.index), []).extend(chunk.token_ids)
        self.usage |= {finished.request_id: event for finished, event in outputs.finished}
        self.rejected |= {rejected.request_id: rejected for rejected in outputs.rejected}

    def run(self, submits: Iterable[Submit], *, together: bool = True, prefills: bool = True) -> None:
        """To the end."""
        for submit in submits:
            assert self.decode.submit(submit) is None
            if not together:
                self.finish(prefills=prefills)
        self.finish(prefills=prefills)

    def finish(self, *, prefills: bool = True) -> None:
        self.wait(lambda: not self.decode.scheduler.has_requests, prefills=prefills)
        self.decode.check_integrity()

    def check_idle(self) -> None:
        """Nothing is held on either side."""
        prefill = self.prefill.scheduler
        self.wait(lambda: not prefill.has_requests and not prefill.pool.num_held)
        for core in (self.decode, self.prefill):
            core.check_integrity()
            assert core.scheduler.pool.num_held == 0


def lend(
    core: EngineCore, endpoint: str, keys: ServerKeys | None = None, cache_format: CacheFormat = FORMAT
) -> PromptSender:
    """Lets an engine compute prompts for others."""
    assert isinstance(core.runner, ModelRunner)
    copies = HostCacheCopies(core.runner.kv)
    idle = EngineStats("prefill-0", "")
    deliver = core.prompt_event
    sender = PromptSender(endpoint, "prefill-0", cache_format, copies, deliver, lambda: idle, keys)
    core.exporter = PromptExporter(core.scheduler, sender)
    return sender


@contextmanager
def pair(
    model: Model,
    artifacts: Path,
    endpoint: str,
    *,
    decode: dict[str, Any] | None = None,
    prefill: dict[str, Any] | None = None,
    prefill_keys: Sequence[KeyPair] = (),
    source_keys: Sequence[KeyPair] = (),
    prefill_format: CacheFormat = FORMAT,
    is_connected: bool = True,
    min_tokens: int = MIN_TOKENS,
    timeout_s: float = 60.0,
    blocks_per_piece: int = 1,
) -> Iterator[Pair]:
    decoding = make_core(model, artifacts, **(decode or {}))
    computing = make_core(model, artifacts, **(prefill or {}))
    keys = None
    if prefill_keys:
        keys = ServerKeys(prefill_keys[0], frozenset(one.public for one in prefill_keys))
    sender = lend(computing, endpoint, keys, prefill_format)
    sender._copies.blocks_per_piece = blocks_per_piece  # many messages of small prompts
    address = Address.shared(sender.endpoint, source_keys) if source_keys else Address(sender.endpoint)
    assert isinstance(decoding.runner, ModelRunner)
    copies = HostCacheCopies(decoding.runner.kv)
    sources = PromptSources([address], Greeting("engine-0", FORMAT), copies, decoding.prompt_event, 5.0)
    decoding.scheduler.fetches.connect(sources, copies, min_tokens, timeout_s)
    both = Pair(decoding, computing, sources, sender)
    try:
        if is_connected:
            both.wait(lambda: sources.num_connected == 1)
        yield both
    finally:
        sources.close()
        sender.close()
