"""`rootstock billing rederive`, `reverse`, `import-spool`: the ledger's sums made from its rows again, what
was billed in error taken back, and usage read from a file that an engine set aside.

Owns names, options and help of these commands, and one call to the service per command. Everything heavy is
imported by the command that needs it.
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
    month: Annotated[str, typer.Option(help="Which, as YYYY-MM in UTC.")],
    fix: Annotated[bool, typer.Option("--fix", help="Make the sums what the rows say.")] = False,
    data: Data = None,
) -> None:
    """Sum a month of the ledger up again and print every sum that differs; exit 1 when one is left so."""
    from billing.rollups import rederive as sum_up
    from cli.operator import Services, call

    first = read_month(month).date()

    async def work(services: Services) -> list[RollupDifference]:
        return await sum_up(services.database, first, fix=fix)

    found = call(data, work)
    if not found:
        print(f"{month}: every sum is its rows'")
        return
    print_rows(HEADER, [difference_row(one) for one in found])
    print(f"{len(found)} sums {'made right' if fix else 'differ'}")
    if not fix:
        raise typer.Exit(1)


def difference_row(difference: RollupDifference) -> tuple[str, ...]:
    """What differs, of the sums that do."""
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
    tenant: Annotated[str, typer.Argument(help="Its name.")],
    what: Annotated[str, typer.Argument(help="A request's id (chatcmpl-..., cmpl-...) or a charge's.")],
    reason: Annotated[str, typer.Option(help="Why; it stays with the reversal.")],
    data: Data = None,
) -> None:
    """Take back what one request or charge was billed, as a new row of today, and print its id and amount."""
    from billing.request_ids import submitted_at_of
    from billing.reversals import ReversalService
    from cli.operator import Services, call
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
    """Bill what can still be read of a damaged file of an engine's usage journal. Harmless to repeat."""
    from billing.importing import import_events
    from cli.operator import Services, call
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
        print(f"an event was refused: {reason}")
    known = imported.num_requests - imported.num_new - imported.num_grown
    print(
        f"{imported.num_new} requests were added to the ledger, {imported.num_grown} grew and {known} were "
        f"there already; {imported.completion_tokens} completion tokens were added"
    )
    print(f"Remove {file} to end the alert; `rootstock billing reconcile` names what is still missing.")
