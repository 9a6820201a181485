"""The pages of adapters over HTTP, and what can be done on them.

Owns the paths, and that only admins delete. What pages show is `admin.pages`', what actions do is
`adapters`'. Every action is a form of its own and ends with the page it was on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from adapters.model_names import ADAPTER_ID
from admin import snippets
from admin.asking import after_of
from admin.frame import Changing, Frame, Serving, Visitor, origin_of
from admin.pages.adapters import AdaptersPage
from admin.pages.calibration import VersionPage
from admin.services import ConsoleServices

_EVENT_ID = re.compile(r"[a-z]{3}_[0-9a-z]{20,40}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_STEERED = {
    "pause": "Paused. It goes on from here when you resume it.",
    "resume": "Resumed.",
    "cancel": "It is being cancelled, and will not serve.",
}
# Charts and tables of a large model are long. Safe beside a token, since nothing of the request is in them:
# whoever sees the length of the answer cannot try out what makes it shorter.
_COMPRESSED = (Middleware(GZipMiddleware, minimum_size=4096),)


class AdapterRoutes:
    """Below `/adapters`."""

    def __init__(self, frame: Frame, services: ConsoleServices) -> None:
        self._frame = frame
        self._services = services.adapters
        self._list = AdaptersPage(services.adapters.catalogue, services.adapters.jobs)
        self._version = VersionPage(
            services.adapters.catalogue, services.adapters.jobs, services.adapters.reports
        )

    def routes(self) -> list[Route]:
        adapter, version = "/adapters/{adapter}", "/adapters/{adapter}/versions/{version}"
        return [
            self._page("/adapters", self.show_list),
            self._page(adapter, self.show),
            self._page(f"{adapter}/live", self.show_live),
            self._page(version, self.show_version, middleware=_COMPRESSED),
            self._page(f"{version}/report.json", self.download_report, middleware=_COMPRESSED),
            self._action(f"{adapter}/rollback", self.rollback),
            self._action(f"{adapter}/disable", self.disable),
            self._action(f"{adapter}/enable", self.enable),
            self._action(f"{adapter}/delete", self.delete),
            self._action(f"{version}/activate", self.activate),
            self._action(f"{version}/disable", self.disable_version),
            self._action(f"{version}/enable", self.enable_version),
            self._action(f"{adapter}/jobs/{{job}}/{{verb}}", self.steer),
        ]

    def _page(self, path: str, serve: Serving, middleware: Sequence[Middleware] = ()) -> Route:
        return Route(
            path, self._frame.serving(serve, "adapters.read"), methods=["GET"], middleware=middleware
        )

    def _action(self, path: str, change: Changing) -> Route:
        return Route(path, self._frame.changing(change), methods=["POST"])

    # Pages ------------------------------------------------------------------------------------------------

    async def show_list(self, request: Request, visitor: Visitor) -> Response:
        after = after_of(request, ADAPTER_ID)
        shown = await self._list.list(visitor.tenant_id, after)
        return self._frame.page(
            request,
            "adapters.html",
            visitor=visitor,
            section="adapters",
            page=shown,
            is_first=after is None,
            snippets=snippets.bring(origin_of(request), shown.base),
        )

    async def show(self, request: Request, visitor: Visitor) -> Response:
        return await self._detail(request, visitor, "adapter.html")

    async def show_live(self, request: Request, visitor: Visitor) -> Response:
        """The part of the page that changes while work goes on."""
        return await self._detail(request, visitor, "adapter_live.html")

    async def _detail(self, request: Request, visitor: Visitor, template: str) -> Response:
        before = request.query_params.get("before")
        if before is not None and _EVENT_ID.fullmatch(before) is None:
            raise HTTPException(404, "There is no such page of events.")
        shown = await self._list.detail(visitor.tenant_id, request.path_params["adapter"], before)
        return self._frame.page(
            request,
            template,
            visitor=visitor,
            section="adapters",
            page=shown,
            is_first=before is None,
            snippets=snippets.ask(origin_of(request), shown.model),
        )

    async def show_version(self, request: Request, visitor: Visitor) -> Response:
        shown = await self._version.gather(visitor.tenant_id, *_version_of(request))
        return self._frame.page(
            request, "adapter_version.html", visitor=visitor, section="adapters", page=shown
        )

    async def download_report(self, request: Request, visitor: Visitor) -> Response:
        adapter, number = _version_of(request)
        document = await self._version.document(visitor.tenant_id, adapter, number)
        if document is None:
            raise HTTPException(404, "This version has no report.")
        disposition = f'attachment; filename="calibration-{number}.json"'
        headers = {"content-disposition": disposition}
        return Response(document, media_type="application/json", headers=headers)

    # Actions ----------------------------------------------------------------------------------------------

    async def rollback(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        await self._services.adapters.rollback(
            visitor.tenant_id, request.path_params["adapter"], by=visitor.acting(request)
        )
        return await self._back(
            request, visitor, "Rolled back. New requests get the version that served before."
        )

    async def disable(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        await self._services.adapters.set_disabled(
            visitor.tenant_id, request.path_params["adapter"], True, by=visitor.acting(request)
        )
        return await self._back(
            request, visitor, "Disabled. New requests are refused until you enable it again."
        )

    async def enable(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        await self._services.adapters.set_disabled(
            visitor.tenant_id, request.path_params["adapter"], False, by=visitor.acting(request)
        )
        return await self._back(request, visitor, "Enabled. New requests are served again.")

    async def delete(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        """For good, so the name has to be typed."""
        self._frame.require_admin(visitor)
        shown = await self._services.catalogue.get(visitor.tenant_id, request.path_params["adapter"])
        if form.get("name", "").strip() != shown.adapter.name:
            raise HTTPException(400, "The name you typed is not this adapter's. Nothing was deleted.")
        await self._services.deletion.delete(visitor.tenant_id, shown.adapter.id, by=visitor.acting(request))
        return await self._frame.done(request, visitor, "/adapters", f"{shown.adapter.name} is deleted.")

    async def activate(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        await self._services.adapters.activate(
            visitor.tenant_id, *_version_of(request), by=visitor.acting(request)
        )
        return await self._back(
            request, visitor, f"Version {_version_of(request)[1]} is active: new requests get it."
        )

    async def disable_version(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        return await self._set_version(request, visitor, disabled=True)

    async def enable_version(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        return await self._set_version(request, visitor, disabled=False)

    async def _set_version(self, request: Request, visitor: Visitor, *, disabled: bool) -> Response:
        adapter, number = _version_of(request)
        await self._services.adapters.set_version_disabled(
            visitor.tenant_id, adapter, number, disabled, by=visitor.acting(request)
        )
        said = f"Version {number} is {'disabled' if disabled else 'enabled'}."
        return await self._frame.done(request, visitor, f"/adapters/{adapter}/versions/{number}", said)

    async def steer(self, request: Request, visitor: Visitor, form: dict[str, str]) -> Response:
        """Pause, resume or cancel a job."""
        verbs = {
            "pause": self._services.jobs.pause,
            "resume": self._services.jobs.resume,
            "cancel": self._services.jobs.cancel,
        }
        verb = verbs.get(request.path_params["verb"])
        if verb is None:
            raise HTTPException(404, "There is no such action.")
        await verb(visitor.tenant_id, request.path_params["job"], by=visitor.acting(request))
        return await self._back(request, visitor, _STEERED[request.path_params["verb"]])

    async def _back(self, request: Request, visitor: Visitor, message: str) -> Response:
        return await self._frame.done(
            request, visitor, f"/adapters/{request.path_params['adapter']}", message
        )


def _version_of(request: Request) -> tuple[str, int]:
    """Raises `HTTPException` for what is no number of a version."""
    number = request.path_params["version"]
    if _NUMBER.fullmatch(number) is None:
        raise HTTPException(404, "There is no such version.")
    return request.path_params["adapter"], int(number)
