"""`/v1/uploads`: files in parts, in OpenAI's shapes.

Owns the form of requests and answers; an upload's life is `adapters.files.uploads`'. Beside OpenAI's verbs,
`GET /v1/uploads/{id}` lists the parts that are there, so that a client that lost its place can go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta, Struct

from adapters.files.models import UploadPart
from adapters.files.uploads import MAX_PART_BYTES, MAX_PARTS, UploadState
from adapters.storage.receiving import Received
from api.deps import WRITE_FILES, actor_of, authenticate, read_json, services_of
from api.forms import read_form
from api.json_bodies import decode, unix
from api.openapi import ERROR_RESPONSES, form_body, json_body
from api.v1.files import file_object, refuse_declared

router = APIRouter(prefix="/v1/uploads", responses=ERROR_RESPONSES, tags=["Uploads"])


class ExpiresAfter(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long the file will be kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2592000)]


class CreateUploadRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bytes: Annotated[int, Meta(ge=1, le=2**60)]
    filename: Annotated[str, Meta(min_length=1, max_length=255)]
    mime_type: Annotated[str, Meta(min_length=1, max_length=255)]
    purpose: Literal["adapter", "calibration"]
    expires_after: ExpiresAfter | None = None


class CompleteUploadRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    part_ids: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(min_length=1, max_length=MAX_PARTS)
    ]
    """In the order of the file."""
    md5: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{32}$")] | None = None
    """Of the whole file, in hex."""


BODIES = (CreateUploadRequest, CompleteUploadRequest)
_create_decoder = msgspec.json.Decoder(CreateUploadRequest)
_complete_decoder = msgspec.json.Decoder(CompleteUploadRequest)

PART_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["data"],
    "additionalProperties": False,
    "properties": {"data": {"type": "string", "format": "binary"}},
}


def part_object(part: UploadPart) -> dict[str, Any]:
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": unix(part.created_at),
        "upload_id": part.upload_id,
        "bytes": part.size,
        "md5": part.md5,
        "sha256": part.sha256,
    }


def upload_object(state: UploadState) -> dict[str, Any]:
    upload = state.upload
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.size,
        "created_at": unix(upload.created_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "expires_at": unix(upload.expires_at),
        "file": None if state.file is None else file_object(state.file),
    }


@router.post("", operation_id="createUpload", openapi_extra=json_body("CreateUploadRequest"))
async def create_upload(request: Request) -> dict[str, Any]:
    """Announce a file that will arrive in parts within the hour."""
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
async def retrieve_upload(request: Request, upload_id: str) -> dict[str, Any]:
    """The upload and, in `parts`, what has arrived of it."""
    caller = await authenticate(request, WRITE_FILES)
    state = await services_of(request).uploads.get(caller.tenant_id, upload_id)
    return {**upload_object(state), "parts": [part_object(part) for part in state.parts]}


@router.post("/{upload_id}/parts", operation_id="addUploadPart", openapi_extra=form_body(PART_SCHEMA))
async def add_upload_part(request: Request, upload_id: str) -> dict[str, Any]:
    """Add a part of at most 64 MB. Parts may come in any order, in parallel, and again."""
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
async def complete_upload(request: Request, upload_id: str) -> dict[str, Any]:
    """Make the file of the parts in this order. Completing again returns the same file."""
    caller = await authenticate(request, WRITE_FILES)
    body = decode(_complete_decoder, await read_json(request))
    uploads = services_of(request).uploads
    by = actor_of(request, caller)
    return upload_object(await uploads.complete(caller.tenant_id, upload_id, body.part_ids, body.md5, by=by))


@router.post("/{upload_id}/cancel", operation_id="cancelUpload")
async def cancel_upload(request: Request, upload_id: str) -> dict[str, Any]:
    """Take no more parts, and drop those there are."""
    caller = await authenticate(request, WRITE_FILES)
    by = actor_of(request, caller)
    return upload_object(await services_of(request).uploads.cancel(caller.tenant_id, upload_id, by=by))
