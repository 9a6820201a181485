"""Serves the routes of batches: the list, one batch, its files, cancelling it."""

from __future__ import annotations

import re
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from admin.batches.page import BatchesPage
from admin.navigation import BATCHES
from admin.services import ConsoleServices
from admin.usage.labels import LabelLookup
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.request_info import after_of
from tenants.roles import Right

_BATCH_ID = re.compile(r"batch_[0-9a-zA-Z]{1,40}")


class BatchRoutes:
    """Below `/batches`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._batches = services.batches
        self._files = services.files
        self._pages = BatchesPage(services.batches)
        self._labels = LabelLookup(services.adapters.catalogue)

    def routes(self) -> list[Route]:
        view, action = self._console.view, self._console.action
        write: Right = "adapters.write"
        one = "/batches/{batch}"
        return [
            Route("/batches", view(self.show_list, BATCHES.right), methods=["GET"]),
            Route(one, view(self.show, BATCHES.right), methods=["GET"]),
            # Answers of models may be confidential: they are for roles that can run requests.
            Route(f"{one}/output", view(self.output, write), methods=["GET"]),
            Route(f"{one}/errors", view(self.errors, write), methods=["GET"]),
            Route(f"{one}/cancel", action(self.cancel, write), methods=["POST"]),
        ]

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, _BATCH_ID)
        found = await self._pages.index(principal.tenant_id, after)
        return self._page(request, "batches.html", principal, page=found, is_first=after is None)

    async def show(self, request: Request, principal: TenantUser) -> Response:
        batch = await self._pages.one(principal.tenant_id, request.path_params["batch"])
        labels = await self._labels.of(principal.tenant_id, [("key", batch.created_by)], principal.may)
        creator = labels.of("key", batch.created_by)
        return self._page(request, "batch.html", principal, batch=batch, creator=creator)

    async def output(self, request: Request, principal: TenantUser) -> Response:
        batch = await self._batches.get(principal.tenant_id, request.path_params["batch"])
        return await self._download(principal, batch.output_file_id)

    async def errors(self, request: Request, principal: TenantUser) -> Response:
        batch = await self._batches.get(principal.tenant_id, request.path_params["batch"])
        return await self._download(principal, batch.error_file_id)

    async def cancel(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        batch_id = request.path_params["batch"]
        await self._batches.cancel(principal.tenant_id, batch_id, principal.acting(request))
        message = "The batch is being cancelled. Requests that run already will finish first."
        return await self._console.redirect_with_message(request, principal, f"/batches/{batch_id}", message)

    async def _download(self, principal: TenantUser, file_id: str | None) -> Response:
        if file_id is None:
            raise HTTPException(404, "This batch has no such file.")
        file, chunks = await self._files.content(principal.tenant_id, file_id)
        headers = {
            "content-length": str(file.size),
            "content-disposition": f'attachment; filename="{file.filename}"',
        }
        return StreamingResponse(chunks, media_type="application/jsonl", headers=headers)

    def _page(
        self, request: Request, template: str, principal: TenantUser, status: int = 200, **context: Any
    ) -> Response:
        return self._console.render(
            request, template, status, principal=principal, section=BATCHES.id, **context
        )
