"""An answer read from generations that the test drives: several prompts, slow readers, ends of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from api.openai.answer import Answer, AnswerDelta
from engine.client import EngineGone
from engine.protocol import TokenChunk, Usage
from tokenization.codec import TextCodec


class Generation:
    held_for = 0.0

    def __init__(self) -> None:
        self.chunks: list[TokenChunk] = []
        self.ended = False
        self.error: Exception | None = None
        self.usage: Usage | None = None
        self.aborted = False
        self.hear: Callable[[], None] | None = None

    @property
    def has_unread(self) -> bool:
        return bool(self.chunks)

    def take(self) -> list[TokenChunk]:
        taken, self.chunks = self.chunks, []
        return taken

    def listen(self, hear: Callable[[], None] | None) -> None:
        self.hear = hear

    def abort(self) -> None:
        self.aborted = True

    def says(self, *chunks: TokenChunk, usage: Usage | None = None) -> None:
        self.chunks += chunks
        self.usage, self.ended = usage, usage is not None
        if self.hear is not None:
            self.hear()


class Site:
    def __init__(self, codec: TextCodec, prompts: int = 1, n: int = 1) -> None:
        self.generations = [Generation() for _ in range(prompts)]
        self._coming = iter(self.generations)
        submits = [SimpleNamespace(prompt_ids=[1]) for _ in range(prompts)]
        submission: Any = SimpleNamespace(
            id="x",
            n=n,
            stops=(),
            logprobs=None,
            tier="default",
            submits=submits,
            tools=None,
            thinking=None,
            metadata=None,
            session=None,
        )
        booking: Any = SimpleNamespace(submission=submission, trace=None, follow=lambda generations: None)
        nothing: Any = SimpleNamespace(add=lambda *args: None, first_token=None)
        self.answer = Answer(booking, nothing, codec, nothing, nothing, 0.0, True)
        self.given: list[AnswerDelta] = []
        self.wants = True

    def submit(self, request: Any, session: str | None = None) -> Any:
        found = next(self._coming, None)
        if found is None or request.prompt_ids == [0]:
            raise EngineGone("not connected")
        return found

    def give(self, pieces: list[AnswerDelta]) -> bool:
        self.given += pieces
        return self.wants


def chunk(finish: Any = None, choice: int = 0) -> TokenChunk:
    return TokenChunk("x", choice, [5], None, finish)


async def test_usage_is_that_of_all_prompts(codec: TextCodec) -> None:
    site = Site(codec, 2)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    admitted = asyncio.create_task(site.answer.admitted())
    await asyncio.sleep(0)
    site.generations[0].says(chunk("stop"), usage=Usage(10, 4, 1))
    await asyncio.sleep(0)
    assert not admitted.done(), "each prompt's first output is waited for"
    site.generations[1].says(chunk(), chunk("length"), usage=Usage(20, 7, 2))
    await asyncio.wait_for(admitted, 1)
    await asyncio.wait_for(site.answer.read(site.give), 1)
    assert site.answer.usage == Usage(30, 11, 3)
    assert [(piece.choice, piece.finish_reason) for piece in site.given] == [(0, "stop"), (1, "length")]


async def test_choices_are_numbered_over_all_prompts(codec: TextCodec) -> None:
    site = Site(codec, prompts=2, n=2)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    reading = asyncio.create_task(site.answer.read(site.give))
    await asyncio.sleep(0)
    for generation in site.generations:
        generation.says(chunk())
        generation.says(chunk("stop", choice=1), chunk("length"), usage=Usage(1, 0, 3))
    await asyncio.wait_for(reading, 1)
    assert [piece.choice for piece in site.given] == [0, 1, 0, 2, 3, 2]


async def test_admission_waits_for_every_prompt_though_one_began_before(codec: TextCodec) -> None:
    site = Site(codec, prompts=2)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    site.generations[0].says(chunk())
    admitted = asyncio.create_task(site.answer.admitted())
    await asyncio.sleep(0)
    assert not admitted.done()
    site.generations[1].says(chunk())
    await asyncio.wait_for(admitted, 1)


async def test_a_reader_that_wants_no_more_is_given_no_more_until_it_does(codec: TextCodec) -> None:
    site = Site(codec)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    site.wants = False
    reading = asyncio.create_task(site.answer.read(site.give))
    await asyncio.sleep(0)
    site.generations[0].says(chunk())
    site.generations[0].says(chunk())
    assert len(site.given) == 1
    site.wants = True
    site.answer.resume()
    assert len(site.given) == 2
    site.generations[0].says(chunk("stop"), usage=Usage(1, 0, 3))
    await asyncio.wait_for(reading, 1)


async def test_what_was_submitted_beside_a_prompt_that_cannot_be_is_aborted(codec: TextCodec) -> None:
    site = Site(codec, 2)
    site.answer.submission.submits[1].prompt_ids = [0]
    with pytest.raises(EngineGone):
        await site.answer.submit(site, None)  # type: ignore[arg-type]
    assert site.generations[0].aborted


async def test_a_reader_that_is_cancelled_aborts(codec: TextCodec) -> None:
    site = Site(codec)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    reading = asyncio.create_task(site.answer.read(site.give))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert site.generations[0].aborted


async def test_the_first_reason_to_break_off_is_told(codec: TextCodec) -> None:
    site = Site(codec)
    await site.answer.submit(site, None)  # type: ignore[arg-type]
    site.answer.fail(EngineGone("first"))
    site.answer.fail(ValueError("second"))
    with pytest.raises(EngineGone, match="first"):
        await site.answer.read(site.give)
