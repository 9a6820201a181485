"""Defines `rootstock price`: lists and sets prices.

Each command makes one call to the service; heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from cli.printing import Data, print_rows

price_app = typer.Typer(help="Prices, in micro-USD.", no_args_is_help=True)

HEADER = ("FROM", "INPUT", "CACHED INPUT", "OUTPUT", "ON AN ADAPTER", "GB-DAY", "CALIBRATION", "ID")
Amount = Annotated[int, typer.Option(min=0, help="Micro-USD per million tokens.")]


@price_app.command("list")
def price_list(data: Data = None) -> None:
    """List the versions of the prices, earliest first."""
    from billing.pricing import AMOUNTS, PriceService
    from cli.service_access import Services, call

    async def work(services: Services) -> list[tuple[str, ...]]:
        versions = await PriceService(services.database, services.redis).list()
        return [
            (
                version.effective_from.isoformat(timespec="seconds"),
                *(str(getattr(version, name)) for name in AMOUNTS),
                version.id,
            )
            for version in versions
        ]

    print_rows(HEADER, call(data, work))


@price_app.command("set")
def price_set(
    input: Amount,
    output: Amount,
    cached_input: Annotated[
        int | None,
        typer.Option(min=0, help="Per million input tokens found in the prefix cache. Default: --input."),
    ] = None,
    adapter_surcharge: Annotated[
        int,
        typer.Option(
            min=0, help="Surcharge per million tokens, input and output, of requests on an adapter."
        ),
    ] = 0,
    adapter_gb_day: Annotated[int, typer.Option(min=0, help="Per GB of packed adapters and UTC day.")] = 0,
    calibration_job: Annotated[int, typer.Option(min=0, help="Per successful calibration job.")] = 0,
    effective_from: Annotated[
        str | None, typer.Option("--from", help="ISO 8601 with a time zone. Default: now.")
    ] = None,
    data: Data = None,
) -> None:
    """Add a version of the prices and print its id. Usage is billed by the prices in effect when it
    was made.
    """
    from billing.pricing import PriceService
    from cli.errors import UsageError
    from cli.service_access import Services, call

    try:
        moment = datetime.fromisoformat(effective_from) if effective_from is not None else None
    except ValueError:
        raise UsageError(f"--from {effective_from} is not a time: write it as 2027-01-01T00:00:00Z") from None

    async def work(services: Services) -> str:
        made = await PriceService(services.database, services.redis).add(
            input=input,
            cached_input=input if cached_input is None else cached_input,
            output=output,
            adapter_surcharge=adapter_surcharge,
            adapter_gb_day=adapter_gb_day,
            calibration_job=calibration_job,
            effective_from=moment,
        )
        return made.id

    print(call(data, work))
