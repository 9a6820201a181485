"""The console's playground: chat for somebody who signed in, on the very path that requests with a key take.

So the same limits hold, the same bill has it, and the same words refuse it. Owns only who is asking: no key
is involved, and in usage the user's id stands where a key's would.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api.openai.pipeline import chat_completion
from api.openai.service_tier import requested_tier
from api.services import Services
from billing.rates import Rate
from engine.protocol import PriorityClass
from tenants.errors import AccountSuspended
from tenants.user_callers import UserCallers


class Playground:
    def __init__(self, services: Services, callers: UserCallers) -> None:
        self._services = services
        self._callers = callers

    async def terms(self, tenant_id: str, user_id: str) -> tuple[PriorityClass, Rate, Rate]:
        """The service tier of requests that name none, and what it costs now: on the base, and on an adapter.
        Raises UserNotFound, DatabaseUnavailable.
        """
        caller = await self._callers.of(tenant_id, user_id)
        tier = requested_tier(None, caller)
        percent, now = caller.plan.terms[tier].price_percent, time.time()
        base, adapter = [
            await self._services.prices.rate(percent, now, on_adapter) for on_adapter in (False, True)
        ]
        return tier, base, adapter

    async def chat(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Answer `request`, whose body is that of a chat completion, for this user. Whoever calls has seen to
        it that it is theirs. Raises what `api.openai.routes` does; UserNotFound, AccountSuspended.
        """
        caller = await self._callers.of(tenant_id, user_id)
        if caller.billing_state == "suspended":
            raise AccountSuspended
        request.state.log = {"tenant": tenant_id, "user_id": user_id}
        return await chat_completion(request, self._services, caller)
