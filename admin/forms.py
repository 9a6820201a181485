"""Reading a posted form: small, URL-encoded, nothing else. Refuses to know what the fields mean."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_FORM_BYTES = 8192


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of repeated ones the last. Raises `HTTPException` 413, 415 or 400."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "This form must be sent URL-encoded.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, "This form is too large.")
    try:
        return dict(
            parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=20, errors="strict")
        )
    except ValueError:
        raise HTTPException(400, "This form could not be read.") from None
