"""Defines `rootstock invoice` and `rootstock credit`: invoices, payments, credit notes and balances.

Each command makes one call to the services. Amounts are dollars with cents, or micro-USD; never a float.
Heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CliError, UsageError
from cli.printing import Data, print_rows
from cli.service_access import Services, call, minute

if TYPE_CHECKING:
    from billing.invoices.service import InvoiceService
    from billing.invoices.settings import InvoiceSettings
    from billing.invoices.views import InvoiceView

invoice_app = typer.Typer(help="Invoices: close months, show, verify and correct them.", no_args_is_help=True)
credit_app = typer.Typer(help="Balances: prepayments and granted credit.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="Tenant's name.")]
InvoiceId = Annotated[str, typer.Argument(help="The invoice's id, from `rootstock invoice list`.")]
Dollars = Annotated[str, typer.Argument(help="Amount in dollars, such as 12.50.")]
Out = Annotated[Path | None, typer.Option("--pdf", help="Write the invoice to this file as PDF.")]


class SettlementName(StrEnum):
    """How a credit note's amount is settled."""

    DUE = "due"
    CREDIT = "credit"
    REFUND = "refund"


class ModeName(StrEnum):
    POSTPAID = "postpaid"
    PREPAID = "prepaid"


class CreditName(StrEnum):
    TOP_UP = "top_up"
    GRANT = "grant"


@invoice_app.command("list")
def invoice_list(tenant: Tenant, data: Data = None) -> None:
    """List a tenant's invoices, newest first."""
    from billing.invoices.views import cents

    async def work(services: Services) -> list[tuple[str, ...]]:
        owner = await services.accounts.tenants.find_tenant(tenant)
        found = await invoice_service(services).list(owner.id, limit=1000)
        return [
            (
                one.name,
                f"{one.month:%Y-%m}",
                cents(one.total_cents),
                cents(max(0, one.due_cents)),
                one.status,
                minute(one.issued_at),
                one.id or "",
            )
            for one in found
        ]

    print_rows(("NUMBER", "MONTH", "TOTAL", "TO PAY", "STATUS", "ISSUED", "ID"), call(data, work))


@invoice_app.command("show")
def invoice_show(invoice: InvoiceId, pdf: Out = None, data: Data = None) -> None:
    """Show an invoice's lines."""

    async def work(services: Services) -> InvoiceView:
        invoices = invoice_service(services)
        return await invoices.find(await invoices.owner(invoice), invoice)

    _show(call(data, work), pdf)


@invoice_app.command("preview")
def invoice_preview(
    tenant: Tenant,
    month: Annotated[
        str | None, typer.Option(help="Month, such as 2026-11. Default: the current one.")
    ] = None,
    pdf: Out = None,
    data: Data = None,
) -> None:
    """Show the invoice a month would have if nothing more were used."""

    async def work(services: Services) -> InvoiceView:
        from billing.months import month_of, parse

        owner = await services.accounts.tenants.find_tenant(tenant)
        now = datetime.now(UTC)
        return await invoice_service(services).preview(
            owner.id, month_of(now) if month is None else parse(month), now=now
        )

    _show(call(data, work), pdf)


@invoice_app.command("close")
def invoice_close(data: Data = None) -> None:
    """Close the months that are due, as the worker does every hour."""

    async def work(services: Services) -> list[str]:
        from billing.invoices.closing import JournalAge, MonthClose

        close = MonthClose(services.database, invoice_service(services), JournalAge(services.redis))
        closed = await close.close_due(datetime.now(UTC))
        if closed.waiting_for is not None:
            raise CliError(f"usage written at {minute(closed.waiting_for)} is not in the ledger yet")
        return [f"{month:%Y-%m}" for month in closed.months]

    print(", ".join(call(data, work)) or "nothing is due")


@invoice_app.command("verify")
def invoice_verify(
    tenant: Annotated[str | None, typer.Argument(help="Tenant's name. Default: all tenants.")] = None,
    data: Data = None,
) -> None:
    """Recompute every invoice from the ledger's rows; exit 1 if one differs."""

    async def work(services: Services) -> list[tuple[str, ...]]:
        from billing.invoices.verification import InvoiceVerification

        owner = None
        if tenant is not None:
            owner = (await services.accounts.tenants.find_tenant(tenant)).id
        return [
            (one.tenant_id, one.invoice, one.what, str(one.expected), str(one.found))
            for one in await InvoiceVerification(services.database).verify(owner)
        ]

    wrong = call(data, work)
    if wrong:
        print_rows(("TENANT", "WHERE", "WHAT", "EXPECTED", "FOUND"), wrong)
        raise typer.Exit(1)
    print("every invoice matches the ledger")


@invoice_app.command("paid")
def invoice_paid(
    invoice: InvoiceId,
    amount: Dollars,
    reference: Annotated[str, typer.Option(help="The payment's id; a repeated id counts once.")],
    data: Data = None,
) -> None:
    """Record a payment that did not come through the payment provider."""

    async def work(services: Services) -> None:
        from billing.invoices.service import record_payment

        owner = await invoice_service(services).owner(invoice)
        async with services.database.write(owner) as session:
            await record_payment(
                session, owner, invoice, "payment", _amount(amount, 2), reference, at=datetime.now(UTC)
            )

    call(data, work)
    print(f"recorded a payment of {amount} USD")


@invoice_app.command("credit-note")
def invoice_credit_note(
    invoice: InvoiceId,
    amount: Dollars,
    reason: Annotated[str, typer.Option(help="The reason; printed on the credit note.")],
    settlement: Annotated[
        SettlementName,
        typer.Option(help="due: reduces what is owed. credit: to the balance. refund: pays back."),
    ] = SettlementName.DUE,
    data: Data = None,
) -> None:
    """Credit an invoice in part or in full, and print the credit note's number."""

    async def work(services: Services) -> int:
        from billing.invoices.corrections import CreditNotes
        from tenants.actors import OPERATOR

        owner = await invoice_service(services).owner(invoice)
        notes = CreditNotes(services.database, services.redis)
        note = await notes.issue(
            owner, invoice, _amount(amount, 2), settlement.value, reason, OPERATOR, now=datetime.now(UTC)
        )
        return note.number

    from billing.invoices.views import note_name

    print(note_name(call(data, work)))


@credit_app.command("add")
def credit_add(
    tenant: Tenant,
    amount: Dollars,
    reference: Annotated[str, typer.Option(help="What the credit is for; a repeated reference counts once.")],
    kind: Annotated[CreditName, typer.Option(help="top_up: prepaid. grant: given.")] = CreditName.GRANT,
    reason: Annotated[str, typer.Option(help="Shown to the tenant.")] = "",
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires. Default: never.")] = None,
    data: Data = None,
) -> None:
    """Add money to a tenant's balance, and print the new balance."""

    async def work(services: Services) -> int:
        from billing.invoices.credits import CreditService
        from tenants.actors import OPERATOR

        owner, now = await services.accounts.tenants.find_tenant(tenant), datetime.now(UTC)
        credits = CreditService(services.database, services.redis)
        ends = None if days is None else now + timedelta(days=days)
        await credits.add(
            owner.id, kind.value, _amount(amount, 6), reference, OPERATOR, now=now, reason=reason,
            expires_at=ends,
        )  # fmt: skip
        return (await credits.balance(owner.id)).amount

    from billing.invoices.views import dollars

    print(dollars(call(data, work)))


@credit_app.command("pay-back")
def credit_pay_back(
    tenant: Tenant,
    amount: Dollars,
    reference: Annotated[
        str, typer.Option(help="The payment made outside; a repeated reference counts once.")
    ],
    reason: Annotated[str, typer.Option(help="Shown to the tenant.")] = "",
    data: Data = None,
) -> None:
    """Record a payment to a tenant out of its balance, such as its earnings; print the new balance."""

    async def work(services: Services) -> int:
        from billing.invoices.credits import CreditService
        from tenants.actors import OPERATOR

        owner = await services.accounts.tenants.find_tenant(tenant)
        credits = CreditService(services.database, services.redis)
        await credits.pay_back(
            owner.id, _amount(amount, 6), reference, OPERATOR, now=datetime.now(UTC), reason=reason
        )
        return (await credits.balance(owner.id)).amount

    from billing.invoices.views import dollars

    print(dollars(call(data, work)))


@credit_app.command("list")
def credit_list(tenant: Tenant, data: Data = None) -> None:
    """List the entries of a tenant's balance; the last line is what is left."""

    async def work(services: Services) -> list[tuple[str, ...]]:
        from billing.invoices.credits import CreditService
        from billing.invoices.views import dollars

        owner = await services.accounts.tenants.find_tenant(tenant)
        credits = CreditService(services.database, services.redis)
        balance = await credits.balance(owner.id)
        entries = await credits.list(owner.id, limit=1000, newest_first=False)
        rows = [
            (minute(one.at), one.kind, dollars(one.amount), minute(one.expires_at), one.reference)
            for one in entries
        ]
        return [
            *rows,
            ("", "usage not invoiced yet", dollars(-balance.used), "", ""),
            ("", "left", dollars(balance.amount), "", ""),
        ]

    print_rows(("AT", "KIND", "USD", "EXPIRES", "REFERENCE"), call(data, work))


@credit_app.command("mode")
def credit_mode(
    tenant: Tenant,
    mode: Annotated[ModeName, typer.Argument(help="prepaid: usage is charged to the balance.")],
    data: Data = None,
) -> None:
    """Bill a tenant in advance (prepaid) or by invoice (postpaid), from this minute on."""

    async def work(services: Services) -> None:
        from billing.invoices.accounts import BillingAccounts
        from tenants.actors import OPERATOR

        owner = await services.accounts.tenants.find_tenant(tenant)
        accounts = BillingAccounts(services.database, services.redis)
        await accounts.set_mode(owner.id, mode.value, OPERATOR, now=datetime.now(UTC))

    call(data, work)
    print(f"{tenant} is {mode.value}")


def invoice_service(services: Services) -> InvoiceService:
    """Returns an invoice service with the settings of the service that the command works on."""
    from billing.invoices.announcing import announce
    from billing.invoices.service import InvoiceService
    from billing.payments.documents import queue_invoice
    from cli.stripe import stripe_settings

    stripe = stripe_settings(services)
    return InvoiceService(
        services.database,
        services.redis,
        _settings(services),
        on_final=[announce, queue_invoice] if stripe.enabled else [announce],
        minimum_cents=stripe.smallest_charge,
    )


def _settings(services: Services) -> InvoiceSettings:
    """Returns the invoice settings of the service that the command works on, whatever this shell has set."""
    from billing.invoices.settings import InvoiceSettings

    prefix = "ROOTSTOCK_INVOICE_"
    given = {
        name.removeprefix(prefix).lower(): value
        for name, value in services.environment.items()
        if name.startswith(prefix)
    }
    return InvoiceSettings(**given)  # type: ignore[arg-type]


def _amount(text: str, places: int) -> int:
    """Parses dollars into units of 10**-places: cents or micro-USD. Raises UsageError."""
    try:
        amount = Decimal(text).scaleb(places)
        whole = int(amount)
    except (InvalidOperation, ValueError, OverflowError):
        raise UsageError(f"{text!r} is not an amount in dollars: write it as 12.50") from None
    if amount != whole:
        raise UsageError(f"{text} has more than {places} decimal places: round it")
    return whole


def _show(invoice: InvoiceView, pdf: Path | None) -> None:
    from billing.invoices.rendering import quantity, render
    from billing.invoices.views import cents, dollars

    if pdf is not None:
        pdf.write_bytes(render(invoice))
        print(pdf)
        return
    rows = [(line.description, quantity(line), dollars(line.amount)) for line in invoice.lines]
    print_rows(
        (invoice.name, "QUANTITY", "USD"),
        [*rows, (f"Total for {invoice.month:%B %Y}", "", cents(invoice.total_cents))],
    )
