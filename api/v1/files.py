"""`/v1/files`: uploads, lists and downloads files of adapters, calibration and batches, in OpenAI's format.

`adapters.files` validates and stores the files.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal, TypedDict
from urllib.parse import quote

from fastapi import Query, Request, Response
from starlette.responses import StreamingResponse

from adapters.files.description import FileDescription, describe
from adapters.files.errors import FileNotFound, FileTooLarge, StorageLimitReached, UnsupportedFile
from adapters.files.models import Purpose, StoredFile
from adapters.files.service import MAX_PAGE
from adapters.inspection import InspectionRefused
from adapters.storage.errors import StorageUnavailable
from adapters.storage.receiving import Received
from api.authentication import READ_FILES, WRITE_FILES, actor_of, authenticate
from api.errors import InvalidValue
from api.file_responses import beginning_with
from api.json_bodies import unix
from api.multipart import read_form
from api.openapi.routing import Router, fails_with, form_body
from api.pagination import Cursor, Order, Page, page
from api.services import services_of
from tenants.errors import AccountSuspended
from tenants.retention.errors import OnLegalHold

router = Router(prefix="/v1/files", tags=["Files"], errors=(AccountSuspended(),))

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
FORM_OVERHEAD = 64 * 1024
"""Bytes of a form besides its file."""


class FileObject(TypedDict):
    """An uploaded file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    """Unix seconds."""
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    expires_at: int | None
    """Unix seconds; null for a file that is kept until it is deleted."""
    sha256: str


class FileDeletedObject(TypedDict):
    """Says that a file is deleted."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


CREATE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["file", "purpose"],
    "additionalProperties": False,
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["adapter", "calibration", "batch"]},
        _ANCHOR: {"type": "string", "enum": ["created_at"]},
        _SECONDS: {"type": "integer", "minimum": 3600, "maximum": 2592000},
    },
    "dependentRequired": {_ANCHOR: [_SECONDS], _SECONDS: [_ANCHOR]},
}


def file_object(file: StoredFile) -> FileObject:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": unix(file.created_at),
        "filename": file.filename,
        "purpose": Purpose(file.purpose),
        "status": "processed",
        "expires_at": unix(file.expires_at),
        "sha256": file.sha256,
    }


@router.post("", operation_id="createFile", openapi_extra=form_body(CREATE_SCHEMA))
@fails_with(
    InspectionRefused("use_dora", "DoRA rescales the merged weight, which is not served"),
    StorageUnavailable("the store does not answer"),
    FileTooLarge("file", 2147483648),
    UnsupportedFile("file", "notes.txt", "'.jsonl'"),
    StorageLimitReached(10737418240),
)
async def create_file(request: Request) -> FileObject:
    """Uploads a file. Its `purpose` is `adapter` for `adapter_model.safetensors` and `adapter_config.json`,
    `calibration` for samples as JSON lines, or `batch` for the requests of a batch as JSON lines.
    """
    caller = await authenticate(request, WRITE_FILES)
    files = services_of(request).files
    limit = caller.plan.max_file_bytes
    refuse_declared(request, "file", limit)

    async def take(fields: Mapping[str, str], filename: str | None, data: AsyncIterator[bytes]) -> Received:
        if "purpose" in fields and (_ANCHOR in fields) == (_SECONDS in fields):
            # Invalid fields are refused before the file is read; the other one may come after it.
            _description(fields, filename)
        return await files.receive(data, max_bytes=limit)

    form = await read_form(request, "file", {"purpose", _ANCHOR, _SECONDS}, take, files.discard)
    try:
        said = _description(form.fields, form.filename)
    except BaseException:
        await files.discard(form.file)
        raise
    return file_object(
        await files.keep(caller.tenant_id, caller.key_id, said, form.file, by=actor_of(request, caller))
    )


@router.get("", operation_id="listFiles")
async def list_files(
    request: Request,
    purpose: Annotated[str | None, Query(max_length=100)] = None,
    after: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="The largest number of files.")] = MAX_PAGE,
    order: Order = "desc",
) -> Page[FileObject]:
    """Lists your files, the newest first unless `order` says otherwise."""
    caller = await authenticate(request, READ_FILES)
    found = await services_of(request).files.list(
        caller.tenant_id, purpose=purpose, after=after, limit=limit, newest_first=order == "desc"
    )
    return page([file_object(file) for file in found.files], limit, found.has_more)


@router.get("/{file_id}", operation_id="retrieveFile")
@fails_with(FileNotFound("file_1"))
async def retrieve_file(request: Request, file_id: str) -> FileObject:
    """Retrieves a file's description."""
    caller = await authenticate(request, READ_FILES)
    return file_object(await services_of(request).files.get(caller.tenant_id, file_id))


@router.delete("/{file_id}", operation_id="deleteFile")
@fails_with(FileNotFound("file_1"), OnLegalHold("file file_1", "hold_1"))
async def delete_file(request: Request, file_id: str) -> FileDeletedObject:
    """Deletes a file. Adapters made from it keep their own copies."""
    caller = await authenticate(request, WRITE_FILES)
    await services_of(request).files.delete(caller.tenant_id, file_id, by=actor_of(request, caller))
    return {"id": file_id, "object": "file", "deleted": True}


@router.get(
    "/{file_id}/content",
    operation_id="downloadFile",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    },
)
@fails_with(FileNotFound("file_1"), StorageUnavailable("the store does not answer"))
async def download_file(request: Request, file_id: str) -> Response:
    """Downloads a file. The connection is closed early if the stored bytes turn out to be damaged."""
    caller = await authenticate(request, READ_FILES)
    file, chunks = await services_of(request).files.content(caller.tenant_id, file_id)
    first = await anext(chunks, b"")  # an unreachable store fails before the status is sent
    return StreamingResponse(
        beginning_with(first, chunks),
        media_type="application/octet-stream",
        headers={
            "content-length": str(file.size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "etag": f'"{file.sha256}"',
            "x-content-type-options": "nosniff",
        },
    )


def refuse_declared(request: Request, field: str, limit: int) -> None:
    """Raises FileTooLarge if the declared length of the body exceeds the limit, before it is read."""
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) > limit + FORM_OVERHEAD:
        raise FileTooLarge(field, limit)


def _description(fields: Mapping[str, str], filename: str | None) -> FileDescription:
    if "purpose" not in fields:
        raise InvalidValue("Missing required parameter: 'purpose'.", "purpose")
    if filename is None:
        raise InvalidValue("'file' must be a file, with a name.", "file")
    return describe(fields["purpose"], filename, _lifetime(fields), filename_field="file")


def _lifetime(fields: Mapping[str, str]) -> int | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise InvalidValue("'expires_after[anchor]' must be 'created_at'.", _ANCHOR)
    if seconds is None or not seconds.isascii() or not seconds.isdigit() or len(seconds) > 12:
        raise InvalidValue("'expires_after[seconds]' must be a number of seconds.", _SECONDS)
    return int(seconds)
