"""Sends requests while `benchmarks.chaos` kills processes: clients of several tenants, in a process of their
own.

Each client sends, reads, and records what it received: a line of JSON for each response that began, whether
or not it was complete. Streams and whole responses, one choice and two, lists of prompts, prompts with a
common prefix, clients that disconnect. Requests are drawn from the seed; their timing depends on the
responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TextIO
from urllib.parse import urlsplit

from benchmarks.sse_client import HttpError, post_for_events

NUM_CLIENTS = 16
COMMON = "You are the helpful voice of a small library by the sea, and you answer in few words. " * 3
LENGTHS = (1, 4, 12, 40, 120)
"""Tokens requested, of each choice."""
PAUSE_S = 0.05
"""After a response that failed."""
ANSWER_S = 30.0


@dataclass(frozen=True)
class Caller:
    """A tenant's key, and the models it may use."""

    tenant_id: str
    key: str
    admin_key: str
    models: list[str]


@dataclass
class Seen:
    """What a client has of one request."""

    id: str = ""
    tenant_id: str = ""
    received: int = 0
    usage: list[int] | None = None
    """Prompt, cached, completion."""
    ended: bool = False


@dataclass
class Load:
    """Runs clients until stopped."""

    url: str
    callers: list[Caller]
    seed: int
    out: TextIO
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(NUM_CLIENTS)))

    async def _client(self, number: int) -> None:
        random = Random(f"{self.seed}/client/{number}")
        while not self.stopped.is_set():
            caller = random.choice(self.callers)
            seen = Seen(tenant_id=caller.tenant_id)
            path, body = asked(random, caller)
            hang_up = random.randrange(1, 30) if random.random() < 0.12 else None
            try:
                async with asyncio.timeout(ANSWER_S):
                    if body["stream"]:
                        await self._stream(caller, path, body, seen, hang_up)
                    else:
                        await self._whole(caller, path, body, seen)
            except (OSError, EOFError, ValueError, HttpError, TimeoutError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stopped.wait(), PAUSE_S * (1 + random.random()))
            if seen.id:
                self.out.write(json.dumps(asdict(seen)) + "\n")

    async def _stream(
        self, caller: Caller, path: str, body: dict[str, Any], seen: Seen, hang_up: int | None
    ) -> None:
        headers = {"authorization": f"Bearer {caller.key}"}
        async with post_for_events(self.url + path, body, headers) as events:
            async for event in events:
                chunk = json.loads(event.data)
                if "error" in chunk:
                    return
                note(seen, chunk)
                if hang_up is not None and seen.received >= hang_up:
                    return
        seen.ended = True

    async def _whole(self, caller: Caller, path: str, body: dict[str, Any], seen: Seen) -> None:
        where = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        try:
            payload = json.dumps(body).encode()
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
                f"Content-Type: application/json\r\nAuthorization: Bearer {caller.key}\r\n"
                f"Content-Length: {len(payload)}\r\n\r\n"
            )
            writer.write(head.encode() + payload)
            status = int((await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
            if status != 200:
                raise HttpError(str(status))
            note(seen, json.loads(await reader.read()))
            seen.ended = True
        finally:
            writer.close()


def asked(random: Random, caller: Caller) -> tuple[str, dict[str, Any]]:
    """Path and body of a request."""
    question = f"{COMMON if random.random() < 0.5 else ''}Question {random.randrange(1000)}?"
    stream = random.random() < 0.8
    body: dict[str, Any] = {
        "model": random.choice(caller.models),
        "max_tokens": random.choice(LENGTHS),
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if random.random() < 0.15:
        body["prompt"] = [question, "Another?", "A third?"][: random.randrange(1, 4)]
        return "/v1/completions", body | {"logprobs": 0}
    body["messages"] = [{"role": "user", "content": question}]
    return "/v1/chat/completions", body | {"n": random.choice((1, 1, 1, 2)), "logprobs": True}


def note(seen: Seen, answer: dict[str, Any]) -> None:
    """Take in a chunk, or a whole answer."""
    seen.id = answer["id"]
    for choice in answer["choices"]:
        found = choice.get("logprobs") or {}
        seen.received += len(found.get("content") or found.get("tokens") or ())
    usage = answer.get("usage")
    if usage is not None:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        seen.usage = [usage["prompt_tokens"], cached, usage["completion_tokens"]]


async def ask_until_stopped(url: str, callers: list[Caller], seed: int, out: Path) -> None:
    """Until SIGTERM; then the requests under way are read to their end."""
    with out.open("a", buffering=1) as file:
        load = Load(url, callers, seed, file)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, load.stopped.set)
        await load.run()


def main(url: str, seed: str, out: str) -> None:
    """Reads the callers from stdin and runs them."""
    callers = [Caller(**one) for one in json.loads(sys.stdin.read())]
    os.nice(5)
    asyncio.run(ask_until_stopped(url, callers, int(seed), Path(out)))
