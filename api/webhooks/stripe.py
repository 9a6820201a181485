"""`POST /webhooks/stripe`: receives Stripe's events, authenticated by their signature.

Responds with 200 only once the event is committed; after any other response Stripe sends it again. The body
is read undecoded, because the signature covers its bytes.
"""

from __future__ import annotations

import structlog
from fastapi import Request

from api.errors import RouteNotFound
from api.json_bodies import read_json
from api.openapi.routing import Router
from api.services import services_of
from billing.payments.errors import BadSignature

router = Router(prefix="/webhooks", include_in_schema=False)
log = structlog.get_logger(__name__)


@router.post("/stripe")
async def stripe(request: Request) -> dict[str, bool]:
    payments = services_of(request).payments
    if payments is None or payments.webhooks is None:
        raise RouteNotFound("There is no POST /webhooks/stripe.")
    body = await read_json(request)
    try:
        new = await payments.webhooks.receive(request.headers.get("stripe-signature"), body)
    except BadSignature as error:
        log.warning("a webhook was refused", reason=error.why)
        raise
    return {"received": True, "new": new}
