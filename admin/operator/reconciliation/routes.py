"""Serves the routes of reconciliation: its runs, their differences, and starting a run."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from admin.navigation import BOOKS
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import Operator
from billing.reconciliation import rendering
from billing.reconciliation.differences import CHECKS, NOT_THERE, Report

HERE = BOOKS.path
PAGE = 30
ROWS = 100
LONGEST = timedelta(days=366)


class BookRoutes:
    """Below `/operator/reconciliation`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._books = services.operation.books
        self._comparing = services.operation.comparing
        self._directory = services.operation.directory

    def routes(self) -> list[Route]:
        view = self._console.operator_view
        return [
            Route(HERE, view(self.show), methods=["GET"]),
            Route(f"{HERE}/run", self._console.operator_action(self.run), methods=["POST"]),
            Route(f"{HERE}/{{reconciliation}}", view(self.show_one), methods=["GET"]),
            Route(f"{HERE}/{{reconciliation}}/differences.csv", view(self.download), methods=["GET"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        after = request.query_params.get("after") or None
        found = await self._books.page(after=after, limit=PAGE + 1)
        current = await self._comparing.latest()
        today = datetime.now(UTC).date()
        return self._console.render(
            request,
            "operator/books.html",
            principal=operator,
            section=BOOKS.id,
            rows=found[:PAGE],
            next_after=found[PAGE - 1].id if len(found) > PAGE else None,
            is_first=after is None,
            current=current,
            checks=CHECKS,
            a_day=timedelta(days=1),
            since=today - timedelta(days=2),
            today=today,
        )

    async def run(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        """From a day on up to and with another."""
        start, end = _day("since", form), _day("until", form) + timedelta(days=1)
        if not timedelta(0) < end - start <= LONGEST:
            raise HTTPException(
                422, "The end date must be on or after the start date, and within a year of it."
            )
        await self._comparing.start(start, end, operator.acting(request))
        return self._console.redirect(request, HERE)

    async def show_one(self, request: Request, operator: Operator) -> Response:
        report = await self._report(request)
        chosen = request.query_params.get("check", "")
        if chosen and chosen not in CHECKS:
            raise HTTPException(404, "This check doesn't exist.")
        rows = [one for one in report.differences if not chosen or one.check == chosen]
        number = request.query_params.get("page", "1")
        page = int(number) if number.isascii() and number.isdecimal() and len(number) < 6 else 0
        if page < 1:
            raise HTTPException(404, "This page of the list doesn't exist.")
        rows_of_page = rows[ROWS * (page - 1) : ROWS * page]
        return self._console.render(
            request,
            "operator/books_one.html",
            principal=operator,
            section=BOOKS.id,
            report=report,
            checks=CHECKS,
            outcomes=[(check, report.outcomes[check]) for check in CHECKS if check in report.outcomes],
            not_there=NOT_THERE,
            a_day=timedelta(days=1),
            chosen=chosen,
            rows=rows_of_page,
            names=await self._directory.names([*{one.tenant_id for one in rows_of_page}]),
            page=page,
            has_more=len(rows) > ROWS * page,
            num_rows=len(rows),
        )

    async def download(self, request: Request, operator: Operator) -> Response:
        report = await self._report(request)
        headers = {"content-disposition": f'attachment; filename="{report.id}.csv"'}
        return Response(rendering.as_csv(report), media_type="text/csv", headers=headers)

    async def _report(self, request: Request) -> Report:
        name = request.path_params["reconciliation"]
        found = None if "\x00" in name else await self._books.find(name)
        if found is None:
            raise HTTPException(404, "This run doesn't exist.")
        return found


def _day(name: str, form: dict[str, str]) -> datetime:
    try:
        day = date.fromisoformat(form.get(name, ""))
        if not 2000 <= day.year < 2100:
            raise ValueError(day)
    except ValueError:
        raise HTTPException(422, "Enter dates such as 2026-12-31.") from None
    return datetime.combine(day, time(), UTC)
