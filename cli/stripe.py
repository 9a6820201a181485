"""Defines `rootstock billing stripe`: shows what is sent to the payment provider and what needs a person.

Each command makes one call to the service; heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from billing.payments.settings import StripeSettings

stripe_app = typer.Typer(
    name="stripe", help="Usage and documents sent to the payment provider.", no_args_is_help=True
)

HEADER = ("ID", "TENANT", "HOUR", "MICRO-USD", "REASON")
Entry = Annotated[str, typer.Argument(help="The entry's id, from `rootstock billing stripe manual`.")]


@stripe_app.command("status")
def status(data: Data = None) -> None:
    """Count pending, sent and manual entries, and hours that are not planned yet."""
    from billing.payments.planning import MeterPlanning
    from billing.payments.repository import SendingQueue
    from cli.service_access import Services, call
    from db.session import EVERY_TENANT

    async def work(services: Services) -> list[tuple[str, str]]:
        async with services.database.read(EVERY_TENANT) as session:
            queue = SendingQueue(session)
            counts = [(state, str(await queue.count(state))) for state in ("pending", "manual", "sent")]
        unplanned = await MeterPlanning(services.database).unplanned(datetime.now(UTC))
        return [*counts, ("hours to plan", str(len(unplanned)))]

    print_rows(("STATE", "COUNT"), call(data, work))


@stripe_app.command("manual")
def manual(data: Data = None) -> None:
    """List meter events, invoices and credit notes that were rejected, are too old, or do not fit."""
    from billing.payments.manual import ManualQueue
    from cli.service_access import Services, call

    async def work(services: Services) -> list[tuple[str, ...]]:
        return [
            (
                entry.id,
                entry.tenant_id,
                "" if entry.hour is None else entry.hour.isoformat(timespec="hours"),
                str(entry.amount),
                entry.why,
            )
            for entry in await ManualQueue(services.database).list()
        ]

    print_rows(HEADER, call(data, work))


@stripe_app.command("send")
def send(entry: Entry, data: Data = None) -> None:
    """Send an entry: an event with the present time, a document in the next round."""
    from billing.payments.errors import PaymentError
    from billing.payments.manual import ManualQueue
    from billing.stripe_gateway import StripeGateway
    from cli.errors import CliError, UsageError
    from cli.service_access import Services, call

    async def work(services: Services) -> None:
        settings = stripe_settings(services)
        if not settings.enabled:
            raise UsageError("ROOTSTOCK_STRIPE_API_KEY is not set: set it to send entries")
        gateway = StripeGateway(settings)
        try:
            await ManualQueue(services.database).send(entry, gateway, datetime.now(UTC))
        except PaymentError as error:
            raise CliError(str(error)) from error
        finally:
            await gateway.close()

    call(data, work)


@stripe_app.command("waive")
def waive(
    entry: Entry,
    reason: Annotated[str, typer.Option(help="The reason it is not billed; recorded in the audit log.")],
    data: Data = None,
) -> None:
    """Waive an entry: it was settled otherwise, or is not collected."""
    from billing.payments.errors import PaymentError
    from billing.payments.manual import ManualQueue
    from cli.errors import CliError
    from cli.service_access import Services, call

    async def work(services: Services) -> None:
        try:
            await ManualQueue(services.database).waive(entry, reason, datetime.now(UTC))
        except PaymentError as error:
            raise CliError(str(error)) from error

    call(data, work)


def stripe_settings(services: object) -> StripeSettings:
    """Returns the Stripe settings of the service that the command works on, whatever this shell has set."""
    from billing.payments.settings import StripeSettings
    from cli.service_access import Services

    assert isinstance(services, Services)
    prefix = "ROOTSTOCK_STRIPE_"
    given = {
        name.removeprefix(prefix).lower(): value
        for name, value in services.environment.items()
        if name.startswith(prefix)
    }
    return StripeSettings(**given)  # type: ignore[arg-type]
