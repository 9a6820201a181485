"""Runs `rootstock billing reconcile`: compares the books and reports differences.

The exit status is 0 when they balance, 1 when they do not. Heavy modules are imported by the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CliError, UsageError
from cli.months import read_month
from cli.printing import Data

if TYPE_CHECKING:
    from billing.reconciliation.differences import Report
    from cli.service_access import Services

books_app = typer.Typer()


class Form(StrEnum):
    """Format of a report."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


@books_app.command("reconcile")
def reconcile(
    month: Annotated[
        str | None, typer.Option(help="Month as YYYY-MM in UTC; of the current month, its days so far.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=366, help="Without --month: days up to today.")] = 2,
    form: Annotated[Form, typer.Option("--format", help="Format of the report.")] = Form.TEXT,
    out: Annotated[
        Path | None, typer.Option(help="File to write the report to. Default: standard output.")
    ] = None,
    data: Data = None,
) -> None:
    """Compare journal, ledger, sums, APIs, invoices and the payment provider; exit 1 when they differ.

    The report is stored, and the counts of the latest one are exported as metrics.
    """
    from cli.service_access import call

    start, end = span_of(month, days, datetime.now(UTC))

    async def work(services: Services) -> Report:
        return await _compared(services, start, end)

    report = call(data, work)
    shown = _rendered(report, form)
    if out is None:
        print(shown, end="" if form is Form.CSV else "\n")
    else:
        try:
            out.write_text(shown, encoding="utf-8", newline="")
        except OSError as error:
            raise CliError(f"--out: {error.strerror}: {out}") from error
    if not report.balanced:
        raise typer.Exit(1)


def span_of(month: str | None, days: int, now: datetime) -> tuple[datetime, datetime]:
    """Returns start and end of whole UTC days, today among them. Raises `UsageError`."""
    from billing.months import begin, following

    tomorrow = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    if month is None:
        return tomorrow - timedelta(days=days), tomorrow
    start = read_month(month)
    if start >= tomorrow:
        raise UsageError(f"--month {month} has not begun")
    return start, min(begin(following(start)), tomorrow)


async def _compared(services: Services, start: datetime, end: datetime) -> Report:
    from billing.payments.settings import StripeSettings
    from billing.reconciliation.service import ReconciliationService
    from billing.stripe_gateway import StripeGateway
    from cli.processes import settings_from_environment

    settings = settings_from_environment(StripeSettings, services.environment)
    gateway = StripeGateway(settings) if settings.enabled else None
    engines = engines_in(services.environment)
    try:
        service = ReconciliationService(services.database, services.redis, gateway, engines=engines)
        return await service.reconcile(start, end)
    finally:
        if gateway is not None:
            await gateway.close()


def engines_in(environment: Mapping[str, str]) -> list[str]:
    """Returns the endpoints of all engines from the workers' setting; else the one that is configured."""
    names = (
        "ROOTSTOCK_WORKER_ENGINE_ENDPOINTS",
        "ROOTSTOCK_JOBS_ENGINE_ENDPOINT",
        "ROOTSTOCK_ENGINE_ENDPOINT",
    )
    known = next((environment[name] for name in names if environment.get(name)), "")
    return [one.strip() for one in known.split(",") if one.strip()]


def _rendered(report: Report, form: Form) -> str:
    from billing.reconciliation import rendering

    forms = {Form.TEXT: rendering.as_text, Form.JSON: rendering.as_json, Form.CSV: rendering.as_csv}
    return forms[form](report)
