"""Reads request bodies of bounded size: URL-encoded forms, and raw bodies."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_FORM_BYTES = 8192
MAX_FIELDS = 40


async def read_form(request: Request, max_fields: int = MAX_FIELDS) -> dict[str, str]:
    """The fields of a form, so many at most; of repeated ones the last. Raises `HTTPException` 413, 415 or
    400.
    """
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "This form must be sent URL-encoded.")
    body = await read_body(request, MAX_FORM_BYTES)
    try:
        return dict(
            parse_qsl(
                body.decode("utf-8"), keep_blank_values=True, max_num_fields=max_fields, errors="strict"
            )
        )
    except ValueError:
        raise HTTPException(400, "This form couldn't be read.") from None


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises `HTTPException` 413."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise HTTPException(413, "The form is too large.")
    return bytes(body)
