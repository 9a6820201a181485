"""The OpenAI-compatible endpoints of inference: chat, completions, models.

Owns the order of things in a request: who calls, what is asked, which model, does it fit, will the engine
take it; only then a status is sent. Holds no database connection past the look-ups. The rules themselves live
in the modules it calls.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from adapters.resolver import ModelCard
from api.deps import GENERATE, READ_MODELS, authenticate, read_json, services_of, serving_engine
from api.openai import schemas
from api.openai.answer import Answer
from api.openai.bodies import ChunkFormat, whole
from api.openai.schemas import CompletionRequest, GenerationFields
from api.openai.stream import EventStream, while_connected
from api.openai.submission import Submission, chat_submission, completion_submission
from api.openapi import ERROR_RESPONSES, json_body

router = APIRouter(prefix="/v1", responses=ERROR_RESPONSES)


@router.post(
    "/chat/completions",
    operation_id="createChatCompletion",
    openapi_extra=json_body("ChatCompletionRequest"),
    response_model=None,
    tags=["Chat"],
)
async def create_chat_completion(request: Request) -> Response:
    """The assistant's next turn in a conversation."""
    services = services_of(request)
    caller = await authenticate(request, GENERATE)
    body = schemas.decode_chat(await read_json(request))
    model = await services.models.resolve(caller.tenant_id, body.model)
    submission = await chat_submission(body, caller, model, serving_engine(request), services.text)
    return await _answer(request, body, submission, chat=True)


@router.post(
    "/completions",
    operation_id="createCompletion",
    openapi_extra=json_body("CompletionRequest"),
    response_model=None,
    tags=["Completions"],
)
async def create_completion(request: Request) -> Response:
    """The continuation of a prompt, or of each of several."""
    services = services_of(request)
    caller = await authenticate(request, GENERATE)
    body = schemas.decode_completion(await read_json(request))
    model = await services.models.resolve(caller.tenant_id, body.model)
    submission = await completion_submission(body, caller, model, serving_engine(request), services.text)
    return await _answer(request, body, submission, chat=False, echo=_echo(request, body, submission))


def _echo(request: Request, body: CompletionRequest, submission: Submission) -> list[str] | None:
    """What each prompt's choices begin with when the prompt is to be repeated."""
    if not body.echo:
        return None
    if isinstance(body.prompt, str):
        return [body.prompt]
    vocabulary = services_of(request).text.vocabulary
    return [
        given if isinstance(given, str) else vocabulary.decode(submit.prompt_ids).decode("utf-8", "replace")
        for given, submit in zip(_given(body.prompt), submission.submits, strict=True)
    ]


def _given(prompt: list[Any]) -> list[Any]:
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _answer(
    request: Request,
    body: GenerationFields,
    submission: Submission,
    chat: bool,
    echo: list[str] | None = None,
) -> Response:
    services = services_of(request)
    request.state.log |= {"model": submission.model, "id": submission.id}
    answer = Answer(submission, services.text, services.metrics, request.state.arrived, chat, echo)
    if body.stream:
        await while_connected(request.receive, answer.abort, answer.admit(services.engine))
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        events = ChunkFormat(submission, chat, include_usage, echo)
        return EventStream(answer, events, include_usage, services.limits.ping_interval, services.metrics)
    return Response(
        await while_connected(request.receive, answer.abort, _complete(answer, services.engine, chat)),
        media_type="application/json",
    )


async def _complete(answer: Answer, engine: Any, chat: bool) -> bytes:
    await answer.admit(engine)
    return await whole(answer, chat)


@router.get("/models", operation_id="listModels", tags=["Models"])
async def list_models(request: Request) -> dict[str, Any]:
    """The base model and the tenant's adapters that can be called now."""
    caller = await authenticate(request, READ_MODELS)
    cards = await services_of(request).models.list(caller.tenant_id)
    return {"object": "list", "data": [_model_object(card) for card in cards]}


@router.get("/models/{model:path}", operation_id="retrieveModel", tags=["Models"])
async def retrieve_model(request: Request, model: str) -> dict[str, Any]:
    """One model: `base`, `base:adapter`, `base:adapter@version` or an adapter's id."""
    caller = await authenticate(request, READ_MODELS)
    return _model_object(await services_of(request).models.card(caller.tenant_id, model))


def _model_object(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "base": card.base,
        "adapter_id": card.adapter_id,
        "version": card.version,
        "rank": card.rank,
        "digest": card.digest,
    }
