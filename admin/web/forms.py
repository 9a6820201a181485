"""Reads request bodies of bounded size: URL-encoded forms, forms with files, and raw bodies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_FORM_BYTES = 8192
MAX_FIELDS = 40
MAX_FIELD_BYTES = 4096
"""Of one field of a form with files."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class FormWithFiles:
    fields: Mapping[str, str]
    files: Mapping[str, UploadFile]
    """Those that were chosen; closed when the request ends."""


async def read_form(
    request: Request, max_fields: int = MAX_FIELDS, *, max_bytes: int = MAX_FORM_BYTES
) -> dict[str, str]:
    """The fields of a form, so many at most; of repeated ones the last. Raises `HTTPException` 413, 415 or
    400.
    """
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "This form must be sent URL-encoded.")
    body = await read_body(request, max_bytes)
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


@asynccontextmanager
async def read_files(
    request: Request, max_files: int, max_field_bytes: int = MAX_FIELD_BYTES
) -> AsyncIterator[FormWithFiles]:
    """Reads a form with files, which Starlette keeps on disk. Raises `HTTPException` 415 or 400."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise HTTPException(415, "This form must be sent as multipart/form-data.")
    async with request.form(max_files=max_files, max_fields=8, max_part_size=max_field_bytes) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        files = {name: value for name, value in form.items() if isinstance(value, UploadFile)}
        yield FormWithFiles(fields, {name: file for name, file in files.items() if file.filename})


async def pieces_of(file: UploadFile) -> AsyncIterator[bytes]:
    while piece := await file.read(_PIECE):
        yield piece
