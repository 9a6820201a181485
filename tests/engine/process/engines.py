"""Engine processes for tests: started, killed and started again on the same files; and their journal."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import redis

from engine.client import Generation
from engine.protocol import JOURNAL_STREAM, SamplingParams, Submit, TokenChunk, UsageEvent
from engine.settings import ClusterSettings, DeviceSettings
from tests.support.nursery import Forked
from tests.support.servers import start_engine

SUBMITTED_AT = 1_763_700_000.25


class EngineProcess:
    """`python -m MODULE` with a null runner, on files that outlive it."""

    def __init__(
        self, folder: Path, redis_url: str, *, module: str = "engine.main", **settings: object
    ) -> None:
        self.folder = folder
        self.settings: dict[str, object] = {
            "null": True,
            "null_step_seconds": 0.01,
            "endpoint": f"ipc://{folder}/engine.sock",
            "redis_url": redis_url,
            "data_dir": folder,
            "drain_seconds": 10,
        } | settings
        self._module = module
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def endpoint(self) -> str:
        return str(self.settings["endpoint"])

    @property
    def state_dir(self) -> Path:
        return self.folder / "engine" / "engine-0"

    def read_log(self) -> str:
        return (self.folder / "engine.log").read_text()

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None
        environment = os.environ | {variable(name): str(value) for name, value in self.settings.items()}
        log = self.folder / "engine.log"
        if self._module == "engine.main":
            self._process = start_engine(log, environment, with_torch=not self.settings["null"])
            return
        with log.open("ab") as opened:
            command = [sys.executable, "-m", self._module]
            self._process = subprocess.Popen(command, env=environment, stderr=opened)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self, seconds: float = 30.0) -> int:
        """Its exit code; minus the signal's number when one killed it."""
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


def variable(setting: str) -> str:
    """The environment variable of a setting, whichever class has it; a variable is itself."""
    if setting.startswith("ROOTSTOCK_"):
        return setting
    classes = {"DEVICE": DeviceSettings, "CLUSTER": ClusterSettings}
    prefix = next((name for name, known in classes.items() if setting in known.model_fields), "ENGINE")
    return f"ROOTSTOCK_{prefix}_{setting.upper()}"


async def read(generation: Generation) -> list[TokenChunk]:
    """Every chunk of a generation, to its end."""
    return [chunk async for chunks in generation for chunk in chunks]


def tokens_of(chunks: list[TokenChunk], index: int = 0) -> list[int]:
    return [token_id for chunk in chunks if chunk.index == index for token_id in chunk.token_ids]


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something another process does."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - no event of ours tells
            await asyncio.sleep(0.01)


def journal_events(redis_url: str) -> list[UsageEvent]:
    """Everything in the stream, in order."""
    with redis.Redis.from_url(redis_url) as client:
        entries = client.xrange(JOURNAL_STREAM)
    return [msgspec.msgpack.decode(fields[b"e"], type=UsageEvent) for _, fields in entries]


def billed(events: list[UsageEvent]) -> dict[str, UsageEvent]:
    """By request, the event with the largest counts: what the ledger ends up with."""
    largest: dict[str, UsageEvent] = {}
    for event in events:
        kept = largest.get(event.request_id)
        if kept is None or event.usage.completion_tokens > kept.usage.completion_tokens:
            largest[event.request_id] = event
    return largest


def submission(request_id: str, max_tokens: int, **fields: object) -> Submit:
    sampling = {"max_tokens": max_tokens, "temperature": 0.0} | dict(fields.pop("sampling", {}))  # type: ignore[call-overload]
    known = {
        "request_id": request_id,
        "tenant": "tenant-a",
        "prompt_ids": [1, 2, 3],
        "sampling": SamplingParams(**sampling),
        "submitted_at": SUBMITTED_AT,
        "labels": {"key_id": "key-1"},
    }
    return Submit(**(known | fields))  # type: ignore[arg-type]


def engine_process(folder: Path, redis_url: str, **settings: object) -> Iterator[EngineProcess]:
    """For fixtures: ended whatever happens."""
    process = EngineProcess(folder, redis_url, **settings)
    try:
        yield process
    finally:
        process.end()
