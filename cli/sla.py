"""Defines `rootstock sla`: recomputes service-level sums.

Each command makes one call to the service; heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.months import read_month
from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from sla.rollups import RollupDifference

sla_app = typer.Typer(help="Service levels of tenants.", no_args_is_help=True)

HEADER = ("SUMS", "TENANT", "CLASS", "FROM", "WHAT", "EXPECTED", "FOUND")


@sla_app.callback()
def callback() -> None:
    """Keeps the subcommand's name required although there is only one."""


@sla_app.command("rederive")
def rederive(
    month: Annotated[str, typer.Option(help="Month as YYYY-MM in UTC.")],
    fix: Annotated[bool, typer.Option("--fix", help="Correct the sums that differ.")] = False,
    data: Data = None,
) -> None:
    """Recompute a month's hours and days from its minutes and print those that differ; exit 1 unless all
    match.
    """
    from billing.months import span
    from cli.service_access import Services, call
    from sla.rollups import rederive as sum_up

    start, end = span(read_month(month))

    async def work(services: Services) -> list[RollupDifference]:
        return await sum_up(services.database, start, end, fix=fix)

    found = call(data, work)
    if not found:
        print(f"{month}: every hour and day matches its minutes")
        return
    print_rows(HEADER, [difference_row(one) for one in found])
    print(f"{len(found)} sums {'corrected' if fix else 'differ'}")
    if not fix:
        raise typer.Exit(1)


def difference_row(difference: RollupDifference) -> tuple[str, ...]:
    """Returns the table row of a difference, with the sums and histograms that differ."""
    sides = zip(*difference.differing.values(), strict=True)
    return (
        difference.unit,
        difference.tenant_id,
        difference.service_tier,
        difference.start.astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
        " ".join(difference.differing),
        *(" ".join(_figure(one) for one in side) for side in sides),
    )


def _figure(value: Any) -> str:
    """Formats a sum, or the number of observations in a histogram."""
    if value is None:
        return "-"
    return str(sum(value) if isinstance(value, list) else value)
