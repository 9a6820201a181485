"""Serves the routes of adapters: pages, activation, rollback, disabling, deletion and control of jobs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import overload

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.model_names import ADAPTER_ID
from admin import snippets
from admin.adapters.comparison_page import ComparisonPage
from admin.adapters.page import COLUMNS, AdaptersPage
from admin.adapters.shares_page import ShareRow, SharesPage
from admin.adapters.version_page import VersionPage
from admin.services import ConsoleServices
from admin.web import authorization
from admin.web.console import Action, Console, View
from admin.web.principals import TenantUser
from admin.web.request_info import after_of, origin_of
from admin.web.sorting import sort_of

_EVENT_ID = re.compile(r"[a-z]{3}_[0-9a-z]{20,40}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_STEERED = {
    "pause": "Paused. Resume it to continue from here.",
    "resume": "Resumed.",
    "cancel": "Cancelling.",
}
# Charts and tables of a large model are long. Safe beside a token, since nothing of the request is in them:
# an observer of the response's length cannot probe for the token (BREACH).
_COMPRESSED = (Middleware(GZipMiddleware, minimum_size=4096),)


class AdapterRoutes:
    """Below `/adapters`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        self._services = services.adapters
        self._list = AdaptersPage(
            services.adapters.catalogue, services.adapters.jobs, services.operation.engines
        )
        self._shares = SharesPage(services.adapters.sharing, services.usage)
        self._comparison = ComparisonPage(services.adapters.catalogue)
        self._version = VersionPage(
            services.adapters.catalogue,
            services.adapters.jobs,
            services.adapters.reports,
            services.operation.engines,
        )

    def routes(self) -> list[Route]:
        adapter, version = "/adapters/{adapter}", "/adapters/{adapter}/versions/{version}"
        return [
            self._page("/adapters", self.show_list),
            self._page(adapter, self.show),
            self._page(f"{adapter}/live", self.show_live),
            self._page(f"{adapter}/compare", self.compare),
            self._page(version, self.show_version, middleware=_COMPRESSED),
            self._page(f"{version}/report.json", self.download_report, middleware=_COMPRESSED),
            self._page(f"{version}/model.sig", self.download_signature),
            self._action(f"{adapter}/rollback", self.rollback),
            self._action(f"{adapter}/disable", self.disable),
            self._action(f"{adapter}/enable", self.enable),
            self._action(f"{adapter}/delete", self.delete),
            self._action(f"{version}/activate", self.activate),
            self._action(f"{version}/disable", self.disable_version),
            self._action(f"{version}/enable", self.enable_version),
            self._action(f"{adapter}/jobs/{{job}}/{{verb}}", self.steer),
        ]

    def _page(self, path: str, serve: View, middleware: Sequence[Middleware] = ()) -> Route:
        return Route(path, self._console.view(serve, "adapters.read"), methods=["GET"], middleware=middleware)

    def _action(self, path: str, change: Action) -> Route:
        return Route(path, self._console.action(change), methods=["POST"])

    # Pages ------------------------------------------------------------------------------------------------

    async def show_list(self, request: Request, principal: TenantUser) -> Response:
        after = after_of(request, ADAPTER_ID)
        sort = sort_of(request, COLUMNS)
        shown = await self._list.list(principal.tenant_id, after, sort)
        return self._console.render(
            request,
            "adapters.html",
            principal=principal,
            section="adapters",
            page=shown,
            received=await self._shares.received(principal.tenant_id) if after is None else [],
            is_first=after is None,
            snippets=snippets.bring(origin_of(request), shown.bases[0]),
        )

    async def show(self, request: Request, principal: TenantUser) -> Response:
        shared = await self._shares.of_adapter(principal.tenant_id, request.path_params["adapter"])
        return await self._detail(request, principal, "adapter.html", shared)

    async def show_live(self, request: Request, principal: TenantUser) -> Response:
        """The part of the page that changes while work goes on."""
        return await self._detail(request, principal, "adapter_live.html")

    async def _detail(
        self,
        request: Request,
        principal: TenantUser,
        template: str,
        shared: Sequence[ShareRow] = (),
    ) -> Response:
        before = request.query_params.get("before")
        if before is not None and _EVENT_ID.fullmatch(before) is None:
            raise HTTPException(404, "This page of activity doesn't exist.")
        shown = await self._list.detail(principal.tenant_id, request.path_params["adapter"], before)
        return self._console.render(
            request,
            template,
            principal=principal,
            section="adapters",
            page=shown,
            shared=shared,
            is_first=before is None,
            snippets=snippets.ask(origin_of(request), shown.model),
        )

    async def show_version(self, request: Request, principal: TenantUser) -> Response:
        shown = await self._version.gather(principal.tenant_id, *_version_of(request))
        return self._console.render(
            request, "adapter_version.html", principal=principal, section="adapters", page=shown
        )

    async def compare(self, request: Request, principal: TenantUser) -> Response:
        """Two versions beside each other, by the numbers `left` and `right` of the query."""
        left, right = (_number(request.query_params.get(name)) for name in ("left", "right"))
        adapter = request.path_params["adapter"]
        shown = await self._comparison.gather(principal.tenant_id, adapter, left, right)
        return self._console.render(
            request, "adapter_compare.html", principal=principal, section="adapters", page=shown
        )

    async def download_report(self, request: Request, principal: TenantUser) -> Response:
        adapter, number = _version_of(request)
        document = await self._version.document(principal.tenant_id, adapter, number)
        if document is None:
            raise HTTPException(404, "This version has no calibration report.")
        disposition = f'attachment; filename="calibration-{number}.json"'
        headers = {"content-disposition": disposition}
        return Response(document, media_type="application/json", headers=headers)

    async def download_signature(self, request: Request, principal: TenantUser) -> Response:
        adapter, number = _version_of(request)
        signature = await self._services.signatures.of_version(principal.tenant_id, adapter, number)
        headers = {"content-disposition": 'attachment; filename="model.sig"'}
        return Response(signature, media_type="application/json", headers=headers)

    # Actions ----------------------------------------------------------------------------------------------

    async def rollback(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """Asks as `activate` does if the previous version measured worse."""
        adapter = request.path_params["adapter"]
        previous = (await self._services.catalogue.get(principal.tenant_id, adapter)).adapter.previous_version
        if previous is not None:
            refusal = await self._refuse_regression(request, principal, form, adapter, previous)
            if refusal is not None:
                return refusal
        await self._services.adapters.rollback(principal.tenant_id, adapter, by=principal.acting(request))
        return await self._back(request, principal, "Rolled back. New requests use the previous version.")

    async def disable(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        await self._services.adapters.set_disabled(
            principal.tenant_id, request.path_params["adapter"], True, by=principal.acting(request)
        )
        return await self._back(
            request, principal, "Adapter disabled. New requests are rejected until you enable it again."
        )

    async def enable(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        await self._services.adapters.set_disabled(
            principal.tenant_id, request.path_params["adapter"], False, by=principal.acting(request)
        )
        return await self._back(request, principal, "Adapter enabled.")

    async def delete(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """For good, so the name has to be typed."""
        authorization.require_admin(principal)
        shown = await self._services.catalogue.get(principal.tenant_id, request.path_params["adapter"])
        if form.get("name", "").strip() != shown.adapter.name:
            raise HTTPException(400, "The name doesn't match, so nothing was deleted.")
        await self._services.deletion.delete(
            principal.tenant_id, shown.adapter.id, by=principal.acting(request)
        )
        return await self._console.redirect_with_message(
            request, principal, "/adapters", f"{shown.adapter.name} was deleted."
        )

    async def activate(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """A version that measured worse than the active one only if the form says that this is intended."""
        adapter, number = _version_of(request)
        refusal = await self._refuse_regression(request, principal, form, adapter, number)
        if refusal is not None:
            return refusal
        await self._services.adapters.activate(
            principal.tenant_id, adapter, number, by=principal.acting(request)
        )
        return await self._back(request, principal, f"Version {number} is now active.")

    async def _refuse_regression(
        self, request: Request, principal: TenantUser, form: dict[str, str], adapter: str, number: int
    ) -> Response | None:
        """Leads to the version's page, which shows the difference and asks, unless the form accepts it."""
        found = await self._version.regression(principal.tenant_id, adapter, number)
        if found is None or form.get("accept_regression") == str(found.active_version):
            return None
        said = f"Not activated: version {number} measured worse than version {found.active_version}."
        place = f"/adapters/{adapter}/versions/{number}"
        return await self._console.redirect_with_message(request, principal, place, said)

    async def disable_version(
        self, request: Request, principal: TenantUser, form: dict[str, str]
    ) -> Response:
        return await self._set_version(request, principal, disabled=True)

    async def enable_version(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        return await self._set_version(request, principal, disabled=False)

    async def _set_version(self, request: Request, principal: TenantUser, *, disabled: bool) -> Response:
        adapter, number = _version_of(request)
        await self._services.adapters.set_version_disabled(
            principal.tenant_id, adapter, number, disabled, by=principal.acting(request)
        )
        said = f"Version {number} {'disabled' if disabled else 'enabled'}."
        return await self._console.redirect_with_message(
            request, principal, f"/adapters/{adapter}/versions/{number}", said
        )

    async def steer(self, request: Request, principal: TenantUser, form: dict[str, str]) -> Response:
        """Pause, resume or cancel a job."""
        verbs = {
            "pause": self._services.jobs.pause,
            "resume": self._services.jobs.resume,
            "cancel": self._services.jobs.cancel,
        }
        verb = verbs.get(request.path_params["verb"])
        if verb is None:
            raise HTTPException(404, "This action doesn't exist.")
        await verb(principal.tenant_id, request.path_params["job"], by=principal.acting(request))
        return await self._back(request, principal, _STEERED[request.path_params["verb"]])

    async def _back(self, request: Request, principal: TenantUser, message: str) -> Response:
        return await self._console.redirect_with_message(
            request, principal, f"/adapters/{request.path_params['adapter']}", message
        )


def _version_of(request: Request) -> tuple[str, int]:
    """Raises `HTTPException` for what is no number of a version."""
    return request.path_params["adapter"], _number(request.path_params["version"])


@overload
def _number(written: str) -> int: ...
@overload
def _number(written: str | None) -> int | None: ...
def _number(written: str | None) -> int | None:
    """Raises `HTTPException` for what is no number of a version."""
    if written is None:
        return None
    if _NUMBER.fullmatch(written) is None:
        raise HTTPException(404, "This version doesn't exist.")
    return int(written)
