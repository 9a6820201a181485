"""`/v1/uploads`: uploads large files in parts, in OpenAI's format.

Besides OpenAI's routes, `GET /v1/uploads/{id}` lists the parts that have arrived, so that an interrupted
client can continue. `adapters.files.uploads` has the logic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal, TypedDict

import msgspec
from fastapi import Request
from msgspec import Meta

from adapters.files.errors import (
    FileTooLarge,
    StorageLimitReached,
    TooManyUploads,
    UnsupportedFile,
    UploadNotFound,
    UploadNotPending,
)
from adapters.files.models import Purpose, UploadPart, UploadStatus
from adapters.files.uploads import MAX_PART_BYTES, MAX_PARTS, UploadState
from adapters.inspection import InspectionRefused
from adapters.storage.errors import StorageUnavailable
from adapters.storage.receiving import Received
from api.authentication import WRITE_FILES, actor_of, authenticate
from api.body_fields import FILENAME, Body
from api.json_bodies import decode, read_json, unix
from api.multipart import read_form
from api.openapi.routing import Router, fails_with, form_body, json_body
from api.services import services_of
from api.v1.files import FileObject, file_object, refuse_declared
from tenants.errors import AccountSuspended
from tenants.validation import PRINTABLE

router = Router(prefix="/v1/uploads", tags=["Uploads"], errors=(AccountSuspended(),))


class ExpiresAfter(Body, frozen=True, kw_only=True):
    """How long the file will be kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2592000)]


class CreateUploadRequest(Body, frozen=True, kw_only=True):
    bytes: Annotated[int, Meta(ge=1, le=2**60)]
    filename: Annotated[str, Meta(min_length=1, max_length=255, extra_json_schema=FILENAME)]
    """`adapter_model.safetensors`, `adapter_config.json`, or a name that ends in `.jsonl`."""
    mime_type: Annotated[
        str, Meta(min_length=1, max_length=255, extra_json_schema={"pattern": f"^{PRINTABLE}$"})
    ]
    purpose: Literal["adapter", "calibration", "batch"]
    expires_after: ExpiresAfter | None = None


class CompleteUploadRequest(Body, frozen=True, kw_only=True):
    part_ids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(min_length=1, max_length=MAX_PARTS)
    ]
    """Ids of the parts, in the order of the file."""
    md5: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{32}$")] | None = None
    """MD5 of the whole file, in hex."""


BODIES = (CreateUploadRequest, CompleteUploadRequest)
_create_decoder = msgspec.json.Decoder(CreateUploadRequest)
_complete_decoder = msgspec.json.Decoder(CompleteUploadRequest)


class UploadPartObject(TypedDict):
    """A part of an upload."""

    id: str
    object: Literal["upload.part"]
    created_at: int
    """Unix seconds."""
    upload_id: str
    bytes: int
    md5: str
    sha256: str


class UploadObject(TypedDict):
    """A file that is uploaded in parts."""

    id: str
    object: Literal["upload"]
    bytes: int
    """The size of the whole file."""
    created_at: int
    """Unix seconds."""
    filename: str
    purpose: Purpose
    status: UploadStatus
    expires_at: int
    """Unix seconds when the upload ends unless it is completed."""
    file: FileObject | None
    """The file; null until the upload is completed."""


class UploadWithPartsObject(UploadObject):
    """An upload and its parts."""

    parts: list[UploadPartObject]
    """The parts that have arrived."""


PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "additionalProperties": False,
    "properties": {"data": {"type": "string", "format": "binary", "minLength": 1}},
}


def part_object(part: UploadPart) -> UploadPartObject:
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": unix(part.created_at),
        "upload_id": part.upload_id,
        "bytes": part.size,
        "md5": part.md5,
        "sha256": part.sha256,
    }


def upload_object(state: UploadState) -> UploadObject:
    upload = state.upload
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.size,
        "created_at": unix(upload.created_at),
        "filename": upload.filename,
        "purpose": Purpose(upload.purpose),
        "status": UploadStatus(upload.status),
        "expires_at": unix(upload.expires_at),
        "file": None if state.file is None else file_object(state.file),
    }


@router.post("", operation_id="createUpload", openapi_extra=json_body("CreateUploadRequest"))
@fails_with(
    FileTooLarge("file", 2147483648),
    UnsupportedFile("file", "notes.txt", "'.jsonl'"),
    TooManyUploads(100),
    StorageLimitReached(10737418240),
)
async def create_upload(request: Request) -> UploadObject:
    """Starts the upload of a large file in parts. It expires after an hour."""
    caller = await authenticate(request, WRITE_FILES)
    body = decode(_create_decoder, await read_json(request))
    state = await services_of(request).uploads.create(
        caller.tenant_id,
        caller.key_id,
        body.purpose,
        body.filename,
        body.mime_type,
        body.bytes,
        None if body.expires_after is None else body.expires_after.seconds,
        max_bytes=caller.plan.max_file_bytes,
        by=actor_of(request, caller),
    )
    return upload_object(state)


@router.get("/{upload_id}", operation_id="retrieveUpload")
@fails_with(UploadNotFound("upload_1"))
async def retrieve_upload(request: Request, upload_id: str) -> UploadWithPartsObject:
    """Retrieves an upload and the parts that have arrived."""
    caller = await authenticate(request, WRITE_FILES)
    state = await services_of(request).uploads.get(caller.tenant_id, upload_id)
    return {**upload_object(state), "parts": [part_object(part) for part in state.parts]}


@router.post("/{upload_id}/parts", operation_id="addUploadPart", openapi_extra=form_body(PART_SCHEMA))
@fails_with(
    StorageUnavailable("the store does not answer"),
    UploadNotFound("upload_1"),
    UploadNotPending("upload_1", "cancelled"),
    FileTooLarge("file", 2147483648),
)
async def add_upload_part(request: Request, upload_id: str) -> UploadPartObject:
    """Adds a part of at most 64 MB. Parts can be sent in any order, in parallel and more than once."""
    caller = await authenticate(request, WRITE_FILES)
    uploads = services_of(request).uploads
    refuse_declared(request, "data", MAX_PART_BYTES)
    await uploads.expect_part(caller.tenant_id, upload_id)

    async def take(fields: Mapping[str, str], filename: str | None, data: AsyncIterator[bytes]) -> Received:
        return await uploads.receive(data)

    form = await read_form(request, "data", (), take, uploads.discard)
    return part_object(await uploads.keep_part(caller.tenant_id, upload_id, form.file))


@router.post(
    "/{upload_id}/complete", operation_id="completeUpload", openapi_extra=json_body("CompleteUploadRequest")
)
@fails_with(
    InspectionRefused("use_dora", "DoRA rescales the merged weight, which is not served"),
    StorageUnavailable("the store does not answer"),
    UploadNotFound("upload_1"),
    UploadNotPending("upload_1", "cancelled"),
    UnsupportedFile("file", "notes.txt", "'.jsonl'"),
    StorageLimitReached(10737418240),
)
async def complete_upload(request: Request, upload_id: str) -> UploadObject:
    """Makes the file from the parts in the given order. Completing an upload again returns the same file."""
    caller = await authenticate(request, WRITE_FILES)
    body = decode(_complete_decoder, await read_json(request))
    uploads = services_of(request).uploads
    by = actor_of(request, caller)
    return upload_object(await uploads.complete(caller.tenant_id, upload_id, body.part_ids, body.md5, by=by))


@router.post("/{upload_id}/cancel", operation_id="cancelUpload")
@fails_with(UploadNotFound("upload_1"), UploadNotPending("upload_1", "cancelled"))
async def cancel_upload(request: Request, upload_id: str) -> UploadObject:
    """Cancels an upload and deletes its parts."""
    caller = await authenticate(request, WRITE_FILES)
    by = actor_of(request, caller)
    return upload_object(await services_of(request).uploads.cancel(caller.tenant_id, upload_id, by=by))
