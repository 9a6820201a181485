"""Authenticates callers with admin keys and reads their request bodies, for all routes of
`/v1/organization`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec
from fastapi import Request

from api.authentication import Permission, actor_of, authenticate
from api.errors import InvalidValue
from api.json_bodies import BodyDecoders, read_json
from api.organization.request_bodies import BODIES
from api.services import served, services_of
from tenants.actors import Actor
from tenants.context import TenantContext
from tenants.service import AccountServices

_FIELD = re.compile(r"([a-z_]+)\b")
_bodies = BodyDecoders(BODIES)

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """The caller of a route for admin keys, and the account services."""

    caller: TenantContext
    actor: Actor
    accounts: AccountServices

    @property
    def tenant_id(self) -> str:
        return self.caller.tenant_id


def accounts_of(request: Request) -> AccountServices:
    """Returns the account services. Raises NotServing if this process has none."""
    return served(services_of(request).accounts, "Accounts")


async def authenticated_admin(request: Request, needed: Permission) -> AdminCaller:
    """Returns the caller if the key has the permission. Raises what `authenticate` does."""
    caller = await authenticate(request, needed)
    return AdminCaller(caller, actor_of(request, caller), accounts_of(request))


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Returns the decoded body. Raises InvalidValue, UnsupportedParameter."""
    return _bodies.decode(kind, await read_json(request))


@contextmanager
def naming_fields() -> Iterator[None]:
    """Turns a service's ValueError, which begins with the field's name, into InvalidValue for that field."""
    try:
        yield
    except ValueError as error:
        found = _FIELD.match(str(error))
        raise InvalidValue(f"Invalid value: {error}.", None if found is None else found[1]) from error


def in_seconds(seconds: int | None) -> datetime | None:
    """Returns the time that many seconds from now."""
    return None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
