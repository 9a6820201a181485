"""An answer as it comes from the engine: generations read together, each choice turned to text.

Owns reading: admission (nothing is sent before the engine's first word), the choices' text and log
probabilities, usage and the serving metrics. What arrives is turned to text and handed on where it arrives:
one task is woken for an answer at its beginning and at its end, none for what comes between. Refuses to know
JSON and HTTP; whoever formats is given pieces.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from api.deferred_work import DeferredWork
from api.detokenizer import Detokenizer
from api.errors import GenerationAborted, GenerationFailed
from api.openai.logprobs import LogprobTrail, joined
from api.openai.observing import FEWEST_RATED, Observation
from api.openai.reservation import RequestReservation
from engine.client import EngineClient, Generation
from engine.protocol import FinishReason, Submit, TokenChunk, Usage
from engine.stops import StopMatcher
from telemetry.metrics import ServingMetrics
from tokenization.codec import TextCodec


class AnswerDelta(NamedTuple):
    """What one choice gained: text that can be shown, and the reason when it has ended."""

    choice: int
    text: str
    logprobs: dict[str, Any] | None
    """In the endpoint's form; None when not asked for, or when nothing became showable."""
    finish_reason: FinishReason | None


Give = Callable[[list[AnswerDelta]], bool]
"""Takes what the choices gained, at most one piece of each; says whether it wants more now."""


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

    def read(self, choice: int, chunks: list[TokenChunk]) -> AnswerDelta:
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
        return AnswerDelta(choice, "".join(texts), logprobs, reason)

    def _scored(self, submit: Submit, generation: Generation, echo: str) -> dict[str, Any]:
        assert self.trail is not None
        if len(generation.scores) != len(submit.prompt_ids) - 1:
            raise GenerationFailed("The engine left tokens of the prompt without a log probability.")
        return self.trail.prompt(submit.prompt_ids, generation.scores, echo)


class Answer:
    """One request's generations, from submission to usage. Read it once.

    Args:
        reserved: what is asked, and what was reserved for it.
        observation: is told how it was served.
        deferred_work: tells of it once it has ended.
        chat: an assistant's turn, which begins a text; a completion goes on with one.
        arrived: `time.perf_counter()` of the request's arrival.
        echo: per prompt, what is put before its choices' text.
    """

    def __init__(
        self,
        reserved: RequestReservation,
        observation: Observation,
        text: TextCodec,
        metrics: ServingMetrics,
        deferred_work: DeferredWork,
        arrived: float,
        chat: bool,
        echo: list[str] | None = None,
    ) -> None:
        self.submission = submission = reserved.submission
        self.observation = observation
        self._reserved = reserved
        self.echo = echo
        self._metrics = metrics
        self._deferred_work = deferred_work
        self._arrived = arrived
        self._first_at = arrived
        self._generations: list[Generation] = []
        self._num_received = 0
        """Tokens of all choices that have come."""
        self._unbegun: set[int] = set()
        """Prompts whose first output is still to come."""
        self._open: set[int] = set()
        """Prompts that are not read to their end."""
        self._give: Give | None = None
        self._wanted = True
        """Whether the reader takes more now."""
        self._error: Exception | None = None
        """Why there is no answer, or no more of it."""
        self._waiter: asyncio.Future[None] | None = None
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

    def submit(self, engine: EngineClient) -> None:
        """Have the engine begin.

        Raises:
            EngineError: not connected; what was submitted before is aborted.
        """
        try:
            for submit in self.submission.submits:
                self._generations.append(engine.submit(submit))
        except BaseException:
            self.abort()
            raise
        finally:
            self._reserved.follow(self._generations)
        if self.echo is not None and self.submission.logprobs is not None:
            self._begin_with_prompts(self.echo)
        self._open = set(range(len(self._generations)))
        self._unbegun = self._open.copy()
        for prompt, generation in enumerate(self._generations):
            generation.listen(functools.partial(self._hear, prompt))

    async def admitted(self) -> None:
        """Wait for each prompt's first output: after this a status of 200 is the truth.

        Raises:
            EngineError: rejected, or the engine is gone; what was submitted beside it is aborted.
            Exception: what `break_off` was told.
        """
        while self._unbegun and self._error is None:
            await self._news()
        self._raise_error()

    def _begin_with_prompts(self, echo: list[str]) -> None:
        submits, n = self.submission.submits, self.submission.n
        for number, choice in enumerate(self._choices):
            prompt = number // n
            choice.begin_with(submits[prompt], self._generations[prompt], echo[prompt])

    def abort(self) -> None:
        """Have the engine stop. Harmless when it has."""
        for generation in self._generations:
            generation.abort()

    def break_off(self, error: Exception) -> None:
        """Abort, and raise `error` where the answer is awaited. Harmless when it has ended."""
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    def left(self) -> None:
        """The client reads no further: it was answered as far as it wanted."""
        self.observation.answered(self._first_at - self._arrived)

    async def read(self, give: Give) -> None:
        """Hand what the choices gain to `give`, wherever it arrives, until all have ended. Once it has said
        that it wants no more, what comes is kept until `go_on`.

        Raises:
            EngineError: rejected, the engine went away, or the reader was too slow.
            GenerationFailed, GenerationAborted: a choice ended without an answer; the others are aborted.
            Exception: what `give` raised, or `break_off` was told.
        """
        self._give = give
        self.go_on()
        while self._open and self._error is None:
            await self._news()
        self._raise_error()
        self._give = None
        self._deferred_work.add(self._account, time.perf_counter())

    def go_on(self) -> None:
        """The reader wants more again."""
        self._wanted = True
        for prompt in tuple(self._open):
            self._hear(prompt)

    def _hear(self, prompt: int) -> None:
        """Something of this prompt came, or it has ended; or the reader asks whether it has."""
        generation = self._generations[prompt]
        if prompt in self._unbegun and (generation.has_unread or generation.ended):
            self._begun(prompt, generation)
        if self._give is None or not self._wanted or self._error is not None or prompt not in self._open:
            return
        try:
            chunks = generation.take()
            if chunks:
                self._wanted = self._give(self._pieces(prompt * self.submission.n, chunks))
        except Exception as error:  # noqa: BLE001  raised where the answer is awaited
            self.break_off(error)
            return
        if generation.ended:
            self._open.discard(prompt)
            generation.listen(None)
            self._error = generation.error
            if not self._open or self._error is not None:
                self._wake()

    def _begun(self, prompt: int, generation: Generation) -> None:
        self._unbegun.discard(prompt)
        if generation.error is not None and self._give is None:
            self._error = generation.error
            self._wake()
            return
        if not generation.has_unread:  # it has ended, and with nothing
            return
        self._first_at = max(self._first_at, time.perf_counter() - generation.held_for)
        if not self._unbegun:
            waited = self._first_at - self._arrived
            self._deferred_work.add(self._metrics.first_token, self.submission.tier, waited)
            if self._give is None:
                self._wake()

    def _pieces(self, first: int, chunks: list[TokenChunk]) -> list[AnswerDelta]:
        """Raises GenerationFailed, GenerationAborted."""
        for chunk in chunks:
            self._num_received += len(chunk.token_ids)
        if len(chunks) == 1:
            number = first + chunks[0].index
            pieces = [self._choices[number].read(number, chunks)]
        else:
            gained = _by_choice(first, chunks)
            pieces = [self._choices[number].read(number, theirs) for number, theirs in gained]
        for piece in pieces:
            if piece.finish_reason in _NO_ANSWER:
                raise _NO_ANSWER[piece.finish_reason]()
        return pieces

    async def _news(self) -> None:
        assert self._waiter is None, "an answer has one reader"
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _raise_error(self) -> None:
        if self._error is None:
            return
        self._give = None
        for generation in self._generations:
            generation.listen(None)
        self.abort()
        raise self._error

    @property
    def usage(self) -> Usage:
        """What is billed, over all prompts. Once `pieces` has ended."""
        usages = [generation.usage for generation in self._generations if generation.usage is not None]
        return Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
        )

    @property
    def usage_so_far(self) -> Usage:
        """Tokens of all prompts, and those generated that have come; what was cached is known at the end."""
        prompt_tokens = sum(len(submit.prompt_ids) for submit in self.submission.submits)
        return Usage(prompt_tokens, 0, self._num_received)

    def _account(self, now: float) -> None:
        """Tell how it was served, up to its end at `now`."""
        usage = self.usage
        tier = self.submission.tier
        per_choice = usage.completion_tokens / len(self._choices)
        pace = (now - self._first_at) / (per_choice - 1) if per_choice > 1 else None
        self._metrics.answered(tier, now - self._arrived, pace)
        rate = 1 / max(pace, 1e-9) if pace is not None and per_choice >= FEWEST_RATED else None
        self.observation.answered(self._first_at - self._arrived, rate)
        self._metrics.billed(tier, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


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
