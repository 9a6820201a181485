"""`/v1/organization/data_retention`: whether responses and conversations are stored, in OpenAI's format."""

from __future__ import annotations

from typing import Literal, TypedDict

from fastapi import Request

from api.authentication import READ_PROJECTS, WRITE_PROJECTS
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, read_body
from api.organization.request_bodies import DataRetentionRequest
from tenants.retention.errors import OnLegalHold

router = Router(prefix="/v1/organization", tags=["Organization"])


RetentionType = Literal["zero_data_retention", "modified_abuse_monitoring"]


class DataRetentionObject(TypedDict):
    """Whether responses and conversations are stored."""

    object: Literal["organization.data_retention"]
    type: RetentionType
    """`zero_data_retention`: nothing is stored. `modified_abuse_monitoring`: what requests ask to store is,
    for as long as the plan says; it is read for nothing else."""


def _shown(stores_nothing: bool) -> DataRetentionObject:
    kind: RetentionType = "zero_data_retention" if stores_nothing else "modified_abuse_monitoring"
    return {"object": "organization.data_retention", "type": kind}


@router.get("/data_retention", operation_id="retrieveDataRetention")
async def retrieve_data_retention(request: Request) -> DataRetentionObject:
    """Retrieves whether responses and conversations are stored."""
    who = await authenticated_admin(request, READ_PROJECTS)
    return _shown(who.caller.stores_nothing)


@router.post(
    "/data_retention", operation_id="updateDataRetention", openapi_extra=json_body("DataRetentionRequest")
)
@fails_with(OnLegalHold("what is stored", "hold_1"))
async def update_data_retention(request: Request) -> DataRetentionObject:
    """Sets whether responses and conversations are stored, within a second. With `zero_data_retention`,
    requests to store are refused, and what was stored is deleted within minutes.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    wanted = await read_body(request, DataRetentionRequest)
    stores_nothing = wanted.retention_type == "zero_data_retention"
    await who.accounts.data_retention.set(who.tenant_id, stores_nothing, who.actor)
    return _shown(stores_nothing)
