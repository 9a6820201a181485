"""Decodes the lines of a batch's input file, and encodes those of its output and error files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from api.batches.endpoints import BatchEndpoint
from api.batches.preparation import LineBody
from api.errors import ApiError, InvalidValue, UnsupportedParameter, envelope, response_for
from api.json_bodies import decode
from billing import request_ids

MAX_CUSTOM_ID = 512
_TIERS = (None, "auto", "flex")


class BatchRequestLine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One request of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_CUSTOM_ID)]
    method: str
    url: str
    body: msgspec.Raw


class _Named(Struct):
    custom_id: str


_decoder = msgspec.json.Decoder(BatchRequestLine)
_named_decoder = msgspec.json.Decoder(_Named)
_encode = msgspec.json.Encoder().encode


def decode_line(content: bytes, url: str) -> BatchRequestLine:
    """Decodes a line for the endpoint `url`, without its body. Raises InvalidValue, UnsupportedParameter."""
    line = decode(_decoder, content, raw_part=lambda decoded: bytes(decoded.body))
    if line.method != "POST":
        raise InvalidValue(f"'method' must be 'POST', not '{line.method[:20]}'.", "method")
    if line.url != url:
        raise InvalidValue(f"'url' must be '{url}', the endpoint of the batch, not '{line.url[:80]}'.", "url")
    return line


def decode_body(line: BatchRequestLine, endpoint: BatchEndpoint) -> LineBody:
    """Decodes a line's body as its endpoint does. Raises ApiError, its `param` below `body`."""
    try:
        body = endpoint.decode(bytes(line.body))
        if body.stream:
            raise UnsupportedParameter("Requests of a batch are not streamed: leave 'stream' out.", "stream")
        if body.service_tier not in _TIERS:
            raise UnsupportedParameter(
                "Requests of a batch have a tier and a price of their own: leave 'service_tier' out.",
                "service_tier",
            )
    except ApiError as error:
        error.param = "body" if error.param is None else f"body.{error.param}"
        raise
    return body


def custom_id_of(content: bytes) -> str:
    """Returns the `custom_id` of a line that has been checked."""
    return _named_decoder.decode(content).custom_id


def request_id(prefix: str, batch_id: str, line: int, submitted_at: datetime) -> str:
    """Returns the id of a line's request: however often the line runs, the same."""
    return request_ids.request_id(prefix, submitted_at.timestamp(), _digest(batch_id, line)[:18])


def line_seed(batch_id: str, line: int) -> int:
    """Returns the seed of a line that has none: a line that runs again draws the same tokens."""
    return int(_digest(batch_id, line)[-15:], 16)


def _digest(batch_id: str, line: int) -> str:
    return hashlib.sha256(f"{batch_id}:{line}".encode()).hexdigest()


def answered(batch_id: str, number: int, custom_id: str, request: str, status: int, body: bytes) -> str:
    """Returns a line of the output file, or of the error file for an error's status."""
    response = {"status_code": status, "request_id": request, "body": msgspec.Raw(body)}
    return _result(batch_id, number, custom_id, response, None)


def refused(batch_id: str, number: int, custom_id: str, request: str, error: BaseException) -> str:
    """Returns a line of the error file for a request that ended with `error`."""
    body = _encode(envelope(error))
    return answered(batch_id, number, custom_id, request, response_for(error).status, body)


def not_run(batch_id: str, number: int, custom_id: str, code: str, message: str) -> str:
    """Returns a line of the error file for a request that has not run."""
    return _result(batch_id, number, custom_id, None, {"code": code, "message": message})


def _result(
    batch_id: str, number: int, custom_id: str, response: Mapping[str, Any] | None, error: object
) -> str:
    name = f"batch_req_{batch_id.removeprefix('batch_')}_{number}"
    return _encode({"id": name, "custom_id": custom_id, "response": response, "error": error}).decode()
