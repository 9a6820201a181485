"""`rootstock sla`: service levels from the command line.

Owns names, options and help of these commands, and one call to the service per command. Everything heavy is
imported by the command that needs it.
"""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.months import read_month
from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from sla.rollups import RollupDifference

sla_app = typer.Typer(help="What tenants were served like.", no_args_is_help=True)

HEADER = ("SUMS", "TENANT", "CLASS", "FROM", "WHAT", "EXPECTED", "FOUND")


@sla_app.callback()
def callback() -> None:
    """A command's name is said even while there is one."""


@sla_app.command("rederive")
def rederive(
    month: Annotated[str, typer.Option(help="Which, as YYYY-MM in UTC.")],
    fix: Annotated[bool, typer.Option("--fix", help="Make the sums what the minutes say.")] = False,
    data: Data = None,
) -> None:
    """Sum a month's minutes up again, print each hour and day that differs; exit 1 when one is left so."""
    from billing.months import span
    from cli.operator import Services, call
    from sla.rollups import rederive as sum_up

    start, end = span(read_month(month))

    async def work(services: Services) -> list[RollupDifference]:
        return await sum_up(services.database, start, end, fix=fix)

    found = call(data, work)
    if not found:
        print(f"{month}: every hour and day is its minutes'")
        return
    print_rows(HEADER, [difference_row(one) for one in found])
    print(f"{len(found)} sums {'made right' if fix else 'differ'}")
    if not fix:
        raise typer.Exit(1)


def difference_row(difference: RollupDifference) -> tuple[str, ...]:
    """What differs, of the sums and histograms that do."""
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
    """Of a histogram, how many are in it."""
    if value is None:
        return "-"
    return str(sum(value) if isinstance(value, list) else value)
