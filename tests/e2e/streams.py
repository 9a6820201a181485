"""Streams as a client sees them: text, tokens received, usage, and how they ended."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import APIError, AsyncOpenAI
from openai.types import CompletionUsage


@dataclass
class Stream:
    """One streamed answer, complete or broken off."""

    model: str
    prompt: str
    id: str = ""
    text: str = ""
    num_received: int = 0
    last_token_at: float = 0.0
    """By `time.monotonic`."""
    finish_reason: str | None = None
    usage: CompletionUsage | None = None
    error: Exception | None = None

    async def received(self, num_tokens: int, seconds: float = 30.0) -> None:
        """Return once so many have arrived of a stream that is being read."""
        async with asyncio.timeout(seconds):
            while self.num_received < num_tokens:
                assert self.error is None, self.error
                await asyncio.sleep(0.005)


async def read_stream(client: AsyncOpenAI, stream: Stream, **options: Any) -> Stream:
    """Ask and read into `stream` until it ends, whichever way.

    The client asks; its chunks are read here, since it validates each: most of the time of many streams.
    """
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 64} | options
    create = client.chat.completions.with_streaming_response.create
    try:
        async with create(
            model=stream.model,
            messages=[{"role": "user", "content": stream.prompt}],
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,  # a chunk may carry several tokens: their log-probabilities count them
            **asked,
        ) as answer:
            async for line in answer.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        problem = chunk["error"]
                        raise APIError(problem["message"], answer.http_request, body=problem)
                    _take(stream, chunk)
    except (APIError, httpx2.HTTPError) as error:
        stream.error = error
    return stream


def _take(stream: Stream, chunk: dict[str, Any]) -> None:
    stream.id = chunk["id"]
    if chunk.get("usage"):
        stream.usage = CompletionUsage.model_validate(chunk["usage"])
    for choice in chunk["choices"]:
        stream.text += choice["delta"].get("content") or ""
        stream.finish_reason = choice["finish_reason"] or stream.finish_reason
        if choice.get("logprobs") and choice["logprobs"].get("content"):
            stream.num_received += len(choice["logprobs"]["content"])
            stream.last_token_at = time.monotonic()


class Crowd:
    """Long streams running at once, for something to happen to."""

    def __init__(self, client: AsyncOpenAI, models: list[str], count: int, max_tokens: int = 160) -> None:
        self.streams = [
            Stream(models[index % len(models)], f"Tell me about number {index}.") for index in range(count)
        ]
        options: dict[str, Any] = {"max_tokens": max_tokens, "extra_body": {"ignore_eos": True}}
        self._tasks = [asyncio.create_task(read_stream(client, one, **options)) for one in self.streams]

    async def all_generating(self, num_tokens: int = 8, seconds: float = 30.0) -> None:
        """Return once every stream has received `num_tokens`; none may have ended."""
        await asyncio.gather(*(one.received(num_tokens, seconds) for one in self.streams))
        assert not any(task.done() for task in self._tasks), (
            "a stream ended before anything could happen to it"
        )

    async def ended(self) -> list[Stream]:
        return list(await asyncio.gather(*self._tasks))
