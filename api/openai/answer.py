"""An answer as it comes from the engine: generations read together, each choice turned to text.

Owns reading: admission (nothing is sent before the engine's first word), the choices' text and log
probabilities, usage and the serving metrics. Refuses to know JSON and HTTP; whoever formats asks for pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

from api.detokenizer import Detokenizer
from api.errors import GenerationAborted, GenerationFailed
from api.openai.booking import Booking
from api.openai.logprobs import LogprobTrail, joined
from api.openai.observing import FEWEST_RATED, Observation
from engine.client import EngineClient, EngineError, Generation
from engine.protocol import FinishReason, Submit, TokenChunk, Usage
from engine.stops import StopMatcher
from telemetry.metrics import ServingMetrics
from tokenization.codec import TextCodec

_QUEUE_LEN = 64
"""Wakeups of many generations that may wait for one slow reader."""

Wakeup = tuple[int, list[TokenChunk]]
"""(the first choice of a prompt, chunks of its choices that arrived together)."""


class Piece(NamedTuple):
    """What one choice gained: text that can be shown, and the reason when it has ended."""

    choice: int
    text: str
    logprobs: dict[str, Any] | None
    """In the endpoint's form; None when not asked for, or when nothing became showable."""
    finish_reason: FinishReason | None


class _Choice:
    """One choice's state between chunks."""

    __slots__ = ("_chat", "_prompt", "detokenizer", "trail")

    def __init__(self, detokenizer: Detokenizer, trail: LogprobTrail | None, chat: bool) -> None:
        self.detokenizer = detokenizer
        self.trail = trail
        self._chat = chat
        self._prompt: tuple[Submit, Generation, str] | None = None

    def begin_with(self, submit: Submit, generation: Generation, echo: str) -> None:
        """Its first piece tells the prompt's log probabilities, which are there before its first chunk."""
        self._prompt = submit, generation, echo

    def read(self, choice: int, chunks: list[TokenChunk]) -> Piece:
        """All of one wakeup's chunks as one piece."""
        texts: list[str] = []
        entries: list[Any] = []
        for chunk in chunks:
            texts.append(self.detokenizer.push(chunk))
            if self.trail is not None:
                entries += self.trail.push(chunk, self.detokenizer.num_shown)
        logprobs = None
        if self.trail is not None and entries:
            logprobs = self.trail.chat(entries) if self._chat else self.trail.completion(entries)
        reason = chunks[-1].finish_reason
        if self._prompt is not None and reason not in _NO_ANSWER:
            logprobs = joined(self._scored(*self._prompt), logprobs)
            self._prompt = None
        return Piece(choice, "".join(texts), logprobs, reason)

    def _scored(self, submit: Submit, generation: Generation, echo: str) -> dict[str, Any]:
        assert self.trail is not None
        if len(generation.scores) != len(submit.prompt_ids) - 1:
            raise GenerationFailed("The engine left tokens of the prompt without a log probability.")
        return self.trail.prompt(submit.prompt_ids, generation.scores, echo)


class Answer:
    """One request's generations, from submission to usage. Read it once.

    Args:
        booking: what is asked, and what was reserved for it.
        observation: is told how it was served.
        chat: an assistant's turn, which begins a text; a completion goes on with one.
        arrived: `time.perf_counter()` of the request's arrival.
        echo: per prompt, what is put before its choices' text.
    """

    def __init__(
        self,
        booking: Booking,
        observation: Observation,
        text: TextCodec,
        metrics: ServingMetrics,
        arrived: float,
        chat: bool,
        echo: list[str] | None = None,
    ) -> None:
        self.submission = submission = booking.submission
        self.observation = observation
        self._booking = booking
        self.echo = echo
        self._metrics = metrics
        self._arrived = arrived
        self._first_at = arrived
        self._generations: list[Generation] = []
        self._heads: list[list[TokenChunk]] = []
        matcher = StopMatcher(submission.stops) if submission.stops else None
        strip = chat and text.vocabulary.strips_leading_space
        self._choices = [
            _Choice(
                Detokenizer(text.vocabulary, matcher.fresh() if matcher is not None else None, strip),
                LogprobTrail(text, len(echo[number // submission.n]) if echo is not None else 0)
                if submission.logprobs is not None
                else None,
                chat,
            )
            for number in range(submission.n * len(submission.submits))
        ]

    async def admit(self, engine: EngineClient) -> None:
        """Submit, and wait for each prompt's first output: after this a status of 200 is the truth.

        Raises:
            EngineError: rejected, or the engine is gone; what was submitted beside it is aborted.
        """
        try:
            try:
                for submit in self.submission.submits:
                    self._generations.append(engine.submit(submit))
            finally:
                self._booking.follow(self._generations)
            if self.echo is not None and self.submission.logprobs is not None:
                self._begin_with_prompts(self.echo)
            for generation in self._generations:
                self._heads.append(await anext(generation, []))
        except BaseException:
            self.abort()
            raise
        self._first_at = time.perf_counter()
        self._metrics.first_token(self.submission.tier, self._first_at - self._arrived)

    def _begin_with_prompts(self, echo: list[str]) -> None:
        submits, n = self.submission.submits, self.submission.n
        for number, choice in enumerate(self._choices):
            prompt = number // n
            choice.begin_with(submits[prompt], self._generations[prompt], echo[prompt])

    def abort(self) -> None:
        """Have the engine stop. Harmless when it has."""
        for generation in self._generations:
            generation.abort()

    def left(self) -> None:
        """The client reads no further: it was answered as far as it wanted."""
        self.observation.answered(self._first_at - self._arrived)

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """What the choices gained, wakeup by wakeup: at most one piece per choice and wakeup.

        Raises:
            EngineError: the engine went away, or the reader was too slow.
            GenerationFailed, GenerationAborted: a choice ended without an answer; the others are aborted.
        """
        source = self._read_one() if len(self._generations) == 1 else self._read_many()
        async with contextlib.aclosing(source):
            async for first, chunks in source:
                if len(chunks) == 1:
                    chunk = chunks[0]
                    number = first + chunk.index
                    pieces = [self._choices[number].read(number, chunks)]
                else:
                    pieces = [
                        self._choices[number].read(number, gained)
                        for number, gained in _by_choice(first, chunks)
                    ]
                for piece in pieces:
                    if piece.finish_reason in _NO_ANSWER:
                        self.abort()
                        raise _NO_ANSWER[piece.finish_reason]()
                yield pieces
        self._account()

    @property
    def usage(self) -> Usage:
        """What is billed, over all prompts. Once `pieces` has ended."""
        usages = [generation.usage for generation in self._generations if generation.usage is not None]
        return Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
        )

    def _account(self) -> None:
        now = time.perf_counter()
        usage = self.usage
        tier = self.submission.tier
        per_choice = usage.completion_tokens / len(self._choices)
        pace = (now - self._first_at) / (per_choice - 1) if per_choice > 1 else None
        self._metrics.answered(tier, now - self._arrived, pace)
        rate = 1 / max(pace, 1e-9) if pace is not None and per_choice >= FEWEST_RATED else None
        self.observation.answered(self._first_at - self._arrived, rate)
        self._metrics.billed(tier, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)

    async def _read_one(self) -> AsyncGenerator[Wakeup, None]:
        if self._heads[0]:
            yield 0, self._heads[0]
        async for chunks in self._generations[0]:
            yield 0, chunks

    async def _read_many(self) -> AsyncGenerator[Wakeup, None]:
        queue: asyncio.Queue[Wakeup | Exception | None] = asyncio.Queue(_QUEUE_LEN)
        n = self.submission.n
        for position, head in enumerate(self._heads):
            if head:
                yield position * n, head
        readers = [
            asyncio.create_task(_pump(generation, position * n, queue))
            for position, generation in enumerate(self._generations)
        ]
        try:
            open_readers = len(readers)
            while open_readers:
                item = await queue.get()
                if item is None:
                    open_readers -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


async def _pump(generation: Generation, first: int, queue: asyncio.Queue[Wakeup | Exception | None]) -> None:
    try:
        async for chunks in generation:
            await queue.put((first, chunks))
    except EngineError as error:
        await queue.put(error)
    else:
        await queue.put(None)


def _by_choice(first: int, chunks: list[TokenChunk]) -> Iterator[tuple[int, list[TokenChunk]]]:
    gained: dict[int, list[TokenChunk]] = {}
    for chunk in chunks:
        gained.setdefault(first + chunk.index, []).append(chunk)
    return iter(gained.items())


def _failed() -> GenerationFailed:
    return GenerationFailed("The model's numbers stopped being finite: this request cannot be answered.")


def _aborted() -> GenerationAborted:
    return GenerationAborted("The engine stopped before the answer was complete. Try again.")


_NO_ANSWER: dict[FinishReason | None, Any] = {"error": _failed, "abort": _aborted}
