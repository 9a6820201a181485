"""The OpenAI-compatible endpoints of inference: chat and completions.

Owns the order of things in a request: who calls, what is asked, which model, does it fit, is there quota for
it, will the engine take it; only then a status is sent. Holds no database connection past the look-ups. The
rules themselves live in the modules it calls.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from adapters.errors import ModelNotFound, ModelNotReady
from adapters.model_names import ADAPTER_ID
from adapters.resolver import ResolvedModel
from api.deps import GENERATE, authenticate, check_model, engine_of, read_json, services_of
from api.errors import ContextLengthExceeded, GenerationFailed, NoRoomForFlex
from api.openai import schemas
from api.openai.answer import Answer
from api.openai.bodies import ChunkFormat, JsonAnswer, whole
from api.openai.objects import ChatCompletionChunk, ChatCompletionObject, CompletionChunk, CompletionObject
from api.openai.observing import Observation
from api.openai.reservation import RequestReservation, asked_for, book
from api.openai.schemas import CompletionRequest, GenerationFields
from api.openai.stream import EventStream, WhileConnected
from api.openai.submission import ValidatedRequest, chat_draft, completion_draft
from api.openapi.routing import Router, answers, fails_with, json_body
from api.ratelimit import rate_headers
from api.response_writer import response_writer_for
from api.services import Services
from engine.client import EngineGone, ReaderStalled, RequestRejected
from engine.protocol import PriorityClass
from tenants.context import TenantContext
from tenants.errors import AccountSuspended, QuotaExhausted, QuotaUnavailable, RateLimited
from tenants.limits.kinds import Limit, Metric

router = Router(prefix="/v1", errors=(AccountSuspended(),))
_LIMIT = Limit("tenant", "org_1", "", Metric.REQUESTS_PER_MINUTE, 60)
_FAILURES = (
    ContextLengthExceeded(
        "This model's maximum context length is 4096 tokens; the prompt has 5000.", "messages"
    ),
    ModelNotFound("base:support"),
    ReaderStalled("the answer was not read"),
    ModelNotReady("base:support", "calibrating"),
    RateLimited(_LIMIT, 1.5),
    QuotaExhausted(_LIMIT, None),
    NoRoomForFlex(1.0),
    GenerationFailed("The model's numbers stopped being finite: this request cannot be answered."),
    EngineGone("the engine does not serve"),
    RequestRejected("overloaded", "The server is overloaded.", 1.0),
    QuotaUnavailable(1.0),
)
"""Examples for the document of what requests fail with here."""


@router.post(
    "/chat/completions",
    operation_id="createChatCompletion",
    openapi_extra=json_body("ChatCompletionRequest"),
    response_model=None,
    tags=["Chat"],
)
@answers(ChatCompletionObject, ChatCompletionChunk)
@fails_with(*_FAILURES)
async def create_chat_completion(request: Request) -> Response:
    """Generates the next message of a conversation."""
    caller = await authenticate(request, GENERATE)
    return await chat_completion(request, services_of(request), caller)


async def chat_completion(request: Request, services: Services, caller: TenantContext) -> Response:
    """The same for whoever is known already, such as somebody who signed in to the console. Raises what the
    route does.
    """
    with Observation(caller, services.sla, services.metrics) as observation:
        body = schemas.decode_chat(await read_json(request))
        model = await permitted_model(services, caller, body.model)
        draft = await chat_draft(body, caller, model, engine_of(services), services.text)
        return await _answer(request, services, body, draft, observation, chat=True)


@router.post(
    "/completions",
    operation_id="createCompletion",
    openapi_extra=json_body("CompletionRequest"),
    response_model=None,
    tags=["Completions"],
)
@answers(CompletionObject, CompletionChunk)
@fails_with(*_FAILURES)
async def create_completion(request: Request) -> Response:
    """Continues a prompt, or each of several."""
    services = services_of(request)
    caller = await authenticate(request, GENERATE)
    with Observation(caller, services.sla, services.metrics) as observation:
        body = schemas.decode_completion(await read_json(request))
        model = await permitted_model(services, caller, body.model)
        draft = await completion_draft(body, caller, model, engine_of(services), services.text)
        echo = _echo(services, body, draft)
        return await _answer(request, services, body, draft, observation, chat=False, echo=echo)


async def permitted_model(services: Services, caller: TenantContext, name: str) -> ResolvedModel:
    """What the name stands for, if the key may use it. What it may not is not even looked up; an id has a
    name, and a name a version that may be denied, only afterwards.
    """
    if ADAPTER_ID.fullmatch(name) is None:
        check_model(caller, name)
    model = await services.models.resolve(caller.tenant_id, name)
    check_model(caller, model.name)
    return model


def _echo(services: Services, body: CompletionRequest, draft: ValidatedRequest) -> list[str] | None:
    """What each prompt's choices begin with when the prompt is to be repeated."""
    if not body.echo:
        return None
    if isinstance(body.prompt, str):
        return [body.prompt]
    vocabulary = services.text.vocabulary
    return [
        given if isinstance(given, str) else vocabulary.decode(prompt_ids).decode("utf-8", "replace")
        for given, prompt_ids in zip(_given(body.prompt), draft.prompts, strict=True)
    ]


def _given(prompt: list[Any]) -> list[Any]:
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _answer(
    request: Request,
    services: Services,
    body: GenerationFields,
    draft: ValidatedRequest,
    observation: Observation,
    *,
    chat: bool,
    echo: list[str] | None = None,
) -> Response:
    request.state.log |= {"model": draft.model.name, "id": draft.id}
    observation.tier = asked_for(body.service_tier, draft.caller)
    booking = await book(draft, observation.tier, services.quotas, services.prices)
    observation.tier = booking.submission.tier
    try:
        return await _run(request, services, body, booking, observation, chat, echo)
    except RequestRejected as error:
        if error.code == "overloaded" and booking.submission.tier == PriorityClass.FLEX:
            raise NoRoomForFlex(error.retry_after) from error
        raise
    finally:
        booking.release()


async def _run(
    request: Request,
    services: Services,
    body: GenerationFields,
    booking: RequestReservation,
    observation: Observation,
    chat: bool,
    echo: list[str] | None,
) -> Response:
    submission, reservation = booking.submission, booking.reservation
    answer = Answer(
        booking,
        observation,
        services.text,
        services.metrics,
        services.deferred_work,
        request.state.arrived,
        chat,
        echo,
    )
    outlet = response_writer_for(request.scope, request.receive, request._send)
    answer.submit(services.engine)
    headers = rate_headers(reservation.requests, reservation.tokens, reservation.local)
    if body.stream:
        with WhileConnected(outlet, answer):
            await answer.admitted()
        options = body.stream_options
        include_usage = options is not None and bool(options.include_usage)
        continuous = include_usage and options is not None and bool(options.continuous_usage_stats)
        events = ChunkFormat(
            submission, chat, include_usage, echo, (lambda: answer.usage_so_far) if continuous else None
        )
        return EventStream(
            answer, events, include_usage, services.limits.ping_interval, services.metrics, headers
        )
    with WhileConnected(outlet, answer):
        answered = await whole(answer, chat)
    return JsonAnswer(answered, headers)
