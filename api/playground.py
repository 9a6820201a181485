"""Serves chat completions for the console's playground, through the same pipeline as requests with an API
key.

Limits, billing and errors are the same. Usage has the user's id in place of a key's.
"""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from api.openai.pipeline import chat_completion
from api.openai.service_tier import requested_tier
from api.refusals import refused_calls_of
from api.services import Services
from billing.rates import Rate
from engine.protocol import PriorityClass
from tenants.errors import AccountSuspended
from tenants.user_contexts import UserContexts


class Playground:
    def __init__(self, services: Services, callers: UserContexts) -> None:
        self._services = services
        self._callers = callers
        self._refused_calls = refused_calls_of(services)

    async def terms(self, tenant_id: str, user_id: str) -> tuple[PriorityClass, Rate, Rate]:
        """Returns the service tier of requests that name none, and its current prices on the base model and
        on an adapter. Raises UserNotFound, DatabaseUnavailable.
        """
        caller = await self._callers.of(tenant_id, user_id)
        tier = requested_tier(None, caller)
        percent, now = caller.plan.terms[tier].price_percent, time.time()
        base, adapter = [
            await self._services.prices.rate(percent, now, on_adapter) for on_adapter in (False, True)
        ]
        return tier, base, adapter

    async def chat(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Answers `request`, whose body is a chat completion's, for this user, whom the caller has
        authenticated. Raises what `api.openai.routes` does; UserNotFound, AccountSuspended.
        """
        caller = await self._callers.of(tenant_id, user_id)
        request.state.log = {"tenant_id": tenant_id, "user_id": user_id}
        try:
            if caller.billing_state == "suspended":
                raise AccountSuspended
            return await chat_completion(request, self._services, caller)
        except Exception as error:
            if self._refused_calls is not None:
                self._refused_calls.note(request.scope, error, caller)
            raise
