"""Defines `rootstock billing`: reports of the ledger on the command line.

Each command makes one call to the service; heavy modules are imported by the command that needs them.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.printing import Data, print_rows

if TYPE_CHECKING:
    from billing.reports.margin import AdapterLine, Margin

billing_app = typer.Typer(help="The ledger: margin, reconciliation, corrections.", no_args_is_help=True)

ADAPTER_HEADER = (
    *("TENANT", "MODEL", "REQUESTS", "TOKENS", "GPU HOURS"),
    *("COST", "COST/M TOKENS", "REVENUE/M TOKENS"),
)
MARGIN_HEADER = ("TENANT", "CLASS", "REQUESTS", "INPUT", "OUTPUT", "GPU HOURS", "REVENUE", "COST", "MARGIN")


@billing_app.command("margin")
def margin(
    gpu_hour_price: Annotated[
        int,
        typer.Option(
            min=0,
            envvar="ROOTSTOCK_BILLING_GPU_HOUR_PRICE",
            help="Price of one GPU hour in micro-USD: 2500000 is 2.50 USD.",
        ),
    ],
    month: Annotated[
        str | None, typer.Option(help="Month as YYYY-MM in UTC. Default: the current month.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0,
            envvar="ROOTSTOCK_BILLING_GPUS",
            help="GPUs paid for during that time. Default: as many as engines have served.",
        ),
    ] = None,
    by_adapter: Annotated[
        bool, typer.Option("--by-adapter", help="Show cost per million tokens by adapter instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON, in micro-USD.")] = False,
    data: Data = None,
) -> None:
    """Show a month's revenue and serving cost by tenant and service tier or by adapter, in USD.

    A GPU's busy time comes from the ledger's timings; each request is charged the time it ran.
    """
    from billing.reports.margin import MarginReports
    from cli.service_access import Services, call

    async def work(services: Services) -> tuple[Margin, dict[str, str]]:
        now = datetime.now(UTC)
        chosen = month or now.strftime("%Y-%m")
        report = await MarginReports(services.database).report(chosen, gpu_hour_price, now=now, num_gpus=gpus)
        return report, {tenant.id: tenant.name for tenant in await services.accounts.tenants.list_tenants()}

    report, names = call(data, work)
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
        return
    if by_adapter:
        print_rows(ADAPTER_HEADER, [adapter_row(line, names) for line in report.adapters])
    else:
        print_rows(MARGIN_HEADER, margin_rows(report, names))
    print()
    print_rows(("", "FIGURE"), margin_figures(report))


def margin_rows(report: Margin, names: dict[str, str]) -> list[tuple[str, ...]]:
    """Returns a row for every tenant and tier, then one for idle time, then the total."""
    rows = [
        (
            names.get(line.tenant_id, line.tenant_id),
            line.service_tier or "(charges)",
            *map(str, (line.num_requests, line.input_tokens, line.output_tokens)),
            hours(line.gpu_us),
            *map(usd, (line.revenue, line.cost, line.margin)),
        )
        for line in report.lines
    ]
    idle = ("(idle)", "", "", "", "", hours(report.paid_us - report.busy_us))
    rows.append((*idle, usd(0), usd(report.idle_cost), usd(-report.idle_cost)))
    totals = [
        sum(getattr(line, name) for line in report.lines)
        for name in ("num_requests", "input_tokens", "output_tokens")
    ]
    cost = report.busy_cost + report.idle_cost
    total = ("(all)", "", *map(str, totals), hours(report.paid_us))
    rows.append((*total, *map(usd, (report.revenue, cost, report.margin))))
    return rows


def adapter_row(line: AdapterLine, names: dict[str, str]) -> tuple[str, ...]:
    """Returns the row of an adapter, or of a tenant's requests on base models."""
    dear = (line.per_million_tokens(line.cost), line.per_million_tokens(line.revenue))
    return (
        names.get(line.tenant_id, line.tenant_id),
        line.model or line.adapter_id or "(base models)",
        str(line.num_requests),
        str(line.tokens),
        hours(line.gpu_us),
        usd(line.cost),
        *("-" if amount is None else usd(amount) for amount in dear),
    )


def margin_figures(report: Margin) -> list[tuple[str, str]]:
    def figure(amount: int | None) -> str:
        return "-" if amount is None else usd(amount)

    throughput = report.tokens_per_busy_second
    return [
        ("month", f"{report.month}, until {report.until:%Y-%m-%d %H:%M} UTC"),
        ("GPUs", f"{report.num_gpus} at {usd(report.gpu_hour_price)} an hour"),
        ("tokens per busy GPU second", "-" if throughput is None else str(throughput)),
        ("revenue per million tokens", figure(report.per_million_tokens(report.revenue))),
        ("cost per million tokens", figure(report.per_million_tokens(report.busy_cost))),
        (
            "cost per million tokens, idle hours included",
            figure(report.per_million_tokens(report.busy_cost + report.idle_cost)),
        ),
    ]


def usd(amount: int) -> str:
    """Formats micro-USD as dollars with all six decimals."""
    sign, amount = ("-" if amount < 0 else ""), abs(amount)
    return f"{sign}{amount // 1_000_000}.{amount % 1_000_000:06d}"


def hours(microseconds: int) -> str:
    thousandths = microseconds * 1000 // 3_600_000_000
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"
