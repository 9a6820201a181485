"""What the routes of an organisation share: who asks, on whose behalf, and what they are given to ask.

Refuses to know what is asked.
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
from api.organization.bodies import BODIES
from api.services import served, services_of
from tenants.actors import Actor
from tenants.context import TenantContext
from tenants.service import AccountServices

_FIELD = re.compile(r"([a-z_]+)\b")
_bodies = BodyDecoders(BODIES)

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """Whoever holds an admin key, and the services of accounts."""

    caller: TenantContext
    actor: Actor
    accounts: AccountServices

    @property
    def tenant_id(self) -> str:
        return self.caller.tenant_id


def accounts_of(request: Request) -> AccountServices:
    """Raises NotServing where there are none."""
    return served(services_of(request).accounts, "Accounts")


async def asking(request: Request, needed: Permission) -> AdminCaller:
    """Raises what `authenticate` does."""
    caller = await authenticate(request, needed)
    return AdminCaller(caller, actor_of(request, caller), accounts_of(request))


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """Raises InvalidValue, UnsupportedParameter."""
    return _bodies.decode(kind, await read_json(request))


@contextmanager
def naming_fields() -> Iterator[None]:
    """Services refuse a value with a ValueError that begins with the field's name: say so to the caller."""
    try:
        yield
    except ValueError as error:
        found = _FIELD.match(str(error))
        raise InvalidValue(f"Invalid value: {error}.", None if found is None else found[1]) from error


def in_seconds(seconds: int | None) -> datetime | None:
    """The moment that many seconds from now."""
    return None if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
