"""`/v1/adapters`: creates, lists, changes and deletes a tenant's adapters and their versions.

Adapters are given by id or by name. The package `adapters` has the logic.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request, Response

from adapters.errors import (
    AdapterLimitReached,
    AdapterNotFound,
    InvalidAdapter,
    NoPreviousVersion,
    VersionNotFound,
    VersionNotReady,
)
from adapters.files.errors import FileNotFound, UploadNotFound
from adapters.inspection import InspectionRefused, SandboxUnavailable
from adapters.models import AdapterEvent
from adapters.service import AdapterChanges
from adapters.storage.errors import StorageUnavailable
from adapters.submission import Caller, SubmittedVersion
from api.authentication import READ_ADAPTERS, WRITE_ADAPTERS, actor_of, authenticate
from api.event_streams import event_stream
from api.json_bodies import read_json
from api.openapi.routing import Router, answers, fails_with, json_body
from api.organization.response_objects import DeletedObject
from api.pagination import Page, Paged, page
from api.services import onboarding_of, services_of
from api.v1.adapter_bodies import (
    AdapterEventObject,
    AdapterObject,
    SubmittedAdapterObject,
    SubmittedVersionObject,
    VersionObject,
    adapter_object,
    decode_create,
    decode_update,
    decode_version,
    event_object,
    version_object,
)
from db.errors import UnknownCursor
from engine.client import EngineGone
from tenants.context import TenantContext
from tenants.errors import AccountSuspended, NameTaken
from tenants.retention.errors import OnLegalHold

router = Router(
    prefix="/v1/adapters",
    tags=["Adapters"],
    errors=(AccountSuspended(),),
)


@router.post(
    "",
    operation_id="createAdapter",
    openapi_extra=json_body("CreateAdapterRequest"),
    status_code=201,
)
@fails_with(
    EngineGone("the engine does not serve"),
    SandboxUnavailable("busy"),
    StorageUnavailable("the store does not answer"),
    FileNotFound("file_1"),
    UploadNotFound("upload_1"),
    NameTaken("adapter name", "support"),
    InspectionRefused("r", "must be a positive integer"),
    AdapterLimitReached(100),
)
async def create_adapter(request: Request) -> SubmittedAdapterObject:
    """Creates an adapter from two uploaded files, `adapter_model.safetensors` and `adapter_config.json`, or
    from a source that they are imported from. It serves once it is inspected, packed and calibrated.
    """
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = decode_create(await read_json(request))
    pools = services_of(request).pools
    pools.check_ready()
    if body.base_model not in pools:
        served = " or ".join(f"'{pool.name}'" for pool in pools)
        raise InvalidAdapter("base_model", f"the base served here is {served}")
    made = await onboarding_of(request).submission.create(
        _on_behalf_of(request, caller),
        body.name,
        body.submission(),
        base=body.base_model,
        base_digest=pools[body.base_model].info().base_digest,
        description=body.description,
    )
    return _submitted(made)


@router.get("", operation_id="listAdapters")
async def list_adapters(
    request: Request, query: Paged, name: Annotated[str | None, Query(pattern=r"^[a-z0-9._-]{1,64}$")] = None
) -> Page[AdapterObject]:
    """Lists your adapters; with `name`, the one with that name."""
    caller = await authenticate(request, READ_ADAPTERS)
    shown = await onboarding_of(request).catalogue.adapters(
        caller.tenant_id,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
        name=name,
    )
    return page([adapter_object(one.adapter, one.version) for one in shown], query.limit)


@router.get("/{adapter}", operation_id="retrieveAdapter")
@fails_with(AdapterNotFound("support"))
async def retrieve_adapter(request: Request, adapter: str) -> AdapterObject:
    """Retrieves an adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    shown = await onboarding_of(request).catalogue.get(caller.tenant_id, adapter)
    return adapter_object(shown.adapter, shown.version)


@router.post("/{adapter}", operation_id="updateAdapter", openapi_extra=json_body("UpdateAdapterRequest"))
@fails_with(AdapterNotFound("support"), NameTaken("adapter name", "support"))
async def update_adapter(request: Request, adapter: str) -> AdapterObject:
    """Renames, describes, disables or enables an adapter. Fields that are left out stay as they are."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = decode_update(await read_json(request))
    changes = AdapterChanges(body.name, body.description, body.disabled)
    shown = await onboarding_of(request).adapters.update(
        caller.tenant_id, adapter, changes, by=actor_of(request, caller)
    )
    return adapter_object(shown.adapter, shown.version)


@router.delete("/{adapter}", operation_id="deleteAdapter")
@fails_with(AdapterNotFound("support"), OnLegalHold("adapter support", "hold_1"))
async def delete_adapter(request: Request, adapter: str) -> DeletedObject:
    """Deletes an adapter and all its versions. Requests that are being generated finish."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    deleted = await onboarding_of(request).deletion.delete(
        caller.tenant_id, adapter, by=actor_of(request, caller)
    )
    return {"id": deleted.id, "object": "adapter.deleted", "deleted": True}


@router.post(
    "/{adapter}/versions",
    operation_id="createAdapterVersion",
    openapi_extra=json_body("CreateVersionRequest"),
    status_code=201,
    responses={200: {"description": "The adapter has a version of these very files already."}},
)
@fails_with(
    EngineGone("the engine does not serve"),
    SandboxUnavailable("busy"),
    StorageUnavailable("the store does not answer"),
    AdapterNotFound("support"),
    FileNotFound("file_1"),
    UploadNotFound("upload_1"),
    InspectionRefused("r", "must be a positive integer"),
)
async def create_version(request: Request, response: Response, adapter: str) -> SubmittedVersionObject:
    """Adds a version to an adapter, from two uploaded files or from a source that they are imported from.
    Uploaded files of an existing version return that version, with status 200.
    """
    caller = await authenticate(request, WRITE_ADAPTERS)
    body = decode_version(await read_json(request))
    pools = services_of(request).pools
    pools.check_ready()
    shown = await onboarding_of(request).catalogue.get(caller.tenant_id, adapter)
    made = await onboarding_of(request).submission.add_version(
        _on_behalf_of(request, caller),
        shown.adapter.id,
        body.submission(),
        base_digest=pools[shown.adapter.base].info().base_digest,
    )
    if not made.created:
        response.status_code = 200
    return {
        **version_object(made.adapter, made.version),
        "created": made.created,
        "calibration_job": made.job_id,
    }


@router.get("/{adapter}/versions", operation_id="listAdapterVersions")
@fails_with(AdapterNotFound("support"))
async def list_versions(request: Request, query: Paged, adapter: str) -> Page[VersionObject]:
    """Lists the versions of an adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    of, number = _version_after(query.after)
    shown, versions = await onboarding_of(request).catalogue.versions(
        caller.tenant_id,
        adapter,
        after=number,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    if of and of != shown.adapter.id:
        raise UnknownCursor
    return page([version_object(shown.adapter, version) for version in versions], query.limit)


@router.get("/{adapter}/versions/{version}", operation_id="retrieveAdapterVersion")
@fails_with(AdapterNotFound("support"), VersionNotFound("support", 7))
async def retrieve_version(request: Request, adapter: str, version: int) -> VersionObject:
    """Retrieves a version of an adapter."""
    caller = await authenticate(request, READ_ADAPTERS)
    return version_object(*await onboarding_of(request).catalogue.version(caller.tenant_id, adapter, version))


@router.post("/{adapter}/versions/{version}/activate", operation_id="activateAdapterVersion")
@fails_with(
    AdapterNotFound("support"), VersionNotFound("support", 7), VersionNotReady("support", 7, "calibrating")
)
async def activate_version(request: Request, adapter: str, version: int) -> AdapterObject:
    """Serves a version under the adapter's name. Requests that are being generated finish on the version they
    started with.
    """
    caller = await authenticate(request, WRITE_ADAPTERS)
    shown = await onboarding_of(request).adapters.activate(
        caller.tenant_id, adapter, version, by=actor_of(request, caller)
    )
    return adapter_object(shown.adapter, shown.version)


@router.post("/{adapter}/versions/{version}/disable", operation_id="disableAdapterVersion")
@fails_with(
    AdapterNotFound("support"), VersionNotFound("support", 7), VersionNotReady("support", 7, "calibrating")
)
async def disable_version(request: Request, adapter: str, version: int) -> VersionObject:
    """Stops serving a version."""
    return await _set_version_disabled(request, adapter, version, True)


@router.post("/{adapter}/versions/{version}/enable", operation_id="enableAdapterVersion")
@fails_with(
    AdapterNotFound("support"), VersionNotFound("support", 7), VersionNotReady("support", 7, "calibrating")
)
async def enable_version(request: Request, adapter: str, version: int) -> VersionObject:
    """Serves a disabled version again."""
    return await _set_version_disabled(request, adapter, version, False)


@router.post("/{adapter}/rollback", operation_id="rollbackAdapter")
@fails_with(AdapterNotFound("support"), NoPreviousVersion("support"))
async def rollback(request: Request, adapter: str) -> AdapterObject:
    """Serves the version that was active before."""
    caller = await authenticate(request, WRITE_ADAPTERS)
    shown = await onboarding_of(request).adapters.rollback(
        caller.tenant_id, adapter, by=actor_of(request, caller)
    )
    return adapter_object(shown.adapter, shown.version)


@router.get("/{adapter}/events", operation_id="listAdapterEvents", response_model=None)
@answers(Page[AdapterEventObject], AdapterEventObject)
@fails_with(AdapterNotFound("support"))
async def list_events(
    request: Request, query: Paged, adapter: str, stream: bool = False
) -> Page[AdapterEventObject] | Response:
    """Lists what happened to an adapter. With `stream`, sends events as they happen, from the beginning or
    after the event `after`, until no version is being prepared any more.
    """
    caller = await authenticate(request, READ_ADAPTERS)
    catalogue = onboarding_of(request).catalogue
    if stream:
        shown = await catalogue.get(caller.tenant_id, adapter)
        if query.after is not None:
            await catalogue.events(caller.tenant_id, adapter, after=query.after, limit=1)
        source = _objects(catalogue.follow(caller.tenant_id, shown.adapter.id, query.after))
        return event_stream(source, services_of(request).limits.ping_interval)
    events = await catalogue.events(
        caller.tenant_id,
        adapter,
        after=query.after,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([event_object(event) for event in events], query.limit)


async def _set_version_disabled(
    request: Request, adapter: str, version: int, disabled: bool
) -> VersionObject:
    caller = await authenticate(request, WRITE_ADAPTERS)
    changed = await onboarding_of(request).adapters.set_version_disabled(
        caller.tenant_id, adapter, version, disabled, by=actor_of(request, caller)
    )
    return version_object(*changed)


async def _objects(source: AsyncIterator[list[AdapterEvent]]) -> AsyncIterator[list[AdapterEventObject]]:
    async for events in source:
        yield [event_object(event) for event in events]


def _on_behalf_of(request: Request, caller: TenantContext) -> Caller:
    return Caller(caller.tenant_id, caller.key_id, caller.plan, actor_of(request, caller))


def _submitted(made: SubmittedVersion) -> SubmittedAdapterObject:
    return {**adapter_object(made.adapter, made.version), "calibration_job": made.job_id}


def _version_after(after: str | None) -> tuple[str, int] | tuple[None, None]:
    """Returns the adapter's id and the number from a version's id; a number alone names no adapter. Raises
    UnknownCursor.
    """
    if after is None:
        return None, None
    adapter_id, at, number = after.rpartition("@")
    if bool(at) != bool(adapter_id) or not (number.isascii() and number.isdigit() and len(number) < 10):
        raise UnknownCursor
    return adapter_id, int(number)
