"""`/v1/organization/retention` and `/v1/organization/legal_holds`: how long data is kept, and what stops its
deletion.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from fastapi import Query, Request

from api.authentication import READ_AUDIT, READ_PROJECTS, WRITE_PROJECTS
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with, json_body
from api.organization.admin_requests import authenticated_admin, naming_fields, read_body
from api.organization.request_bodies import PlaceLegalHoldRequest, UpdateRetentionRequest
from api.services import served, services_of
from retention.service import ClassPeriod, RetentionService
from tenants.retention.classes import LONGEST_DAYS, DataClass, kept_records
from tenants.retention.errors import (
    DataClassNotFound,
    DeletionUnconfirmed,
    HoldLifted,
    HoldNotFound,
    PeriodNotAllowed,
    TooManyHolds,
)
from tenants.retention.models import LegalHold

router = Router(prefix="/v1/organization", tags=["Retention"])

ClassName = Literal[
    "responses",
    "files",
    "batches",
    "adapter_sources",
    "requests",
    "notifications",
    "sign_in",
    "former_members",
    "audit_log",
]


class RetentionClassObject(TypedDict):
    """A class of data, and for how long it is kept."""

    object: Literal["organization.retention_class"]
    data_class: ClassName
    title: str
    description: str
    """What is in the class, and from when its age counts."""
    days: int | None
    """Days that apply. Null: until it is deleted on request."""
    set_days: int | None
    """What the organization has set; null: the default applies."""
    default_days: int | None
    minimum_days: int
    """The fewest that can be set, by the service."""
    maximum_days: int
    """The most that can be set, by the plan."""
    legal_hold_id: str | None
    """The hold that keeps the whole class."""


class KeptRecordsObject(TypedDict):
    """Records that no setting deletes."""

    title: str
    why: str
    period: str


class RetentionObject(TypedDict):
    """How long the organization's data is kept."""

    object: Literal["organization.retention"]
    classes: list[RetentionClassObject]
    kept: list[KeptRecordsObject]
    backup_days: int
    """Days for which backups still hold what was deleted."""
    owed_objects: int
    """Objects that the object store has yet to delete. Their certificates are issued afterwards."""


class TablePreviewObject(TypedDict):
    """What would be deleted from one table."""

    table: str
    rows: int
    held_rows: int
    """Rows of the same age that legal holds keep."""
    oldest: int | None
    """Unix seconds."""


class RetentionPreviewObject(TypedDict):
    """What a period would delete now."""

    object: Literal["organization.retention_preview"]
    data_class: ClassName
    days: int | None
    rows: int
    tables: list[TablePreviewObject]
    legal_hold_id: str | None


class LegalHoldObject(TypedDict):
    """A legal hold."""

    id: str
    object: Literal["organization.legal_hold"]
    data_class: ClassName | None
    object_id: str | None
    """The object that is held; the organization's id holds everything."""
    reason: str
    placed_at: int
    """Unix seconds."""
    placed_by: str
    lifted_at: int | None
    """Unix seconds; null while the hold is in force."""
    lifted_by: str | None


class LegalHoldList(TypedDict):
    """The latest holds, lifted ones too, the newest first."""

    object: Literal["list"]
    data: list[LegalHoldObject]


def retention_of(request: Request) -> RetentionService:
    """Returns the service. Raises NotServing if this process has none."""
    return served(services_of(request).retention, "Retention settings")


def _class_object(period: ClassPeriod) -> RetentionClassObject:
    return {
        "object": "organization.retention_class",
        "data_class": period.data_class.value,  # type: ignore[typeddict-item]
        "title": period.terms.title,
        "description": period.terms.about,
        "days": period.days,
        "set_days": period.set_days,
        "default_days": period.default,
        "minimum_days": period.least,
        "maximum_days": period.most,
        "legal_hold_id": period.hold_id,
    }


def _hold_object(hold: LegalHold) -> LegalHoldObject:
    return {
        "id": hold.id,
        "object": "organization.legal_hold",
        "data_class": hold.data_class,  # type: ignore[typeddict-item]
        "object_id": hold.object_id,
        "reason": hold.reason,
        "placed_at": unix(hold.placed_at),
        "placed_by": hold.placed_by,
        "lifted_at": unix(hold.lifted_at),
        "lifted_by": hold.lifted_by,
    }


def _class_of(name: str) -> DataClass:
    """Returns the class of this name. Raises DataClassNotFound."""
    if name not in DataClass.__members__.values():
        raise DataClassNotFound(name)
    return DataClass(name)


@router.get("/retention", operation_id="retrieveRetention")
async def retrieve_retention(request: Request) -> RetentionObject:
    """Retrieves for how long each class of the organization's data is kept, and what is kept beside them."""
    who = await authenticated_admin(request, READ_PROJECTS)
    service = retention_of(request)
    periods = await service.periods(who.tenant_id)
    _, num_owed = await service.pending(who.tenant_id)
    return {
        "object": "organization.retention",
        "classes": [_class_object(period) for period in periods],
        "kept": [
            {"title": one.title, "why": one.why, "period": one.period}
            for one in kept_records(service.bounds.books_years)
        ],
        "backup_days": service.bounds.backup_days,
        "owed_objects": num_owed,
    }


@router.get("/retention/{data_class}/preview", operation_id="previewRetention")
@fails_with(PeriodNotAllowed("files", 7, 30, 365), DataClassNotFound("mail"))
async def preview_retention(
    request: Request,
    data_class: str,
    days: Annotated[int | None, Query(ge=1, le=LONGEST_DAYS, description="Left out: the default.")] = None,
) -> RetentionPreviewObject:
    """Counts what a period would delete now."""
    who = await authenticated_admin(request, READ_PROJECTS)
    found = await retention_of(request).preview(who.tenant_id, _class_of(data_class), days)
    return {
        "object": "organization.retention_preview",
        "data_class": found.data_class.value,  # type: ignore[typeddict-item]
        "days": found.days,
        "rows": found.num_rows,
        "tables": [
            {
                "table": one.table,
                "rows": one.num_rows,
                "held_rows": one.num_held,
                "oldest": unix(one.oldest),
            }
            for one in found.tables
        ],
        "legal_hold_id": found.hold_id,
    }


@router.post(
    "/retention/{data_class}",
    operation_id="updateRetention",
    openapi_extra=json_body("UpdateRetentionRequest"),
)
@fails_with(
    DeletionUnconfirmed("files", 7, 12), PeriodNotAllowed("files", 7, 30, 365), DataClassNotFound("mail")
)
async def update_retention(request: Request, data_class: str) -> RetentionClassObject:
    """Sets for how many days a class is kept. A shorter period that deletes data now has to be confirmed;
    what is older is then deleted for good within minutes, and certified.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    wanted = await read_body(request, UpdateRetentionRequest)
    period = await retention_of(request).set(
        who.tenant_id,
        _class_of(data_class),
        wanted.days,
        who.actor,
        confirms_deletions=wanted.confirm_deletions,
    )
    return _class_object(period)


@router.get("/legal_holds", operation_id="listLegalHolds")
async def list_legal_holds(request: Request) -> LegalHoldList:
    """Lists legal holds, lifted ones too: at most the latest thousand."""
    who = await authenticated_admin(request, READ_AUDIT)
    found = await retention_of(request).holds(who.tenant_id)
    return {"object": "list", "data": [_hold_object(hold) for hold in found]}


@router.post("/legal_holds", operation_id="placeLegalHold", openapi_extra=json_body("PlaceLegalHoldRequest"))
@fails_with(TooManyHolds(1000))
async def place_legal_hold(request: Request) -> LegalHoldObject:
    """Places a legal hold on a class of data, or on an object by its id. From now on nothing deletes it:
    periods pass it by, and requests to delete it are refused.
    """
    who = await authenticated_admin(request, WRITE_PROJECTS)
    wanted = await read_body(request, PlaceLegalHoldRequest)
    with naming_fields():
        hold = await retention_of(request).place_hold(
            who.tenant_id,
            wanted.reason,
            who.actor,
            data_class=wanted.data_class,
            object_id=wanted.object_id,
        )
    return _hold_object(hold)


@router.post("/legal_holds/{legal_hold_id}/lift", operation_id="liftLegalHold")
@fails_with(HoldNotFound("hold_1"), HoldLifted("hold_1"))
async def lift_legal_hold(request: Request, legal_hold_id: str) -> LegalHoldObject:
    """Lifts a legal hold. What is older than its period is deleted within minutes."""
    who = await authenticated_admin(request, WRITE_PROJECTS)
    return _hold_object(await retention_of(request).lift_hold(who.tenant_id, legal_hold_id, who.actor))
