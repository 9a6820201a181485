"""`POST /webhooks/stripe`: what Stripe tells us. The signature is the key.

Answered with 200 once the event is committed, and not before: whatever else is answered, Stripe sends it
again. Owns reading the body as it came, which is what is signed.
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
