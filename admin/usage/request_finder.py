"""Finds a request of a tenant by its id: one that ran by the id of its response, a refused one by its
`x-request-id`.
"""

from __future__ import annotations

from urllib.parse import quote

from admin.usage import query
from admin.usage.receipt_page import ReceiptPage
from admin.usage.refused_page import RefusedPage
from billing.errors import GenerationNotFound
from billing.request_ids import submitted_at_of


class RequestFinder:
    def __init__(self, receipts: ReceiptPage, refused: RefusedPage) -> None:
        self._receipts = receipts
        self._refused = refused

    async def path(self, tenant_id: str, id: str) -> str | None:
        """Returns the path of the request's page, below the list of requests; None if there is no such
        request. Raises DatabaseUnavailable.
        """
        if "\x00" in id:
            return None
        if submitted_at_of(id) is not None:
            try:
                await self._receipts.document(tenant_id, id)
            except GenerationNotFound:
                return None
            return query.quoted(id)
        path = await self._refused.find(tenant_id, id[:200])
        return None if path is None else quote(path)
