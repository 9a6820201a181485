"""What is taken, what is refused and as what; and that OpenAI's own list of fields is accounted for."""

from __future__ import annotations

import json
from typing import Any

import openai.types.chat.completion_create_params as chat_params
import openai.types.completion_create_params as completion_params
import pytest

from api.errors import ApiError, InvalidValue, UnsupportedParameter
from api.openai.decoding import NOT_OFFERED, decode_chat, decode_completion
from api.openai.schemas import ChatCompletionRequest, CompletionRequest
from tests.support.speed import calls_of_nothing, times_as_long

USER = {"role": "user", "content": "x"}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "x", **fields}).encode()


def refusal(decode: Any, body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body)
    return caught.value


def quick_refusal(body: bytes) -> ApiError:
    """Refused within the time of 100 000 calls of nothing, 5 ms on the machine of the benchmarks."""
    took = times_as_long(
        lambda: refusal(decode_chat, body), than=calls_of_nothing(100_000), rounds=20, enough=1
    )
    assert took <= 1
    return refusal(decode_chat, body)


def test_every_field_of_the_stock_client_is_known() -> None:
    for params, request in (
        (chat_params.CompletionCreateParamsBase, ChatCompletionRequest),
        (completion_params.CompletionCreateParamsBase, CompletionRequest),
    ):
        missing = set(params.__annotations__) - set(request.__struct_fields__)
        assert missing == set()


@pytest.mark.parametrize(
    "field", sorted(NOT_OFFERED - {"best_of", "suffix", "tool_calls", "refusal", "annotations"})
)
@pytest.mark.parametrize("value", [{"x": 1}, [{"type": "function"}], "high", True, 7])
def test_what_is_not_offered_is_refused_by_name(field: str, value: Any) -> None:
    error = refusal(decode_chat, chat(**{field: value}))
    assert isinstance(error, UnsupportedParameter)
    assert error.param == field


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
IMAGE = {"image_url": {"url": "data:"}, "type": "image_url"}


def test_parsed_messages_of_the_stock_client_are_taken_back() -> None:
    function = {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}}
    for parsed in (None, {"city": "Oslo"}):
        answer = {
            "role": "assistant",
            "content": "x",
            "tool_calls": [CALL | {"function": function}],
            "parsed": parsed,
        }
        result = {"role": "tool", "tool_call_id": "c", "content": "1"}
        request = decode_chat(chat(messages=[USER, answer, result]))
        (call,) = request.messages[1].tool_calls or ()
        assert call.function.arguments == function["arguments"]


@pytest.mark.parametrize(
    ("fields", "param", "feature"),
    [
        ({"functions": [{"name": "f"}]}, "functions", "Functions in the form that preceded 'tools' are not"),
        (
            {"messages": [USER, {"role": "function", "name": "f", "content": "x"}]},
            "messages[1].role",
            "Functions in the form that preceded 'tools' are not",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, IMAGE]}]},
            "messages[0].content[1].type",
            "Images are not supported yet",
        ),
    ],
)
def test_what_is_not_supported_is_named_by_its_feature(
    fields: dict[str, Any], param: str, feature: str
) -> None:
    error = refusal(decode_chat, chat(**fields))
    assert isinstance(error, UnsupportedParameter)
    assert error.param == param
    assert feature in error.message


def test_integers_may_be_written_as_floats() -> None:
    request = decode_chat(chat(max_tokens=5.0, n=2.0, seed=7.0, top_p=1.0, logit_bias={"3": 1.0}))
    assert (request.max_tokens, request.n, request.seed, request.logit_bias) == (5, 2, 7, {3: 1.0})
    for fields in ({"max_tokens": 5.5}, {"n": 1e300}, {"n": 0.0}):
        assert refusal(decode_chat, chat(**fields)).param in fields


@pytest.mark.parametrize(
    "neutral",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"functions": []},
        {"function_call": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"store": False},
        {"parallel_tool_calls": True},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"reasoning_effort": "none"},
        {"verbosity": "low"},
        dict.fromkeys(sorted(NOT_OFFERED & set(ChatCompletionRequest.__struct_fields__))),
    ],
)
def test_what_changes_nothing_is_taken(neutral: dict[str, Any]) -> None:
    decode_chat(chat(**neutral))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": "1"}, "n"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": 10**40}, "n"),
        ({"temperature": False}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop": ["🙂" * 32] * 9}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"messages": []}, "messages"),
        ({"messages": [USER] * 2049}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": []}]}, "messages[1].content"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, Any], param: str) -> None:
    error = refusal(decode_chat, chat(**fields))
    assert isinstance(error, InvalidValue)
    assert error.param == param
    assert param.split("[")[0].split(".")[0] in error.message


@pytest.mark.parametrize(
    ("fields", "param", "kind"),
    [
        ({"prompt": []}, "prompt", InvalidValue),
        ({"prompt": [True]}, "prompt[0]", InvalidValue),
        ({"prompt": [[]]}, "prompt[0]", InvalidValue),
        ({"prompt": [-1]}, "prompt[0]", InvalidValue),
        ({"prompt": None}, "prompt", InvalidValue),
        ({"logprobs": True}, "logprobs", InvalidValue),
        ({"suffix": "x"}, "suffix", UnsupportedParameter),
        ({"best_of": 2}, "best_of", UnsupportedParameter),
        ({"best_of": "x"}, "best_of", UnsupportedParameter),
        ({"max_tokens": 0}, "max_tokens", InvalidValue),
        ({"max_tokens": 0, "echo": True}, "max_tokens", InvalidValue),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens", InvalidValue),
        ({"max_tokens": -1, "echo": True, "logprobs": 1}, "max_tokens", InvalidValue),
        ({"max_tokens": 0, "echo": True, "logprobs": 21}, "logprobs", InvalidValue),
        ({"messages": []}, "messages", UnsupportedParameter),
    ],
)
def test_completions_refuse_by_name(fields: dict[str, Any], param: str, kind: type[ApiError]) -> None:
    error = refusal(decode_completion, completion(**fields))
    assert type(error) is kind
    assert error.param == param


def test_a_prompt_may_be_scored_and_nothing_be_generated() -> None:
    request = decode_completion(completion(max_tokens=0, echo=True, logprobs=0))
    assert request.max_tokens == 0


def test_best_of_as_a_synonym() -> None:
    assert decode_completion(completion(best_of=3, n=3)).n == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(foo=1), "foo"),
        (chat(messages=[{**USER, "mood": "glad"}]), "messages[0].mood"),
        (chat(stream=True, stream_options={"pace": 1}), "stream_options.pace"),
        (chat(**{"x" * 100_000: 1}), None),
        (chat(**{"` - at `$" * 50_000: 1}), None),
    ],
)
def test_unknown_fields_are_refused_by_name(body: bytes, param: str | None) -> None:
    error = quick_refusal(body)
    assert len(error.message) < 1000
    if param is not None:
        assert isinstance(error, UnsupportedParameter)
        assert error.param == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"model": NaN}',
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"model":"m","messages":[],"temperature":1e999}',
        b'{"model":"m","tools":' + b"[" * 1_000_000,
        b'{"model":"m","messages":[{"content":' + b"[" * 100_000,
        b'{"model":"m","n":1.0,"messages":[{"content":' + b"[" * 100_000,
        b"\x00" * 1000,
    ],
)
def test_what_is_no_request_is_refused_quickly(body: bytes) -> None:
    assert isinstance(quick_refusal(body), InvalidValue)
