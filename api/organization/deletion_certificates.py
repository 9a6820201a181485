"""`/v1/organization/deletion_certificates`: signed statements of what was deleted, as JSON and PDF."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from fastapi import Query, Request, Response

from api.authentication import READ_AUDIT
from api.file_responses import attachment
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with
from api.organization.admin_requests import authenticated_admin
from api.organization.retention import retention_of
from api.pagination import Page, Paged, page
from retention.certificate_files import certificate_pdf, file_name
from tenants.retention.errors import CertificateNotFound
from tenants.retention.models import DeletionCertificate

router = Router(prefix="/v1/organization/deletion_certificates", tags=["Retention"])

_PDF: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/pdf": {"schema": {"type": "string", "format": "binary"}}}}
}
Cause = Literal["periods", "request", "organization"]


class CertificateSummaryObject(TypedDict):
    """A certificate of deletion, without its statement."""

    id: str
    object: Literal["organization.deletion_certificate"]
    number: int
    """From 1, without gaps."""
    cause: Cause
    object_id: str | None
    """What was asked to be deleted, if it was one object."""
    rows: int
    objects: int
    """Objects of the object store."""
    issued_at: int
    """Unix seconds."""
    sha256: str


class DeletedTableObject(TypedDict):
    """What was deleted from one table."""

    table: str
    data_class: str | None
    rows: int
    objects: int
    oldest: str | None
    newest: str | None
    ids: list[str] | None
    """The ids, in order of deletion; null where there are more than a thousand, or none."""
    ids_sha256: str | None
    """`SHA-256(digest before + SHA-256(id))` over the ids, from 32 zero bytes."""


class DeletedTargetObject(TypedDict):
    kind: str
    id: str


class DeletionObject(TypedDict):
    """A deletion."""

    id: str
    object: DeletedTargetObject | None
    """What was asked to be deleted; null for what periods delete."""
    requested_by: dict[str, str]
    periods_days: dict[str, int]
    """Days by class, where periods deleted."""
    started_at: str
    ended_at: str
    tables: list[DeletedTableObject]


class KeptObject(TypedDict):
    """What is kept of a deleted organization."""

    what: str
    why: str
    period: str


class StatementObject(TypedDict):
    """What the certificate states. Times are in UTC."""

    format: Literal["rootstock.deletion_certificate.v1"]
    id: str
    number: int
    organization_id: str
    cause: Cause
    issued_at: str
    rows: int
    objects: int
    deletions: list[DeletionObject]
    backups_hold_it_until: str
    previous_sha256: str
    """Of the certificate before; zeros for the first."""
    kept: NotRequired[list[KeptObject]]


class SignatureObject(TypedDict):
    """The signature of the statement's canonical JSON: keys sorted, no spaces, ASCII."""

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str
    """In hex, as the value."""
    value: str


class CertificateObject(TypedDict):
    """A certificate of deletion. `rootstock evidence verify` checks it without a connection to the
    service.
    """

    statement: StatementObject
    sha256: str
    """Of the statement's canonical JSON."""
    signature: SignatureObject


def _summary(row: DeletionCertificate) -> CertificateSummaryObject:
    return {
        "id": row.id,
        "object": "organization.deletion_certificate",
        "number": row.number,
        "cause": row.cause,  # type: ignore[typeddict-item]
        "object_id": row.object_id,
        "rows": row.num_rows,
        "objects": row.num_objects,
        "issued_at": unix(row.issued_at),
        "sha256": bytes(row.digest).hex(),
    }


@router.get("", operation_id="listDeletionCertificates")
async def list_deletion_certificates(
    request: Request,
    query: Paged,
    object_id: Annotated[
        str | None,
        Query(
            description="Only certificates of requests to delete this object.",
            json_schema_extra={"pattern": r"^[^\x00]*$"},
        ),
    ] = None,
) -> Page[CertificateSummaryObject]:
    """Lists certificates of deletion."""
    who = await authenticated_admin(request, READ_AUDIT)
    found = await retention_of(request).certificates(
        who.tenant_id,
        after=query.after,
        object_id=object_id,
        limit=query.limit + 1,
        newest_first=query.newest_first,
    )
    return page([_summary(row) for row in found], query.limit)


@router.get("/{certificate_id}", operation_id="retrieveDeletionCertificate")
@fails_with(CertificateNotFound("delcert_1"))
async def retrieve_deletion_certificate(request: Request, certificate_id: str) -> CertificateObject:
    """Retrieves a certificate as it is signed. Keep it: it is proved without this service."""
    who = await authenticated_admin(request, READ_AUDIT)
    found: CertificateObject = (
        await retention_of(request).certificate(who.tenant_id, certificate_id)
    ).document  # type: ignore[assignment]
    return found


@router.get(
    "/{certificate_id}/pdf",
    operation_id="retrieveDeletionCertificatePdf",
    response_class=Response,
    responses=_PDF,
)
@fails_with(CertificateNotFound("delcert_1"))
async def retrieve_deletion_certificate_pdf(request: Request, certificate_id: str) -> Response:
    """Retrieves a certificate as a PDF, for reading."""
    who = await authenticated_admin(request, READ_AUDIT)
    document = (await retention_of(request).certificate(who.tenant_id, certificate_id)).document
    headers = attachment(file_name(document, "pdf"))
    return Response(await certificate_pdf(document), media_type="application/pdf", headers=headers)
