"""`rootstock billing rederive` and `reverse`: the ledger's sums made from its rows again, and what was billed
in error taken back.

Owns names, options and help of these commands, and one call to the service per command. Everything heavy is
imported by the command that needs it.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated

import typer

from cli.months import read_month
from cli.printing import Data, print_rows

if TYPE_CHECKING:
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
