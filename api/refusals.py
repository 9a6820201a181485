"""Records API calls that were answered with an error, for the tenant whose key they had.

Only errors come here: a request that succeeds costs nothing. Calls without a valid key belong to no tenant
and are not recorded.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request

from api.authentication import address_of, bearer_of
from api.edge import Scope
from api.errors import ClientGone, MissingApiKey, envelope, response_for
from api.services import Services
from db.errors import DatabaseUnavailable
from tenants.context import TenantContext
from tenants.errors import AddressNotAllowed, InvalidApiKey
from tenants.refusals.recorder import (
    MAX_MESSAGE,
    MICROSECONDS,
    RefusalRecorder,
    RefusedRequest,
    storable,
)
from tenants.resolver import KeyResolver

MAX_IDENTIFYING = 100
"""Refused calls whose keys are being looked up at once; of more, the caller stays unknown."""


class RefusedCalls:
    """Turns errors of requests into records of their tenants."""

    def __init__(self, recorder: RefusalRecorder, keys: KeyResolver) -> None:
        self._recorder = recorder
        self._keys = keys
        self._identifying: set[asyncio.Task[None]] = set()

    def note(self, scope: Scope, error: Exception, caller: TenantContext | None = None) -> None:
        """Records the error that a request is answered with. `caller`: if it did not come with a key.

        The caller of a request that was refused before its key was read, because of its path or the size of
        its body, is looked up afterwards.
        """
        if isinstance(error, ClientGone | InvalidApiKey | MissingApiKey):
            return
        caller = caller or scope["state"].get("key_owner")
        if caller is None and isinstance(error, AddressNotAllowed):
            caller = error.caller
        if caller is not None:
            self._recorder.record(_refused(scope, caller, error))
        elif scope["path"].startswith("/v1/") and len(self._identifying) < MAX_IDENTIFYING:
            task = asyncio.create_task(self._identify(scope, error), name="whose call was refused")
            self._identifying.add(task)
            task.add_done_callback(self._identifying.discard)

    async def _identify(self, scope: Scope, error: Exception) -> None:
        request = Request(scope)
        try:
            caller = await self._keys.resolve(bearer_of(request), address_of(request))
        except (MissingApiKey, InvalidApiKey, AddressNotAllowed, DatabaseUnavailable):
            return
        self._recorder.record(_refused(scope, caller, error))


def refused_calls_of(services: Services) -> RefusedCalls | None:
    """Returns None in a process that does not record refused requests."""
    return None if services.refusals is None else RefusedCalls(services.refusals, services.keys)


def _refused(scope: Scope, caller: TenantContext, error: Exception) -> RefusedRequest:
    state: dict[str, Any] = scope["state"]
    shown = envelope(error)["error"]
    model, service_tier = state.get("asked_for", ("", ""))
    return RefusedRequest(
        tenant_id=caller.tenant_id,
        at=time.time_ns() * MICROSECONDS // 1_000_000_000,
        request_id=state["request_id"],
        status=response_for(error).status,
        code=shown["code"] or "",
        message=storable(shown["message"], MAX_MESSAGE),
        key_id=caller.key_id,
        project_id=caller.project_id or "",
        user_id=caller.user_id or "",
        method=storable(scope["method"]),
        route=storable(getattr(scope.get("route"), "path", "")),
        path=storable(scope["path"]),
        model=storable(model),
        service_tier=storable(service_tier),
        generation_id=storable(state.get("log", {}).get("id")),
    )
