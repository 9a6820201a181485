"""Serves the margin page. `billing.reports.margin` computes the margin."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.amounts import read_dollars
from admin.navigation import MARGIN
from admin.operator.margin import page
from admin.services import ConsoleServices
from admin.web import form_errors
from admin.web.console import Console
from admin.web.principals import Operator

_MONTH = re.compile(r"20\d\d-(0[1-9]|1[0-2])")


class MarginRoutes:
    """`/operator/margin`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._margins = services.operation.margins
        self._directory = services.operation.directory

    def routes(self) -> list[Route]:
        view = self._console.operator_view
        return [
            Route(MARGIN.path, view(self.show), methods=["GET"]),
            Route(f"{MARGIN.path}/adapters.csv", view(self.download), methods=["GET"]),
        ]

    async def download(self, request: Request, operator: Operator) -> Response:
        """The adapters of a report that has been computed, as CSV; else the page, which computes it."""
        given = {name: request.query_params.get(name, "") for name in ("month", "price", "gpus")}
        try:
            run = await self._margins.look(*_question(given, datetime.now(UTC)))
        except form_errors.FieldError:
            return await self.show(request, operator)
        if run.report is None:
            return await self.show(request, operator)
        name = f"cost-by-adapter-{run.report['month']}.csv"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(page.adapters_csv(run.report), media_type="text/csv", headers=headers)

    async def show(self, request: Request, operator: Operator) -> Response:
        now = datetime.now(UTC)
        months = page.months(now)
        given = {name: request.query_params.get(name, "") for name in ("month", "price", "gpus")}
        run, margin, errors, status = None, None, form_errors.NO_ERRORS, 200
        if given["price"]:
            try:
                run = await self._margins.look(*_question(given, now))
            except form_errors.FieldError as error:
                errors, status = form_errors.FormErrors({error.field: error.message}), 422
            else:
                if run.report is not None:
                    tenant_ids = {line["tenant_id"] for line in run.report["lines"]}
                    margin = page.margin(run.report, await self._directory.names([*tenant_ids]))
        return self._console.render(
            request,
            "operator/margin.html",
            status,
            principal=operator,
            section=MARGIN.id,
            run=run,
            page=margin,
            months=months,
            fields={**given, "month": given["month"] or months[0][0]},
            errors=errors,
            query=urlencode(given),
            is_pending=run is not None and run.report is None and not run.why_not,
        )


def _question(given: Mapping[str, str], now: datetime) -> tuple[str, int, int | None]:
    """Raises Refused."""
    month, gpus = given["month"] or f"{now:%Y-%m}", given["gpus"].strip()
    if _MONTH.fullmatch(month) is None or month > f"{now:%Y-%m}":
        raise form_errors.FieldError("month", "No margin is available for this month.")
    if gpus and not (gpus.isascii() and gpus.isdecimal() and len(gpus) < 6):
        raise form_errors.FieldError("gpus", "Enter a number, or leave it empty.")
    return month, read_dollars(given["price"], "price"), int(gpus) if gpus else None
