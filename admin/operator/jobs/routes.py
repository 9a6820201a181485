"""Serves the routes of onboarding jobs of all tenants: listing, cancelling and retrying them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.jobs.errors import JobNotFound
from admin.navigation import JOBS
from admin.operator.jobs import page
from admin.services import ConsoleServices
from admin.web.console import Console
from admin.web.principals import Operator

HERE = JOBS.path


class JobRoutes:
    """Below `/operator/jobs`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._every = services.operation.jobs
        self._jobs = services.adapters.jobs

    def routes(self) -> list[Route]:
        action = self._console.operator_action
        return [
            Route(HERE, self._console.operator_view(self.show), methods=["GET"]),
            Route(f"{HERE}/{{job}}/cancel", action(self.cancel), methods=["POST"]),
            Route(f"{HERE}/{{job}}/retry", action(self.retry), methods=["POST"]),
        ]

    async def show(self, request: Request, operator: Operator) -> Response:
        group = request.query_params.get("show", "open")
        if group not in page.TABS:
            raise HTTPException(404, "This list of jobs doesn't exist.")
        after = request.query_params.get("after") or None
        found = await self._every.page(group, after=after, limit=page.PAGE + 1)
        counts = await self._every.counts()
        return self._console.render(
            request,
            "operator/jobs.html",
            principal=operator,
            section=JOBS.id,
            rows=[page.row(one) for one in found[: page.PAGE]],
            next_after=found[page.PAGE - 1].job.id if len(found) > page.PAGE else None,
            is_first=after is None,
            group=group,
            tabs=[(name, title, counts.get(name)) for name, title in page.TABS.items()],
            is_pending=bool(counts["running"] or counts["queued"]),
        )

    async def cancel(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        job_id, tenant_id = await self._whose(request)
        job = await self._jobs.cancel(tenant_id, job_id, by=operator.acting(request))
        message = "Job cancelled." if job.wanted is None else "Cancelling the job."
        return await self._console.redirect_with_message(request, operator, HERE, message)

    async def retry(self, request: Request, operator: Operator, form: dict[str, str]) -> Response:
        job_id, tenant_id = await self._whose(request)
        await self._jobs.retry(tenant_id, job_id, by=operator.acting(request))
        return await self._console.redirect_with_message(request, operator, HERE, "Job queued again.")

    async def _whose(self, request: Request) -> tuple[str, str]:
        job_id = request.path_params["job"]
        tenant_id = None if "\x00" in job_id else await self._every.owner(job_id)
        if tenant_id is None:
            raise JobNotFound(job_id)
        return job_id, tenant_id
