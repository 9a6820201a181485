"""Rules between the fields of a request body, as JSON Schema: what the types of single fields cannot say.

A field that is null counts as left out.
"""

from __future__ import annotations

from typing import Any


def _given(field: str) -> dict[str, Any]:
    return {"required": [field], "properties": {field: {"not": {"type": "null"}}}}


def _one_of(*fields: str) -> dict[str, Any]:
    return {"oneOf": [_given(field) for field in fields]}


def _not_both(first: str, second: str) -> dict[str, Any]:
    return {"not": {"allOf": [_given(first), _given(second)]}}


def _when(field: str, value: dict[str, Any], **needed: dict[str, Any]) -> dict[str, Any]:
    """Where `field` fits the schema `value`, the fields of `needed` are there and fit theirs."""
    return {
        "if": {"required": [field], "properties": {field: value}},
        "then": {"required": [*needed], "properties": needed},
    }


_STREAM_OPTIONS = _when("stream_options", {"type": "object"}, stream={"const": True})
RULES: dict[str, list[dict[str, Any]]] = {
    "ChatCompletionRequest": [
        _STREAM_OPTIONS,
        _not_both("max_tokens", "max_completion_tokens"),
        _when("top_logprobs", {"type": "integer", "minimum": 1}, logprobs={"const": True}),
    ],
    "CompletionRequest": [
        _STREAM_OPTIONS,
        _when("max_tokens", {"const": 0}, echo={"const": True}, logprobs={"type": "integer"}),
    ],
    "CreateUploadRequest": [
        _when("purpose", {"const": "adapter"}, filename={"pattern": r"\.(safetensors|json)$"}),
        _when("purpose", {"const": "calibration"}, filename={"pattern": r"\.jsonl$"}),
    ],
    "CreateAdapterRequest": [_one_of("file_ids", "upload_ids")],
    "CreateVersionRequest": [_one_of("file_ids", "upload_ids")],
    "SpendAlertRequest": [_one_of("threshold_amount", "threshold_micro_usd", "threshold_percent")],
    "AddProjectUserRequest": [_one_of("user_id", "email")],
    "SetLimitRequest": [_not_both("project_id", "api_key_id")],
    "UpdateUserRequest": [_not_both("role", "role_id")]
    + [_not_both("enabled", field) for field in ("name", "role", "role_id")],
}
"""By the component's name."""
