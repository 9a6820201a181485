"""Lists the endpoints whose requests a batch can have, with how their bodies are decoded and prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from api.batches.preparation import LineBody, Prepare, answered_whole
from api.batches.response_lines import decode_response_line, prepare_response_line
from api.openai.decoding import decode_chat, decode_completion
from api.openai.pipeline import prepare_chat, prepare_completion


@dataclass(frozen=True, slots=True)
class BatchEndpoint:
    """An endpoint as the lines of a batch use it."""

    decode: Callable[[bytes], LineBody]
    """Raises ApiError."""
    prepare: Prepare
    """Takes what `decode` returned."""
    id_prefix: str
    """Of its responses and of its requests in the ledger."""


ENDPOINTS: Mapping[str, BatchEndpoint] = {
    "/v1/chat/completions": BatchEndpoint(decode_chat, answered_whole(prepare_chat), "chatcmpl"),
    "/v1/completions": BatchEndpoint(decode_completion, answered_whole(prepare_completion), "cmpl"),
    "/v1/responses": BatchEndpoint(decode_response_line, prepare_response_line, "resp"),
}
