"""`GET /v1/generations/{id}`: the receipt of one request, by the id of its answer.

Owns who may see which: an inference key those of its own project, an admin key all of its tenant.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from api.deps import READ_GENERATIONS, READ_USAGE, authenticate, services_of
from api.openapi import ERROR_RESPONSES

router = APIRouter(prefix="/v1/generations", responses=ERROR_RESPONSES, tags=["Usage"])


@router.get("/{generation_id}", operation_id="retrieveGeneration")
async def retrieve_generation(request: Request, generation_id: str) -> dict[str, Any]:
    """What a request used, at which prices, and what it costs. It is there about a second after the request
    was.
    """
    caller = await authenticate(request, READ_GENERATIONS, READ_USAGE)
    of_key = None if caller.kind == "admin" else (caller.project_id, caller.key_id)
    return await services_of(request).usage.receipts.of(caller.tenant_id, generation_id, of_key)
