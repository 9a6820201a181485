"""Sends requests to a service with the stock client, without retries, and keeps what each one received."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from openai import AsyncOpenAI

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Load:
    """How much is sent at a time."""

    num_clients: int = 4
    lengths: Sequence[int] = (4, 16, 40, 90)
    """Tokens requested, drawn for each request."""
    longest_pause_s: float = 0.5
    """Between two requests of one client; the shortest is none."""


@dataclass
class Answer:
    """One request as its client saw it."""

    during: str
    """What was being replaced when it was sent."""
    streamed: bool
    asked: int
    """Tokens requested, none fewer: the end of the text is ignored."""
    id: str = ""
    received: int = 0
    usage: tuple[int, int] | None = None
    """Prompt and completion tokens, as the service says."""
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether it was refused, broke off, or has fewer tokens than requested."""
        return bool(self.error)


class Traffic:
    """Clients that send one request after the other, every second one a stream, from `start` to `stop`."""

    def __init__(self, base_url: str, key: str, models: Sequence[str], load: Load, seed: int) -> None:
        self.answers: list[Answer] = []
        self.during = "start"
        """What is being replaced; the caller keeps it up to date."""
        self._models = models
        self._load = load
        self._numbers = itertools.count()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._seeds = [seed * 1000 + number for number in range(load.num_clients)]
        self._clients = [
            AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=TIMEOUT_S) for _ in self._seeds
        ]

    @property
    def num_failed(self) -> int:
        return sum(answer.failed for answer in self.answers)

    def start(self) -> None:
        pairs = zip(self._clients, self._seeds, strict=True)
        self._tasks = [asyncio.create_task(self._send(client, Random(seed))) for client, seed in pairs]

    async def stop(self) -> list[Answer]:
        """Returns all answers once the last request has ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)
        for client in self._clients:
            await client.close()
        return self.answers

    async def _send(self, client: AsyncOpenAI, random: Random) -> None:
        while not self._stopping:
            number = next(self._numbers)
            model = self._models[number % len(self._models)]
            answer = Answer(self.during, streamed=number % 2 == 0, asked=random.choice(self._load.lengths))
            self.answers.append(answer)
            try:
                await read_answer(client, model, number, answer)
            except Exception as error:  # noqa: BLE001 - whatever a client may see counts
                answer.error = f"{type(error).__name__}: {error}"[:300]
            await asyncio.sleep(random.uniform(0, self._load.longest_pause_s))


async def read_answer(client: AsyncOpenAI, model: str, number: int, answer: Answer) -> None:
    """Sends a request and reads into `answer`. Raises what the client raises."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about number {number}."}],
        "max_tokens": answer.asked,
        "temperature": 0,
        "logprobs": True,  # a chunk may have several tokens: their log-probabilities count them
        "extra_body": {"ignore_eos": True},
    }
    if answer.streamed:
        stream = await client.chat.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            _take(answer, chunk)
    else:
        _take(answer, await client.chat.completions.create(**body))
    if answer.usage is None or answer.received != answer.asked:
        answer.error = f"{answer.received} of {answer.asked} tokens arrived, usage {answer.usage}"


def _take(answer: Answer, part: Any) -> None:
    """Adds a chunk of a stream, or a whole answer."""
    answer.id = part.id
    if part.usage is not None:
        answer.usage = part.usage.prompt_tokens, part.usage.completion_tokens
    for choice in part.choices:
        if choice.logprobs is not None:
            answer.received += len(choice.logprobs.content or ())
