"""`/v1/tokenize` and `/v1/detokenize`: text to token ids and back, without generating. Fields are vLLM's."""

from __future__ import annotations

from typing import Annotated, TypedDict

from fastapi import Request
from msgspec import Meta, Struct

from adapters.errors import ModelNotFound, ModelNotReady
from api.authentication import GENERATE, authenticate
from api.errors import ContextLengthExceeded, InvalidValue
from api.json_bodies import BodyDecoders, read_json
from api.openai.decoding import check_chat
from api.openai.model_access import permitted_model
from api.openai.pipeline import encoded_chat
from api.openai.prompts import check_token_ids, encode_prompt
from api.openai.schemas import MAX_MESSAGES, ChatCompletionRequest, Message, Text, TokenId
from api.openai.tool_schemas import Tools
from api.openapi.routing import Router, fails_with, json_body
from api.services import services_of
from engine.client import EngineGone
from tenants.errors import AccountSuspended

ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
MAX_TOKENS = 1_000_000
"""Of one request to detokenize."""


class TokenizeRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/tokenize`: a `prompt`, or `messages`."""

    model: ModelName
    prompt: Text | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    """A conversation, rendered by the model's chat template."""
    tools: Tools | None = None
    """With `messages`: functions that the model is shown."""
    add_special_tokens: bool | None = None
    """With `prompt`: begin it as `/v1/completions` does. True is the default."""
    return_token_strs: bool | None = None
    """Return the text of each token, too."""


class DetokenizeRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`POST /v1/detokenize`."""

    model: ModelName
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]


class TokenizedObject(TypedDict):
    """The tokens of a text."""

    count: int
    max_model_len: int
    """The context length in tokens, prompt and completion together."""
    tokens: list[int]
    token_strs: list[str] | None
    """With `return_token_strs`. Parts of characters are shown as U+FFFD."""


class DetokenizedObject(TypedDict):
    """The text of tokens."""

    prompt: str


BODIES = (TokenizeRequest, DetokenizeRequest)
_bodies = BodyDecoders(BODIES)
router = Router(prefix="/v1", tags=["Tokens"], errors=(AccountSuspended(),))
_FAILURES = (
    ModelNotFound("base:support"),
    ModelNotReady("base:support", "calibrating"),
    EngineGone("the engine does not serve"),
)


@router.post("/tokenize", operation_id="tokenize", openapi_extra=json_body("TokenizeRequest"))
@fails_with(
    ContextLengthExceeded(
        "This model's maximum context length is 4096 tokens; the prompt has 5000.", "prompt"
    ),
    *_FAILURES,
)
async def tokenize(request: Request) -> TokenizedObject:
    """Returns the tokens of a prompt or of a conversation, as the model would see them. Costs nothing."""
    caller = await authenticate(request, GENERATE)
    body = _bodies.decode(TokenizeRequest, await read_json(request))
    if (body.prompt is None) == (body.messages is None):
        raise InvalidValue("Give either 'prompt' or 'messages'.", "prompt")
    services = services_of(request)
    pool = services.pools[(await permitted_model(services, caller, body.model)).base]
    info = pool.info()
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise InvalidValue(
                "'add_special_tokens' is for a 'prompt': the chat template decides for 'messages'.",
                "add_special_tokens",
            )
        chat = ChatCompletionRequest(model=body.model, messages=body.messages, tools=body.tools)
        check_chat(chat)
        tokens = (await encoded_chat(pool, info, chat)).prompt_ids
    else:
        if body.tools is not None:
            raise InvalidValue("'tools' are for 'messages'; leave them out with a 'prompt'.", "tools")
        assert body.prompt is not None
        tokens = await encode_prompt(body.prompt, info, pool.text, body.add_special_tokens is not False)
    return {
        "count": len(tokens),
        "max_model_len": info.context_length,
        "tokens": tokens,
        "token_strs": [pool.text.decode([token]) for token in tokens] if body.return_token_strs else None,
    }


@router.post("/detokenize", operation_id="detokenize", openapi_extra=json_body("DetokenizeRequest"))
@fails_with(*_FAILURES)
async def detokenize(request: Request) -> DetokenizedObject:
    """Returns the text of tokens, special ones by their names."""
    caller = await authenticate(request, GENERATE)
    body = _bodies.decode(DetokenizeRequest, await read_json(request))
    services = services_of(request)
    pool = services.pools[(await permitted_model(services, caller, body.model)).base]
    check_token_ids(body.tokens, pool.info(), "tokens")
    return {"prompt": pool.text.decode(body.tokens)}
