"""`GET /v1/generations/{id}`: returns the receipt of one request, by the id of its response.

An inference key can see those of its project, an admin key all of its tenant.
"""

from __future__ import annotations

from fastapi import Request

from api.authentication import READ_GENERATIONS, READ_USAGE, authenticate
from api.openapi.routing import Router, fails_with
from api.services import services_of
from billing.errors import GenerationNotFound
from billing.reports.receipts import ReceiptObject
from tenants.errors import AccountSuspended

router = Router(prefix="/v1/generations", tags=["Usage"], errors=(AccountSuspended(),))


@router.get("/{generation_id}", operation_id="retrieveGeneration")
@fails_with(GenerationNotFound("chatcmpl_1"))
async def retrieve_generation(request: Request, generation_id: str) -> ReceiptObject:
    """Retrieves the receipt of one request: what it used, at which prices, and what it cost. It is available
    about a second after the request. An inference key sees the requests of its own project, an admin key all.
    """
    caller = await authenticate(request, READ_GENERATIONS, READ_USAGE)
    of_key = None if caller.kind == "admin" else (caller.project_id, caller.key_id)
    return await services_of(request).usage.receipts.of(caller.tenant_id, generation_id, of_key)
