"""Records the span of an answer under OpenTelemetry's names for generative AI, with the usage that is billed.

No attribute has a text that a client sent or received: no prompt, no stop string, no message of an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from fastapi import Request

from api.errors import ClientGone, response_for
from api.openai.submission import Submission
from api.request_trace import TraceClock, trace_of
from engine.protocol import Usage

if TYPE_CHECKING:
    from telemetry.tracing import AttributeValue, Span, Tracing

PROVIDER = "rootstock"
"""`gen_ai.provider.name`."""
OPERATIONS = {"completions": "text_completion"}
"""`gen_ai.operation.name` by the endpoint's name in the ledger; of others `chat`."""
ABANDONED = "client_disconnected"
"""`error.type` of an answer that its client did not wait for."""


class AnswerTrace:
    """The span of one answer: from its submission to its last token.

    It is exported once the answer has ended and its reservation is settled, in whichever order. Times are
    those of `time.perf_counter()`.
    """

    def __init__(
        self,
        tracing: Tracing,
        span: Span,
        submission: Submission,
        clock: TraceClock,
        began: float,
        on_ended: Callable[[float], None] | None = None,
    ) -> None:
        """`on_ended` is called with the time of the answer's end."""
        parent = tracing.context_of(span).traceparent
        self.submits = [msgspec.structs.replace(one, traceparent=parent) for one in submission.submits]
        """What the engine is sent: with the answer's span as the parent of its own."""
        self._tracing = tracing
        self._span = span
        self._submission = submission
        self._clock = clock
        self._began = began
        self._on_ended = on_ended
        self._ended_at: float | None = None
        self._first_at: float | None = None
        self._reasons: dict[int, str] = {}
        self._usages: Sequence[Usage] | None = None

    def first_output(self, at: float) -> None:
        """Records when the first token came; of several prompts, that of the last to begin."""
        self._first_at = at

    def choice_ended(self, choice: int, reason: str) -> None:
        self._reasons[choice] = reason

    def ended(self, at: float, error: BaseException | None = None) -> None:
        """Records the answer's end. The first call counts."""
        if self._ended_at is not None:
            return
        self._ended_at = at
        if self._on_ended is not None:
            self._on_ended(at)
        if error is not None:
            code = ABANDONED if isinstance(error, ClientGone) else response_for(error).code
            self._tracing.mark_failed(self._span, code)
        self._finish_if_complete()

    def settled(self, usages: Sequence[Usage]) -> None:
        """Records what is billed, by prompt."""
        self._usages = usages
        self._finish_if_complete()

    def dropped(self, at: float) -> None:
        """Records that nothing was submitted."""
        self.ended(at)
        self.settled(())

    def _finish_if_complete(self) -> None:
        if self._ended_at is None or self._usages is None:
            return
        unix_ns = self._clock.unix_ns
        self._span.set_attributes(self._attributes(self._usages))
        if self._first_at is not None:
            self._span.attributes["gen_ai.response.time_to_first_chunk"] = self._first_at - self._began
            self._span.add_event("first token", timestamp=unix_ns(self._first_at))
        self._span.end(unix_ns(self._ended_at))

    def _attributes(self, usages: Sequence[Usage]) -> dict[str, AttributeValue]:
        submission, first = self._submission, self._submission.submits[0]
        sampling, labels = first.sampling, first.labels
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": _operation(submission),
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": first.model or submission.model,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.stream": not first.whole,
            "gen_ai.response.id": submission.id,
            "gen_ai.response.model": submission.model,
            "gen_ai.usage.input_tokens": sum(usage.prompt_tokens for usage in usages),
            "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in usages),
            "gen_ai.usage.reasoning.output_tokens": sum(usage.reasoning_tokens for usage in usages),
            "rootstock.service_tier": labels["service_tier"],
            "rootstock.tenant.id": first.tenant,
        }
        if submission.n != 1:
            attributes["gen_ai.request.choice.count"] = submission.n
        if self._reasons:
            reasons = [self._reasons[choice] for choice in sorted(self._reasons)]
            attributes["gen_ai.response.finish_reasons"] = reasons
        return attributes


def trace_answer(request: Request, submission: Submission) -> AnswerTrace | None:
    """Begins the span of the answer to a request; None when the request is not traced."""
    trace = trace_of(request)
    if trace is None:
        return None
    span, began = trace.begin_answer(_name(submission))
    return AnswerTrace(trace.tracing, span, submission, trace.clock, began, trace.answer_ended)


def trace_background(tracing: Tracing | None, submission: Submission) -> AnswerTrace | None:
    """Begins the span of an answer that no HTTP request waits for, in a trace of its own; None when it is
    not sampled.
    """
    if tracing is None:
        return None
    clock, began = TraceClock(), time.perf_counter()
    span = tracing.begin(_name(submission), "client", clock.unix_ns(began))
    return None if span is None else AnswerTrace(tracing, span, submission, clock, began)


def _operation(submission: Submission) -> str:
    return OPERATIONS.get(submission.submits[0].labels.get("endpoint", ""), "chat")


def _name(submission: Submission) -> str:
    return f"{_operation(submission)} {submission.model}"
