"""Decodes the requests of the OpenAI-compatible endpoints, and checks what types of single fields cannot say.

Errors name the field. A field that is known and not supported is refused as unsupported, not as invalid.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from api.errors import ApiError, InvalidValue, UnsupportedParameter
from api.json_bodies import decode
from api.openai.reasoning_turns import check_reasoning_turns
from api.openai.schemas import (
    MAX_GRAMMAR_BYTES,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
    JsonSchemaFormat,
    TextFormat,
)
from api.openai.tool_schemas import check_messages, check_tools

MAX_STOP_BYTES = 1024
"""Total bytes of a request's stop strings: building their automaton blocks the event loop."""
FEATURES = {
    "store": "Stored answers are",
    "functions": "Functions in the form that preceded 'tools' are",
    "function_call": "Functions in the form that preceded 'tools' are",
    "modalities": "Modalities other than text are",
    "audio": "Audio is",
    "prediction": "Predicted outputs are",
    "web_search_options": "Web search is",
    "moderation": "Moderation is",
    "prompt_cache_options": "Options of the prompt cache are",
    "suffix": "Insertion before a suffix is",
    "best_of": "Choosing the best of several answers is",
    "refusal": "Refusals in a message are",
    "annotations": "Annotations in a message are",
}
"""Fields of which only a neutral value is accepted, and the features they stand for: other values are not
wrong but unsupported.
"""
NOT_OFFERED = frozenset(FEATURES)
_PARTS = {
    "image_url": "Images are",
    "input_image": "Images are",
    "input_audio": "Audio is",
    "file": "Files are",
    "refusal": "Refusals in a message are",
}
"""Parts of a message's content that are not supported."""
_MESSAGE = re.compile(r"messages\[(\d+)\]")


_chat_decoder = msgspec.json.Decoder(ChatCompletionRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)


def decode_chat(body: bytes) -> ChatCompletionRequest:
    """Decodes a chat request. Raises InvalidValue or UnsupportedParameter, naming the field."""
    try:
        request = decode(_chat_decoder, body, FEATURES, _raw_schema)
    except ApiError as error:
        param = error.param or ""
        raise _feature_in_history(body, param) or error from None
    if request.store:
        raise UnsupportedParameter("Stored answers are not supported yet: leave 'store' out.", "store")
    check_chat(request)
    return request


def check_chat(request: ChatCompletionRequest) -> None:
    """Checks what the types of single fields cannot say. Raises InvalidValue or UnsupportedParameter, naming
    the field.
    """
    if request.top_logprobs and not request.logprobs:
        raise InvalidValue("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise InvalidValue("Give 'max_completion_tokens' or 'max_tokens', not both.", "max_tokens")
    check_tools(request.tools or (), request.tool_choice)
    check_messages(request.messages)
    check_reasoning_turns(request.messages)
    _check_common(request)


class _Names(msgspec.Struct):
    model: Any = None
    service_tier: Any = None


_names_decoder = msgspec.json.Decoder(_Names)


def named_in(body: bytes) -> tuple[Any, Any]:
    """Returns the `model` and `service_tier` of a body that was refused, as they are; None where missing."""
    try:
        names = _names_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    return names.model, names.service_tier


def decode_completion(body: bytes) -> CompletionRequest:
    """Decodes a completion request. Raises InvalidValue or UnsupportedParameter, naming the field."""
    request = decode(_completion_decoder, body, FEATURES, _raw_schema)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise UnsupportedParameter("'best_of' is supported only when it equals 'n'.", "best_of")
    if request.max_tokens == 0 and not (request.echo and request.logprobs is not None):
        raise InvalidValue("'max_tokens' of 0 needs 'echo' and 'logprobs'.", "max_tokens")
    if request.max_tokens == 0 and (constraints := output_constraints(request)):
        raise InvalidValue(f"'{constraints[0]}' needs 'max_tokens' to be at least 1.", constraints[0])
    _check_common(request)
    return request


def _raw_schema(request: GenerationFields) -> bytes:
    """Returns the schema's text. Reading it is left to a process with limits."""
    wanted = request.response_format
    return bytes(wanted.json_schema.schema) if isinstance(wanted, JsonSchemaFormat) else b""


def _feature_in_history(body: bytes, param: str) -> ApiError | None:
    """Returns an error naming the unsupported feature that the message at `param` uses, if any."""
    found = _MESSAGE.match(param)
    if found is None:
        return None
    try:
        message = msgspec.json.decode(body)["messages"][int(found[1])]
    except (msgspec.DecodeError, RecursionError):  # the rest of the body is not valid JSON
        return None
    if not isinstance(message, dict):
        return None
    where = found[0]
    if message.get("role") == "function":
        return _unsupported(FEATURES["functions"], f"{where}.role")
    content = message.get("content")
    for number, part in enumerate(content if isinstance(content, list) else ()):
        feature = _PARTS.get(str(part.get("type"))) if isinstance(part, dict) else None
        if feature is not None:
            return _unsupported(feature, f"{where}.content[{number}].type")
    return None


def _unsupported(feature: str, param: str) -> UnsupportedParameter:
    return UnsupportedParameter(f"{feature} not supported yet: see '{param}'.", param)


def _check_common(request: GenerationFields) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidValue("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or ()
    if sum(len(stop.encode()) for stop in stops) > MAX_STOP_BYTES:
        raise InvalidValue(f"'stop' adds up to more than {MAX_STOP_BYTES} bytes.", "stop")
    _check_constraints(request)


def output_constraints(request: GenerationFields) -> list[str]:
    """Returns the fields that say what the output must be like."""
    fields = [name for name in ("regex", "choice", "grammar") if getattr(request, name) is not None]
    is_free = request.response_format is None or isinstance(request.response_format, TextFormat)
    return fields if is_free else ["response_format", *fields]


def _check_constraints(request: GenerationFields) -> None:
    constraints = output_constraints(request)
    if not constraints:
        return
    if len(constraints) > 1:
        first, second = constraints[:2]
        raise InvalidValue(f"Give '{first}' or '{second}', not both.", second)
    (field,) = constraints
    for name in ("min_tokens", "ignore_eos"):
        if getattr(request, name):
            raise InvalidValue(
                f"'{name}' cannot be combined with '{field}', which says where output ends.", name
            )
    for name, text in (("regex", request.regex), ("grammar", request.grammar), ("choice", request.choice)):
        size = sum(len(one.encode()) for one in ([text] if isinstance(text, str) else text or ()))
        if size > MAX_GRAMMAR_BYTES:
            raise InvalidValue(f"'{name}' has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed.", name)
