"""Submits a reserved request to the engine, and responds with its answer: as one JSON body, or as a stream
of events.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request, Response

from api.errors import NoRoomForFlex
from api.openai.answer import Answer
from api.openai.answer_trace import trace_answer
from api.openai.outcome import OutcomeRecorder
from api.openai.reservation import RequestReservation
from api.openai.response_bodies import ChunkFormat, JsonAnswer, whole
from api.openai.schemas import GenerationFields
from api.openai.stream import AbortOnDisconnect, EventStream
from api.ratelimit import rate_headers
from api.response_writer import response_writer_for
from api.services import Services
from engine.client import RequestRejected
from engine.protocol import PriorityClass


async def respond(
    request: Request,
    services: Services,
    body: GenerationFields,
    reserved: RequestReservation,
    outcome: OutcomeRecorder,
    *,
    is_chat: bool,
    echo: list[str] | None = None,
) -> Response:
    """Returns the response once the engine has begun to answer, or, without a stream, once it has ended.

    `echo`: per prompt, the text that its choices begin with. Raises EngineError, NoRoomForFlex,
    GenerationFailed, GenerationAborted, ClientGone; the reservation is released then.
    """
    submission, reservation = reserved.submission, reserved.reservation
    outcome.tier = submission.tier
    with released(reserved):
        reserved.trace = trace_answer(request, submission)
        answer = new_answer(services, reserved, outcome, request.state.arrived, is_chat, echo)
        writer = response_writer_for(request.scope, request.receive, request._send)
        await answer.submit(services.pools[submission.base].engine, services.request_metadata)
        headers = rate_headers(reservation.requests, reservation.tokens, reservation.local)
        if not body.stream:
            with AbortOnDisconnect(writer, answer):
                answered = await whole(answer, is_chat)
            return JsonAnswer(answered, headers)
        with AbortOnDisconnect(writer, answer):
            await answer.admitted()
        options = body.stream_options
        include_usage = options is not None and bool(options.include_usage)
        continuous = include_usage and options is not None and bool(options.continuous_usage_stats)
        events = ChunkFormat(
            submission, is_chat, include_usage, echo, (lambda: answer.usage_so_far) if continuous else None
        )
        return EventStream(answer, events, services.limits.ping_interval, services.metrics, headers)


def new_answer(
    services: Services,
    reserved: RequestReservation,
    outcome: OutcomeRecorder,
    arrived: float,
    is_chat: bool,
    echo: list[str] | None = None,
) -> Answer:
    """Returns the answer to a reserved request, not submitted yet. `arrived`: `time.perf_counter()` of the
    request's arrival.
    """
    text = services.pools[reserved.submission.base].text
    return Answer(reserved, outcome, text, services.metrics, services.deferred_work, arrived, is_chat, echo)


@contextmanager
def released(reserved: RequestReservation) -> Iterator[None]:
    """Releases the reservation when the block ends, unless generations are followed then. Raises
    NoRoomForFlex for a `flex` request that the engine has no room for.
    """
    try:
        yield
    except RequestRejected as error:
        if error.code == "overloaded" and reserved.submission.tier == PriorityClass.FLEX:
            raise NoRoomForFlex(error.retry_after) from error
        raise
    finally:
        reserved.release()
