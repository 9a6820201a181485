"""Serves the search: a page, and JSON for the command palette."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from admin.search.page import MAX_QUERY_LEN, SearchPage
from admin.services import ConsoleServices
from admin.usage.labels import LabelLookup
from admin.usage.receipt_page import ReceiptPage
from admin.usage.refused_page import RefusedPage
from admin.usage.request_finder import RequestFinder
from admin.web.console import Console
from admin.web.principals import TenantUser
from admin.web.rendering import is_by_script


class SearchRoutes:
    """`/search`."""

    def __init__(self, console: Console, services: ConsoleServices) -> None:
        self._console = console
        catalogue, labels = services.adapters.catalogue, LabelLookup(services.adapters.catalogue)
        finder = RequestFinder(
            ReceiptPage(services.usage.receipts, labels), RefusedPage(services.refused, labels)
        )
        self._page = SearchPage(catalogue, services.names, finder)

    def routes(self) -> list[Route]:
        return [Route("/search", self._console.view(self.show), methods=["GET"])]

    async def show(self, request: Request, principal: TenantUser) -> Response:
        query = request.query_params.get("q", "")
        found = await self._page.find(principal.tenant_id, query, principal.may)
        if is_by_script(request):
            root = request.scope.get("root_path", "")
            return JSONResponse({"matches": [one.as_json(root) for one in found]})
        return self._console.render(
            request,
            "search.html",
            principal=principal,
            section="search",
            query=query[:MAX_QUERY_LEN],
            matches=found,
            max_query_len=MAX_QUERY_LEN,
        )
