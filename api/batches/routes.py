"""`/v1/batches`: creates, lists and cancels batches, in OpenAI's format. `api.batches.runner` runs them."""

from __future__ import annotations

from fastapi import Request

from adapters.files.errors import FileNotFound
from api.authentication import GENERATE, READ_FILES, actor_of, authenticate
from api.batches.bodies import BatchObject, batch_object, decode_create_batch
from api.json_bodies import read_json
from api.openapi.routing import Router, fails_with, json_body
from api.pagination import Page, Paged, page
from api.services import served, services_of
from batches.errors import BatchFinished, BatchNotFound, TooManyBatches
from batches.service import BatchService
from tenants.errors import AccountSuspended

router = Router(prefix="/v1/batches", tags=["Batches"], errors=(AccountSuspended(),))


@router.post("", operation_id="createBatch", openapi_extra=json_body("CreateBatchRequest"))
@fails_with(FileNotFound("file_1"), TooManyBatches(200))
async def create_batch(request: Request) -> BatchObject:
    """Runs the requests of a file in the background, at the price of batches. Every line is checked before
    any runs; what is wrong is in the batch's `errors`.
    """
    caller = await authenticate(request, GENERATE)
    await authenticate(request, READ_FILES)
    new = decode_create_batch(await read_json(request))
    by = actor_of(request, caller)
    return batch_object(await _batches(request).create(caller.tenant_id, caller.key_id, new, by))


@router.get("", operation_id="listBatches")
async def list_batches(request: Request, query: Paged) -> Page[BatchObject]:
    """Lists your organization's batches."""
    caller = await authenticate(request, GENERATE)
    batches, more = await _batches(request).page(
        caller.tenant_id, after=query.after, limit=query.limit, newest_first=query.newest_first
    )
    return page([batch_object(batch) for batch in batches], query.limit, more)


@router.get("/{batch_id}", operation_id="retrieveBatch")
@fails_with(BatchNotFound("batch_1"))
async def retrieve_batch(request: Request, batch_id: str) -> BatchObject:
    """Retrieves a batch, with its progress."""
    caller = await authenticate(request, GENERATE)
    return batch_object(await _batches(request).get(caller.tenant_id, batch_id))


@router.post("/{batch_id}/cancel", operation_id="cancelBatch")
@fails_with(BatchNotFound("batch_1"), BatchFinished("batch_1", "completed"))
async def cancel_batch(request: Request, batch_id: str) -> BatchObject:
    """Cancels a batch. Requests that run already end first; what is answered is in its output file."""
    caller = await authenticate(request, GENERATE)
    by = actor_of(request, caller)
    return batch_object(await _batches(request).cancel(caller.tenant_id, batch_id, by))


def _batches(request: Request) -> BatchService:
    return served(services_of(request).batches, "Batches")
