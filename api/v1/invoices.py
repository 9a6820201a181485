"""`/v1/organization/invoices`: lists and previews a tenant's invoices, as JSON and PDF, and shows its
balance.

Read-only: the worker closes months, and payments create credits. `billing.invoices.documents` formats
invoices.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, Literal, TypedDict

from fastapi import Request, Response

from api.authentication import READ_BILLING, authenticate
from api.file_responses import attachment
from api.json_bodies import unix
from api.openapi.routing import Router, fails_with
from api.pagination import Month, Page, Paged, page
from api.services import served, services_of
from billing.invoices.credits import CreditService
from billing.invoices.documents import InvoiceObject, file_name, invoice_object, invoice_pdf
from billing.invoices.errors import InvoiceNotFound, MonthSettled
from billing.invoices.models import CreditEntry
from billing.invoices.service import InvoiceService
from billing.invoices.views import InvoiceView
from billing.months import month_of, parse

router = Router(prefix="/v1/organization", tags=["Billing"])


class BalanceObject(TypedDict):
    """The prepaid balance."""

    object: Literal["organization.balance"]
    amount_micro_usd: int
    """What is left."""
    credits_micro_usd: int
    """What was paid in, less what was paid out."""
    used_micro_usd: int
    """What usage and invoices have taken."""
    currency: Literal["usd"]


class CreditObject(TypedDict):
    """A change of the prepaid balance."""

    id: str
    object: Literal["organization.credit"]
    kind: str
    """What the change comes from, such as `top_up`."""
    at: int
    """Unix seconds."""
    amount_micro_usd: int
    """Negative for what was taken out."""
    reason: str
    invoice_id: str | None
    """The invoice that the change comes from."""
    expires_at: int | None
    """Unix seconds when what is left of the credit expires."""


_PDF: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/pdf": {"schema": {"type": "string", "format": "binary"}}}}
}


@router.get("/invoices", operation_id="listInvoices")
async def list_invoices(request: Request, query: Paged) -> Page[InvoiceObject]:
    """Lists final invoices, without their lines."""
    tenant_id, invoices = await _authorize(request)
    found = await invoices.list(
        tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([invoice_object(one, with_lines=False) for one in found], query.limit)


@router.get("/invoices/preview", operation_id="previewInvoice")
@fails_with(MonthSettled(date(2026, 9, 1)))
async def preview_invoice(request: Request, month: Month = None) -> InvoiceObject:
    """Previews the invoice of a month as if nothing more were used. For a month that has its invoice, returns
    that.
    """
    tenant_id, invoices = await _authorize(request)
    return invoice_object(await _preview(invoices, tenant_id, month))


@router.get(
    "/invoices/preview/pdf", operation_id="previewInvoicePdf", response_class=Response, responses=_PDF
)
@fails_with(MonthSettled(date(2026, 9, 1)))
async def preview_invoice_pdf(request: Request, month: Month = None) -> Response:
    """Previews the invoice of a month as a PDF."""
    tenant_id, invoices = await _authorize(request)
    return await _document(await _preview(invoices, tenant_id, month))


@router.get("/invoices/{invoice_id}", operation_id="retrieveInvoice")
@fails_with(InvoiceNotFound("inv_1"))
async def retrieve_invoice(request: Request, invoice_id: str) -> InvoiceObject:
    """Retrieves an invoice with its lines, payments and credit notes."""
    tenant_id, invoices = await _authorize(request)
    return invoice_object(await invoices.find(tenant_id, invoice_id))


@router.get(
    "/invoices/{invoice_id}/pdf", operation_id="retrieveInvoicePdf", response_class=Response, responses=_PDF
)
@fails_with(InvoiceNotFound("inv_1"))
async def retrieve_invoice_pdf(request: Request, invoice_id: str) -> Response:
    """Retrieves an invoice as a PDF."""
    tenant_id, invoices = await _authorize(request)
    return await _document(await invoices.find(tenant_id, invoice_id))


@router.get("/balance", operation_id="retrieveBalance")
async def retrieve_balance(request: Request) -> BalanceObject:
    """Retrieves what is left of the prepaid balance."""
    caller = await authenticate(request, READ_BILLING)
    balance = await _credits(request).balance(caller.tenant_id)
    return {
        "object": "organization.balance",
        "amount_micro_usd": balance.amount,
        "credits_micro_usd": balance.credits,
        "used_micro_usd": balance.used,
        "currency": "usd",
    }


@router.get("/credits", operation_id="listCredits")
async def list_credits(request: Request, query: Paged) -> Page[CreditObject]:
    """Lists what was paid into the balance and taken out."""
    caller = await authenticate(request, READ_BILLING)
    found = await _credits(request).list(
        caller.tenant_id, after=query.after, limit=query.limit + 1, newest_first=query.newest_first
    )
    return page([_credit(one) for one in found], query.limit)


async def _authorize(request: Request) -> tuple[str, InvoiceService]:
    """Returns the tenant and the invoice service. Raises NotServing if this process has none."""
    caller = await authenticate(request, READ_BILLING)
    return caller.tenant_id, served(services_of(request).invoices, "Invoices")


def _credits(request: Request) -> CreditService:
    return served(services_of(request).credits, "Balances")


async def _preview(invoices: InvoiceService, tenant_id: str, month: str | None) -> InvoiceView:
    now = datetime.now(UTC)
    return await invoices.preview(tenant_id, month_of(now) if month is None else parse(month), now=now)


async def _document(invoice: InvoiceView) -> Response:
    body = await invoice_pdf(invoice)
    return Response(body, media_type="application/pdf", headers=attachment(f"{file_name(invoice)}.pdf"))


def _credit(entry: CreditEntry) -> CreditObject:
    return {
        "id": entry.id,
        "object": "organization.credit",
        "kind": entry.kind,
        "at": unix(entry.at),
        "amount_micro_usd": entry.amount,
        "reason": entry.reason,
        "invoice_id": entry.invoice_id,
        "expires_at": unix(entry.expires_at),
    }
