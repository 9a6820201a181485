"""Defines `rootstock billing rederive`, `reverse` and `import-spool`: corrections of the ledger.

`rederive` recomputes sums from the ledger's rows, `reverse` takes back a wrong charge, `import-spool` bills
usage from a file that an engine set aside. Each command makes one call to the service; heavy modules are
imported by the command that needs them.
"""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CliError
from cli.months import read_month
from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from billing.importing import Imported
    from billing.rollups import RollupDifference

ledger_app = typer.Typer()

HEADER = ("SUMS", "TENANT", "FROM", "KEY", "EXPECTED", "FOUND")


@ledger_app.command("rederive")
def rederive(
    month: Annotated[str, typer.Option(help="Month as YYYY-MM in UTC.")],
    fix: Annotated[bool, typer.Option("--fix", help="Correct the sums that differ.")] = False,
    data: Data = None,
) -> None:
    """Recompute a month's sums from the ledger and print those that differ; exit 1 unless all are right."""
    from billing.rollups import rederive as sum_up
    from cli.service_access import Services, call

    first = read_month(month).date()

    async def work(services: Services) -> list[RollupDifference]:
        return await sum_up(services.database, first, fix=fix)

    found = call(data, work)
    if not found:
        print(f"{month}: every sum matches its rows")
        return
    print_rows(HEADER, [difference_row(one) for one in found])
    print(f"{len(found)} sums {'corrected' if fix else 'differ'}")
    if not fix:
        raise typer.Exit(1)


def difference_row(difference: RollupDifference) -> tuple[str, ...]:
    """Returns the table row of a difference, with the sums that differ."""
    names = [name for name, sum_ in difference.expected.items() if difference.found[name] != sum_]
    return (
        difference.unit,
        difference.tenant_id,
        difference.start.astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
        " ".join(value for value in difference.key.values() if value),
        *(
            " ".join(f"{name}={sums[name]}" for name in names)
            for sums in (difference.expected, difference.found)
        ),
    )


@ledger_app.command("reverse")
def reverse(
    tenant: Annotated[str, typer.Argument(help="Tenant's name.")],
    what: Annotated[str, typer.Argument(help="Id of a request (chatcmpl-..., cmpl-...) or of a charge.")],
    reason: Annotated[str, typer.Option(help="The reason; stored with the reversal.")],
    data: Data = None,
) -> None:
    """Reverse the charge of a request, or another charge, as a new row of today; print its id and amount."""
    from billing.request_ids import submitted_at_of
    from billing.reversals import ReversalService
    from cli.service_access import Services, call
    from tenants.actors import OPERATOR

    async def work(services: Services) -> tuple[str, int]:
        owner = await services.accounts.tenants.find_tenant(tenant)
        reversals = ReversalService(services.database)
        submitted_at = submitted_at_of(what)
        if submitted_at is None:
            made = await reversals.reverse_charge(owner.id, what, reason=reason, by=OPERATOR)
        else:
            made = await reversals.reverse_request(owner.id, what, submitted_at, reason=reason, by=OPERATOR)
        return made.id, made.cost

    reversal_id, cost = call(data, work)
    print(f"{reversal_id}  {cost} micro-USD")


@ledger_app.command("import-spool")
def import_spool(
    file: Annotated[
        Path, typer.Argument(help="A file that an engine set aside, DATA/engine/ENGINE_ID/*.damaged-*.")
    ],
    data: Data = None,
) -> None:
    """Bill what can be read of a damaged file of an engine's usage journal. Repeating it is harmless."""
    from billing.importing import import_events
    from cli.service_access import Services, call
    from engine.journal.salvage import salvage

    try:
        salvaged = salvage(file)
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}") from error

    async def work(services: Services) -> Imported:
        return await import_events(services.database, salvaged.events)

    imported = call(data, work)
    print(
        f"{file.name}: {imported.num_events} usage events of {imported.num_requests} requests could be read"
    )
    if salvaged.num_unreadable_bytes:
        print(f"{salvaged.num_unreadable_bytes} bytes could not be read")
    if salvaged.damage:
        print(f"the rest is lost: {salvaged.damage}")
    for reason in imported.refused:
        print(f"rejected an event: {reason}")
    known = imported.num_requests - imported.num_new - imported.num_grown
    print(
        f"added {imported.num_new} requests to the ledger, extended {imported.num_grown}, {known} were there "
        f"already; added {imported.completion_tokens} completion tokens"
    )
    print(f"Remove {file} to end the alert; `rootstock billing reconcile` lists what is still missing.")
