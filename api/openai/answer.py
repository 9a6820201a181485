"""Submits a request to the engine and turns its output into text deltas, log probabilities and usage.

Waits for admission, so that errors still have their HTTP status. Output is decoded in the callback that
receives it: a task is woken only at the start and the end of an answer. Formatting as JSON is in
`response_bodies` and `stream`.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from api.deferred_work import DeferredWork
from api.detokenizer import Detokenizer
from api.errors import GenerationAborted, GenerationFailed
from api.openai.logprobs import LogprobTrail, joined
from api.openai.outcome import FEWEST_RATED, OutcomeRecorder
from api.openai.reservation import RequestReservation
from api.openai.submission import Submission
from api.openai.tool_calls import CallDelta, ToolCallReader
from api.thinking_detokenizer import ThinkingDetokenizer
from billing.request_metadata.recorder import MetadataRecorder
from engine.client import Generation
from engine.protocol import FinishReason, Submit, TokenChunk, Usage
from engine.stops import StopMatcher
from routing.replica_set import ReplicaSet
from telemetry.metrics import ServingMetrics
from tokenization.codec import TextCodec


class AnswerDelta(NamedTuple):
    """New text of one choice, and its finish reason if it has ended."""

    choice: int
    text: str
    logprobs: dict[str, Any] | None
    """In the endpoint's format; None if not requested or if no new text can be shown."""
    finish_reason: FinishReason | Literal["tool_calls"] | None
    calls: Sequence[CallDelta] = ()
    """Pieces of tool calls, after the text."""
    reasoning: str = ""
    """New thinking, before the text."""


DeltaHandler = Callable[[list[AnswerDelta]], bool]
"""Receives new deltas, at most one per choice; returns whether it can take more now."""


class _Choice:
    """One choice's state between chunks."""

    __slots__ = ("_calls", "_chat", "_prompt", "detokenizer", "trail")

    def __init__(
        self,
        detokenizer: Detokenizer | ThinkingDetokenizer,
        trail: LogprobTrail | None,
        chat: bool,
        calls: ToolCallReader | None = None,
    ) -> None:
        self.detokenizer = detokenizer
        self.trail = trail
        self._chat = chat
        self._calls = calls
        self._prompt: tuple[Submit, Generation, str] | None = None

    def prepend_prompt(self, submit: Submit, generation: Generation, echo: str) -> None:
        """Adds the prompt's log probabilities to the choice's first delta; they are known before its first
        chunk.
        """
        self._prompt = submit, generation, echo

    def read(self, choice: int, chunks: list[TokenChunk]) -> AnswerDelta:
        """Combines chunks that arrived together into one delta."""
        texts: list[str] = []
        thoughts: list[str] = []
        entries: list[Any] = []
        for chunk in chunks:
            scored = None
            if isinstance(self.detokenizer, ThinkingDetokenizer):
                thought, text = self.detokenizer.push(chunk)
                thoughts.append(thought)
                scored = self.detokenizer.take_scored()
            else:
                text = self.detokenizer.push(chunk)
            texts.append(text)
            if self.trail is not None:
                entries += self.trail.push(chunk, self.detokenizer.num_shown, scored)
        logprobs = None
        if self.trail is not None and entries:
            logprobs = self.trail.chat(entries) if self._chat else self.trail.completion(entries)
        reason = chunks[-1].finish_reason
        if self._prompt is not None and reason not in _NO_ANSWER:
            logprobs = joined(self._scored(*self._prompt), logprobs)
            self._prompt = None
        reasoning = "".join(thoughts)
        if self._calls is None:
            return AnswerDelta(choice, "".join(texts), logprobs, reason, reasoning=reasoning)
        text, calls = self._calls.read("".join(texts), is_last=reason is not None)
        has_called = reason == "stop" and self._calls.num_calls > 0
        return AnswerDelta(choice, text, logprobs, "tool_calls" if has_called else reason, calls, reasoning)

    def _scored(self, submit: Submit, generation: Generation, echo: str) -> dict[str, Any]:
        assert self.trail is not None
        if len(generation.scores) != len(submit.prompt_ids) - 1:
            raise GenerationFailed("The engine left tokens of the prompt without a log probability.")
        return self.trail.prompt(submit.prompt_ids, generation.scores, echo)


class Answer:
    """One request's generations, from submission to usage. Read it once.

    Args:
        reserved: the request and its reservation.
        outcome: records how the request was served.
        deferred_work: updates metrics after the answer has ended.
        chat: whether the text is a message, not the continuation of a prompt.
        arrived: `time.perf_counter()` of the request's arrival.
        echo: per prompt, the text to put before that of its choices.
    """

    def __init__(
        self,
        reserved: RequestReservation,
        outcome: OutcomeRecorder,
        text: TextCodec,
        metrics: ServingMetrics,
        deferred_work: DeferredWork,
        arrived: float,
        chat: bool,
        echo: list[str] | None = None,
    ) -> None:
        self.submission = submission = reserved.submission
        self.outcome = outcome
        self._reserved = reserved
        self._trace = reserved.trace
        self.echo = echo
        self._metrics = metrics
        self._deferred_work = deferred_work
        self._arrived = arrived
        self._first_at = arrived
        self._generations: list[Generation] = []
        self._num_received = 0
        """Tokens received, over all choices."""
        self._unstarted: set[int] = set()
        """Prompts without any output yet."""
        self._open: set[int] = set()
        """Prompts whose output is not complete."""
        self._on_deltas: DeltaHandler | None = None
        self._ready = True
        """Whether the handler can take more now."""
        self._error: Exception | None = None
        """The error that ended the answer."""
        self._waiter: asyncio.Future[None] | None = None
        new_detokenizer = _detokenizers(submission, text, chat)
        tools = submission.tools
        vocabulary = text.vocabulary if tools is None else tools.format.vocabulary
        self._choices = [
            _Choice(
                new_detokenizer(),
                LogprobTrail(text, len(echo[number // submission.n]) if echo is not None else 0, vocabulary)
                if submission.logprobs is not None
                else None,
                chat,
                None if tools is None else tools.reader(),
            )
            for number in range(submission.n * len(submission.submits))
        ]

    async def submit(self, engine: ReplicaSet, recorder: MetadataRecorder | None) -> None:
        """Submits all prompts to the engines. The request's metadata is kept before: what is billed has its
        metadata even if this process is killed.

        Raises:
            EngineError: not connected; prompts submitted before are aborted.
        """
        submission = self.submission
        if submission.metadata is not None and recorder is not None:
            await recorder.keep(submission.metadata, submission.submits[0].tenant, submission.id)
        try:
            for submit in submission.submits if self._trace is None else self._trace.submits:
                self._generations.append(engine.submit(submit, submission.session))
        except BaseException as error:
            self._error = error if isinstance(error, Exception) else None
            self.abort()
            raise
        finally:
            self._reserved.follow(self._generations)
        if self.echo is not None and submission.logprobs is not None:
            self._prepend_prompts(self.echo)
        self._open = set(range(len(self._generations)))
        self._unstarted = self._open.copy()
        for prompt, generation in enumerate(self._generations):
            generation.listen(functools.partial(self._on_output, prompt))

    async def admitted(self) -> None:
        """Waits for each prompt's first output, so that status 200 can be sent.

        Raises:
            EngineError: rejected, or the engine is gone; the other prompts are aborted.
            Exception: the error passed to `fail`.
        """
        while self._unstarted and self._error is None:
            await self._wait_for_output()
        self._raise_error()

    def _prepend_prompts(self, echo: list[str]) -> None:
        submits, n = self.submission.submits, self.submission.n
        for number, choice in enumerate(self._choices):
            prompt = number // n
            choice.prepend_prompt(submits[prompt], self._generations[prompt], echo[prompt])

    def abort(self) -> None:
        """Aborts all generations. Has no effect on those that have ended."""
        if self._trace is not None:
            self._trace.ended(time.perf_counter(), self._error)
        for generation in self._generations:
            generation.abort()

    def fail(self, error: Exception) -> None:
        """Aborts the answer and raises `error` where it is awaited. Has no effect once it has ended."""
        if self._error is None:
            self._error = error
        self.abort()
        self._wake()

    def left(self) -> None:
        """Records that the client disconnected after the start of the answer, which counts as served."""
        self.outcome.answered(self._first_at - self._arrived)

    async def read(self, on_deltas: DeltaHandler) -> None:
        """Passes new deltas to `on_deltas` until all choices have ended. After it has returned False, output
        is buffered until `resume`.

        Raises:
            EngineError: rejected, the engine disconnected, or the handler was too slow.
            GenerationFailed, GenerationAborted: a choice ended without an answer; the others are aborted.
            Exception: what `on_deltas` raised, or the error passed to `fail`.
        """
        self._on_deltas = on_deltas
        self.resume()
        while self._open and self._error is None:
            await self._wait_for_output()
        self._raise_error()
        self._on_deltas = None
        ended_at = time.perf_counter()
        if self._trace is not None:
            self._trace.ended(ended_at)
        self._deferred_work.add(self._account, ended_at)

    def resume(self) -> None:
        """Passes buffered and further output to the handler again."""
        self._ready = True
        for prompt in tuple(self._open):
            self._on_output(prompt)

    def _on_output(self, prompt: int) -> None:
        """Handles new output or the end of a prompt's generation; does nothing if there is none."""
        generation = self._generations[prompt]
        if prompt in self._unstarted and (generation.has_unread or generation.ended):
            self._on_first_output(prompt, generation)
        if self._on_deltas is None or not self._ready or self._error is not None or prompt not in self._open:
            return
        try:
            chunks = generation.take()
            if chunks:
                self._ready = self._on_deltas(self._deltas(prompt * self.submission.n, chunks))
        except Exception as error:  # noqa: BLE001  raised where the answer is awaited
            self.fail(error)
            return
        if generation.ended:
            self._open.discard(prompt)
            generation.listen(None)
            self._error = generation.error
            if not self._open or self._error is not None:
                self._wake()

    def _on_first_output(self, prompt: int, generation: Generation) -> None:
        self._unstarted.discard(prompt)
        if generation.error is not None and self._on_deltas is None:
            self._error = generation.error
            self._wake()
            return
        if not generation.has_unread:  # ended without any output
            return
        self._first_at = max(self._first_at, time.perf_counter() - generation.held_for)
        if self._trace is not None:
            self._trace.first_output(self._first_at)
        if not self._unstarted:
            waited = self._first_at - self._arrived
            self._deferred_work.add(self._metrics.first_token, self.submission.tier, waited)
            if self._on_deltas is None:
                self._wake()

    def _deltas(self, first: int, chunks: list[TokenChunk]) -> list[AnswerDelta]:
        """Returns the deltas of these chunks. Raises GenerationFailed, GenerationAborted."""
        for chunk in chunks:
            self._num_received += len(chunk.token_ids)
        if len(chunks) == 1:
            number = first + chunks[0].index
            deltas = [self._choices[number].read(number, chunks)]
        else:
            gained = _by_choice(first, chunks)
            deltas = [self._choices[number].read(number, theirs) for number, theirs in gained]
        for delta in deltas:
            if delta.finish_reason in _NO_ANSWER:
                raise _NO_ANSWER[delta.finish_reason]()
            if self._trace is not None and delta.finish_reason is not None:
                self._trace.choice_ended(delta.choice, delta.finish_reason)
        return deltas

    async def _wait_for_output(self) -> None:
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
        self._on_deltas = None
        for generation in self._generations:
            generation.listen(None)
        self.abort()
        raise self._error

    @property
    def usage(self) -> Usage:
        """Billed tokens over all prompts. Known once `read` has returned."""
        usages = [generation.usage for generation in self._generations if generation.usage is not None]
        return Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(usage.reasoning_tokens for usage in usages),
        )

    @property
    def usage_so_far(self) -> Usage:
        """Prompt tokens, and the tokens received so far. Cached tokens are known only at the end."""
        prompt_tokens = sum(len(submit.prompt_ids) for submit in self.submission.submits)
        return Usage(prompt_tokens, 0, self._num_received)

    def _account(self, now: float) -> None:
        """Records metrics and the outcome; the answer ended at `now`."""
        usage = self.usage
        tier = self.submission.tier
        per_choice = usage.completion_tokens / len(self._choices)
        pace = (now - self._first_at) / (per_choice - 1) if per_choice > 1 else None
        self._metrics.answered(tier, now - self._arrived, pace)
        rate = 1 / max(pace, 1e-9) if pace is not None and per_choice >= FEWEST_RATED else None
        self.outcome.answered(self._first_at - self._arrived, rate)
        self._metrics.billed(tier, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)


def _detokenizers(
    submission: Submission, text: TextCodec, chat: bool
) -> Callable[[], Detokenizer | ThinkingDetokenizer]:
    """Returns a function that makes the detokenizer of one choice."""
    matcher = StopMatcher(submission.stops) if submission.stops else None
    tools, thinking = submission.tools, submission.thinking
    if thinking is None:
        vocabulary = text.vocabulary if tools is None else tools.format.vocabulary
        strip = chat and vocabulary.strips_leading_space
        return lambda: Detokenizer(vocabulary, None if matcher is None else matcher.fresh(), strip)
    marked = thinking.format.vocabulary if tools is None else thinking.format.tool_vocabulary
    return lambda: ThinkingDetokenizer(
        marked, thinking.reasoning, None if matcher is None else matcher.fresh()
    )


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
