"""Sends requests at a given rate, or with a fixed concurrency, over kept connections, from a process of its
own.

    python -m benchmarks.gateway_traffic < TASK.json

Several servers get them as from a balancer by least connections.

Sends, times and checks; prints one JSON object. A request's time runs from the moment its bytes are handed to
the kernel to the last byte of its response; how late it was handed over is reported separately. The same
arrivals can go directly to engines, past any HTTP.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import uvloop

END_OF_CHUNKS = b"0\r\n\r\n"
WARM_UP = 0.15
"""Share of the time, at the beginning, that is not in the figures."""


class Task(msgspec.Struct):
    """What to send."""

    urls: list[str]
    """`http://...` of chat completions endpoints, or engines' `ipc://...`."""
    model: str
    prompts: list[str]
    keys: list[str]
    """Drawn from evenly; each once, in turn, with `every_key`."""
    max_tokens: int
    seconds: float
    rate: float = 0.0
    """Poisson arrivals per second; 0: `at_once` requests are always under way."""
    at_once: int = 64
    every_key: bool = False
    stream: bool = False
    base: str = ""
    """Folder of the model that one of our engines serves; empty for a server of another make."""
    seed: int = 0


class Outcome(msgspec.Struct):
    """What came of it. Times in milliseconds, of requests after the warm-up."""

    requests: int
    """All that were answered, the warm-up's too."""
    per_second: float
    ms: dict[str, float]
    late_ms: dict[str, float]
    """How long after its time a request of an open loop was sent."""
    tokens_per_second: float
    tokens: int
    events: int
    """Of streams, each a chunk with text."""
    failures: dict[str, int]
    cpu_share: float
    """Of one core, that this process used: near 1 it is what was measured."""


class Wrong(Exception):
    """An answer that is none."""


Send = Callable[[int], Awaitable[tuple[int, int]]]
"""Request number -> (tokens, events) of its answer. Raises Wrong, OSError."""


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.answer: asyncio.Future[bytes] | None = None
        self._pieces: list[bytes] = []
        self._awaited = -1
        """Bytes of the answer, once its head is there; 0: until the last chunk."""
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(Wrong("connection lost"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        assert self.transport is not None
        self._pieces, self._awaited, self._size = [], -1, 0
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._awaited < 0:
            whole = b"".join(self._pieces)
            end = whole.find(b"\r\n\r\n")
            if end < 0:
                return
            head = whole[:end].lower()
            at = head.find(b"content-length:")
            self._awaited = 0 if at < 0 else end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])
        if self._awaited:
            done = self._size >= self._awaited
        else:
            tail = data if len(data) >= 5 else b"".join(self._pieces[-5:])
            done = tail.endswith(END_OF_CHUNKS)
        if done and self.answer is not None and not self.answer.done():
            self.answer.set_result(b"".join(self._pieces))


class _Server:
    """One that answers: its connections that wait for work, and how many requests are with it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.where = parts.hostname, parts.port
        self.head = f"POST {parts.path} HTTP/1.1\r\nHost: {parts.hostname}:{parts.port}\r\n"
        self.idle: list[_Connection] = []
        self.num_busy = 0

    async def connection(self) -> _Connection:
        while self.idle:
            connection = self.idle.pop()
            if connection.transport is not None:
                return connection
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, *self.where)
        return connection


class HttpSender:
    """Every request on a connection that no other uses meanwhile; connections are kept."""

    def __init__(self, task: Task) -> None:
        self._servers = [_Server(url) for url in task.urls]
        self._task = task
        self._bodies = [self._body(prompt) for prompt in task.prompts]
        self._picks = np.random.default_rng(task.seed).integers(0, len(task.keys), 1 << 16).tolist()
        self._usage = b'"completion_tokens":%d' % task.max_tokens

    def _body(self, prompt: str) -> bytes:
        task = self._task
        asked = {
            "model": task.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": task.max_tokens,
            "ignore_eos": True,
        }
        if not task.base:  # not one of our engines: not one of its words either
            del asked["ignore_eos"]
        if task.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps(asked).encode()

    async def __call__(self, number: int) -> tuple[int, int]:
        task = self._task
        pick = number if task.every_key else self._picks[number % len(self._picks)]
        key = task.keys[pick % len(task.keys)]
        body = self._bodies[number % len(self._bodies)]
        server = min(self._servers, key=lambda server: server.num_busy)
        request = (
            f"{server.head}Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        server.num_busy += 1
        try:
            connection = await server.connection()
            answer = await connection.ask(request)
        finally:
            server.num_busy -= 1
        server.idle.append(connection)
        return self._checked(answer)

    def _checked(self, answer: bytes) -> tuple[int, int]:
        status = answer[9:12]
        if status != b"200":
            code = answer.partition(b'"code":')[2][:40].decode(errors="replace")
            raise Wrong(f"{status.decode()} {code}")
        if self._task.stream:
            return self._checked_stream(answer)
        if self._usage not in answer.replace(b'": ', b'":'):
            raise Wrong("not as many tokens as requested")
        return self._task.max_tokens, 1

    def _checked_stream(self, answer: bytes) -> tuple[int, int]:
        if b"data: [DONE]" not in answer:
            raise Wrong(f"the stream broke off: {answer[-200:].decode(errors='replace')}")
        if self._task.base and self._usage not in answer:
            raise Wrong("not as many tokens as requested")
        return self._task.max_tokens, answer.count(b'"content":')

    def close(self) -> None:
        for server in self._servers:
            for connection in server.idle:
                if connection.transport is not None:
                    connection.transport.close()


async def engine_sender(task: Task) -> tuple[Send, Callable[[], Awaitable[None]]]:
    """The same requests as an engine takes them: no HTTP, no keys, no quotas."""
    from billing.rates import RATE_LABEL, Rate
    from db.base import new_id
    from engine.client import EngineClient
    from engine.protocol import SamplingParams, Submit
    from tokenization.codec import TextCodec

    codec = TextCodec.load(Path(task.base))
    prompts = []
    for prompt in task.prompts:
        chat = codec.render_chat([{"role": "user", "content": prompt}])
        prompts.append(await codec.encode_chat(chat))
    clients = [EngineClient(url, "traffic") for url in task.urls]
    for client in clients:
        await client.start()
    async with asyncio.timeout(30):
        for client in clients:
            await client.wait_ready()
    sampling = SamplingParams(max_tokens=task.max_tokens, ignore_eos=True)
    labels = {  # what the engine writes down of a request is of its size
        "key_id": "key_0000000",
        "project_id": new_id("proj"),
        "model": task.model,
        "endpoint": "chat.completions",
        "service_tier": "default",
        RATE_LABEL: Rate("prc_1", 3_000_000, 1_000_000, 7_000_000).label,
    }

    async def send(number: int) -> tuple[int, int]:
        tokens = 0
        submit = Submit(
            request_id=f"direct-{task.seed}-{number}",
            tenant=task.keys[number % len(task.keys)],
            prompt_ids=prompts[number % len(prompts)],
            sampling=sampling,
            labels=labels,
            submitted_at=time.time(),
            whole=not task.stream,
        )
        client = min(clients, key=lambda client: client.num_open)
        async for chunks in client.submit(submit):
            tokens += sum(len(chunk.token_ids) for chunk in chunks)
        if tokens != task.max_tokens:
            raise Wrong("not as many tokens as requested")
        return tokens, 1

    async def close() -> None:
        for client in clients:
            await client.close()

    return send, close


class _Traffic:
    def __init__(self, task: Task, send: Send) -> None:
        self._task, self._send = task, send
        self._done: list[tuple[float, float, int, int]] = []
        """(sent at, took, tokens, events) in seconds since the beginning."""
        self._late: list[tuple[float, float]] = []
        self._failures: Counter[str] = Counter()
        self._began = time.perf_counter()

    async def run(self) -> Outcome:
        self._began, cpu = time.perf_counter(), time.process_time()
        await (self._open_loop() if self._task.rate else self._closed_loop())
        lasted = time.perf_counter() - self._began
        return self._outcome((time.process_time() - cpu) / lasted)

    async def _one(self, number: int) -> None:
        sent_at = time.perf_counter()
        try:
            tokens, events = await self._send(number)
        except (Wrong, OSError) as error:
            self._failures[str(error)] += 1
            return
        now = time.perf_counter()
        self._done.append((sent_at - self._began, now - sent_at, tokens, events))

    async def _closed_loop(self) -> None:
        numbers = iter(range(sys.maxsize))
        most = len(self._task.keys) if self._task.every_key else sys.maxsize

        async def place() -> None:
            while time.perf_counter() - self._began < self._task.seconds:
                number = next(numbers)
                if number >= most:
                    return
                await self._one(number)

        await asyncio.gather(*(place() for _ in range(self._task.at_once)))

    async def _open_loop(self) -> None:
        task = self._task
        gaps = np.random.default_rng(task.seed).exponential(1 / task.rate, round(task.rate * task.seconds))
        tasks = []
        for number, due in enumerate(np.cumsum(gaps).tolist()):
            wait = due - (time.perf_counter() - self._began)
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(self._one(number)))
            await asyncio.sleep(0)  # sent now
            self._late.append((due, time.perf_counter() - self._began - due))
        await asyncio.gather(*tasks)

    def _outcome(self, cpu_share: float) -> Outcome:
        begin, end = WARM_UP * self._task.seconds, self._task.seconds
        counted = [one for one in self._done if one[0] >= begin]
        ended = [one for one in self._done if begin <= one[0] + one[1] < end]
        return Outcome(
            requests=len(self._done),
            per_second=round(len(ended) / (end - begin), 1),
            ms=percentiles([one[1] * 1e3 for one in counted]),
            late_ms=percentiles([late * 1e3 for due, late in self._late if due >= begin]),
            tokens_per_second=round(sum(one[2] for one in ended) / (end - begin), 1),
            tokens=sum(one[2] for one in self._done),
            events=sum(one[3] for one in self._done),
            failures=dict(self._failures),
            cpu_share=round(cpu_share, 3),
        )


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p95, p99; nothing of nothing."""
    if not values:
        return {}
    return {f"p{q}": round(float(np.percentile(values, q)), 3) for q in (50, 95, 99)}


async def run(task: Task) -> Outcome:
    if task.urls[0].startswith("http"):
        sender = HttpSender(task)
        try:
            return await _Traffic(task, sender).run()
        finally:
            sender.close()
    send, close = await engine_sender(task)
    try:
        return await _Traffic(task, send).run()
    finally:
        await close()


def run_beside(task: Task, cores: Iterable[int]) -> Outcome:
    """Runs the traffic in a process of its own, on these cores. Raises Wrong when it fails as a whole."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway_traffic"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).resolve().parent.parent,
    )
    os.sched_setaffinity(process.pid, cores)
    answer, _ = process.communicate(msgspec.json.encode(task))
    if process.returncode:
        raise Wrong(f"the traffic ended with status {process.returncode}")
    return msgspec.json.decode(answer.splitlines()[-1], type=Outcome)  # libraries may have logged before it


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(task))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
