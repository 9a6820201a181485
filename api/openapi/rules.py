"""States rules between the fields of a request body as JSON Schema, which types of single fields cannot say.

A field that is null counts as left out.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from tenants.limits.kinds import MAX_RATE, Metric


def _given(field: str) -> dict[str, Any]:
    return {"required": [field], "properties": {field: {"not": {"type": "null"}}}}


def _one_of(*fields: str) -> dict[str, Any]:
    return {"oneOf": [_given(field) for field in fields]}


def _not_both(first: str, second: str) -> dict[str, Any]:
    return {"not": {"allOf": [_given(first), _given(second)]}}


def _if_given(field: str, value: dict[str, Any], **limited: dict[str, Any]) -> dict[str, Any]:
    """Where `field` fits the schema `value`, the fields of `limited` fit theirs or are left out."""
    return {
        "if": {"required": [field], "properties": {field: value}},
        "then": {"properties": limited},
    }


def _when(field: str, value: dict[str, Any], **needed: dict[str, Any]) -> dict[str, Any]:
    """Where `field` fits the schema `value`, the fields of `needed` are there and fit theirs."""
    return {
        "if": {"required": [field], "properties": {field: value}},
        "then": {"required": [*needed], "properties": needed},
    }


_CONSTRAINTS = [_not_both(*pair) for pair in combinations(("regex", "choice", "grammar"), 2)]
_RATES = [metric for metric in Metric if metric.kind == "rate"]
_STORED = [metric for metric in Metric if metric.kind == "stored"]
_SOME = {"type": "array", "minItems": 1}


def _only_for(role: str, field: str) -> dict[str, Any]:
    """The field is left out, null or empty in messages of other roles."""
    given = {"required": [field], "properties": {field: {"anyOf": [_SOME, {"type": "string"}]}}}
    return {"if": given, "then": {"required": ["role"], "properties": {"role": {"const": role}}}}


_STREAM_OPTIONS = _when("stream_options", {"type": "object"}, stream={"const": True})
_CONTINUING = [_given("previous_response_id"), _given("conversation")]
_CONTEXT = [
    {
        "anyOf": [
            *_CONTINUING,
            {"required": ["input"], "properties": {"input": {"anyOf": [{"type": "string"}, _SOME]}}},
        ]
    },
    _not_both("previous_response_id", "conversation"),
]
RULES: dict[str, list[dict[str, Any]]] = {
    "ChatCompletionRequest": [
        _STREAM_OPTIONS,
        _not_both("max_tokens", "max_completion_tokens"),
        _when("top_logprobs", {"type": "integer", "minimum": 1}, logprobs={"const": True}),
        # Not _CONSTRAINTS: with all of them and as many fields, schemathesis gives the schema up.
    ],
    "ResponseRequest": [
        _STREAM_OPTIONS,
        *_CONTEXT,
        _if_given("background", {"const": True}, store={"not": {"const": False}}),
        _if_given("conversation", {"not": {"type": "null"}}, store={"not": {"const": False}}),
    ],
    "InputTokensRequest": _CONTEXT,
    "Message": [
        _when("role", {"const": "tool"}, tool_call_id={"type": "string"}),
        _only_for("assistant", "tool_calls"),
        _only_for("tool", "tool_call_id"),
        {"anyOf": [_given("content"), {"required": ["tool_calls"], "properties": {"tool_calls": _SOME}}]},
    ],
    "TokenizeRequest": [
        _one_of("prompt", "messages"),
        _not_both("prompt", "tools"),
        _not_both("messages", "add_special_tokens"),
    ],
    "CompletionRequest": [
        _STREAM_OPTIONS,
        _when("max_tokens", {"const": 0}, echo={"const": True}, logprobs={"type": "integer"}),
        *_CONSTRAINTS,
    ],
    "CreateUploadRequest": [
        _when("purpose", {"const": "adapter"}, filename={"pattern": r"\.(safetensors|json)$"}),
        _when("purpose", {"enum": ["calibration", "batch"]}, filename={"pattern": r"\.jsonl$"}),
    ],
    "CreateAdapterRequest": [_one_of("file_ids", "upload_ids")],
    "CreateVersionRequest": [_one_of("file_ids", "upload_ids")],
    "SpendAlertRequest": [_one_of("threshold_amount", "threshold_micro_usd", "threshold_percent")],
    "AddProjectUserRequest": [_one_of("user_id", "email")],
    "PlaceLegalHoldRequest": [_one_of("data_class", "object_id")],
    "SetLimitRequest": [
        _not_both("project_id", "api_key_id"),
        _when("metric", {"enum": _RATES}, amount={"maximum": MAX_RATE}),
        _if_given("metric", {"enum": _STORED}, project_id={"type": "null"}, api_key_id={"type": "null"}),
        _if_given("metric", {"enum": _STORED}, model={"const": ""}),
    ],
    "UpdateUserRequest": [_not_both("role", "role_id")]
    + [_not_both("enabled", field) for field in ("name", "role", "role_id")],
}
"""By the component's name."""
