"""Builds the response object: what was asked for, how it ended, and what it used."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from api.errors import envelope, response_for
from api.openai.response_bodies import usage_object
from api.openai.schemas import TextFormat
from api.responses.schemas import ConversationReference, ResponseRequest
from engine.protocol import Usage

Json = dict[str, Any]


def conversation_of(request: Any) -> str | None:
    """Returns the id of the conversation that a request names."""
    given = request.conversation
    return given.id if isinstance(given, ConversationReference) else given


def new_body(
    request: ResponseRequest, response_id: str, submitted_at: float, model: str, tier: str, is_stored: bool
) -> Json:
    """Returns a new response object without its output, in progress."""
    text = request.text
    format = None if text is None else text.format
    reasoning = request.reasoning
    conversation_id = conversation_of(request)
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(submitted_at),
        "status": "in_progress",
        "background": bool(request.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "conversation": None if conversation_id is None else {"id": conversation_id},
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": tier,
        "store": is_stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {
            "format": msgspec.to_builtins(TextFormat() if format is None else _readable(format)),
            "verbosity": "medium" if text is None or text.verbosity is None else text.verbosity,
        },
        "tool_choice": "auto" if request.tool_choice is None else msgspec.to_builtins(request.tool_choice),
        "tools": [_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "presence_penalty": request.presence_penalty or 0.0,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata or {},
    }


def _readable(format: Any) -> Any:
    """Returns a format as the response shows it."""
    shown = msgspec.structs.asdict(format) if hasattr(format, "schema") else None
    if shown is None:
        return format
    return {"type": "json_schema", **shown, "schema": msgspec.json.decode(format.schema)}


def _tool(tool: Any) -> Json:
    shown: Json = msgspec.to_builtins(tool)
    del shown["defer_loading"]
    if shown["type"] == "custom":
        shown["format"] = shown["format"] or {"type": "text"}
    return shown


def ended(body: Json, finish_reason: str | None, usage: Usage) -> Json:
    """Returns the object of a response that has ended with an answer."""
    if finish_reason == "length":
        end: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    else:
        end = {"status": "completed", "completed_at": int(time.time())}
    return {**body, **end, "usage": response_usage(usage)}


def failed(body: Json, error: BaseException) -> Json:
    """Returns the object of a response that has failed."""
    return {**body, "status": "failed", "error": error_object(error)}


def error_object(error: BaseException) -> Json:
    """Returns the `error` of a failed response."""
    status = response_for(error).status
    code = "rate_limit_exceeded" if status == 429 else "server_error" if status >= 500 else "invalid_prompt"
    shown = envelope(error)["error"]
    return {"code": code, "message": shown["message"], "param": shown["param"], "type": shown["type"]}


def response_usage(usage: Usage) -> Json:
    """Returns the `usage` of a response."""
    counted = usage_object(usage)
    return {
        "input_tokens": counted["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": counted["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": counted["completion_tokens"],
        "output_tokens_details": {
            "reasoning_tokens": counted["completion_tokens_details"]["reasoning_tokens"]
        },
        "total_tokens": counted["total_tokens"],
    }


def shown(body: Json, output: list[Json]) -> Json:
    """Returns the whole response object."""
    return {**body, "output": output}
