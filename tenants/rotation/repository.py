"""Reads and writes rows by the key secret that they were made with, for all tenants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, bindparam, case, func, inspect, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from db.base import Base
from db.session import ReadSession, WriteSession
from tenants.identities.sealing import LABEL_LEN
from tenants.models import ApiKey, Invite, PasswordReset, SecondFactor
from tenants.scim.models import ScimToken


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed values."""

    what: str
    """What it holds, in the words of a report."""
    model: type[Base]
    column: str
    purpose: str
    whose: Callable[[Mapping[str, Any]], str]
    """Returns what authenticates a value, from its row's primary key and tenant."""


class SealedRows:
    """Reads and replaces the values of one sealed column, of all tenants."""

    def __init__(self, column: SealedColumn, label: bytes) -> None:
        self._table = cast(Table, inspect(column.model).local_table)
        self._sealed = self._table.c[column.column]
        self._key = [*self._table.primary_key.columns]
        is_current = func.substring(self._sealed, 1, LABEL_LEN) == label
        self._due = (self._sealed.is_not(None), ~is_current)

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[column.name] for column in self._key)

    async def num_due(self, session: ReadSession) -> int:
        """Returns how many values are not sealed under the current secret."""
        query = select(func.count()).select_from(self._table).where(*self._due)
        return (await session.execute(query)).scalar_one()

    async def due(
        self, session: ReadSession, after: tuple[Any, ...] | None, limit: int
    ) -> Sequence[Mapping[str, Any]]:
        """Returns rows whose value is not sealed under the current secret, by primary key: its columns,
        `tenant_id` and `sealed`.
        """
        columns = {column.name: column for column in (*self._key, self._table.c.tenant_id)}
        query = select(*columns.values(), self._sealed.label("sealed")).where(*self._due)
        if after is not None:
            query = query.where(tuple_(*self._key) > after)
        found = await session.execute(query.order_by(*self._key).limit(limit))
        return [{**row} for row in found.mappings()]

    async def replace(self, session: WriteSession, values: Sequence[dict[str, Any]]) -> int:
        """Replaces values (`old`, `new`, and `pk_...` for each column of the primary key) that are still the
        old ones; returns how many.
        """
        same = [column == bindparam(f"pk_{column.name}") for column in self._key]
        replacing = update(self._table).where(*same, self._sealed == bindparam("old"))
        replacing = replacing.values({self._sealed: bindparam("new")})
        num_replaced = 0
        for value in values:
            found = await session.execute(replacing, value)
            num_replaced += found.rowcount  # type: ignore[attr-defined]
        return num_replaced

    def parameters(self, row: Mapping[str, Any], new: bytes) -> dict[str, Any]:
        keys = {f"pk_{column.name}": row[column.name] for column in self._key}
        return {"old": row["sealed"], "new": new, **keys}


@dataclass(frozen=True, slots=True)
class HashedUse:
    """How many hashed credentials of a kind, that are valid now, were made with which secret."""

    what: str
    num_current: int
    num_other: int
    num_unknown: int
    """Not used since the release that notes secrets."""


class HashedCredentials:
    """Counts credentials by the secret of their HMACs, and names those of another one."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def uses(self, secret_id: str) -> list[HashedUse]:
        return [await self._use(what, model, secret_id, *conditions) for what, model, conditions in _hashed()]

    async def keys_of_others(self, secret_id: str, limit: int) -> Sequence[tuple[str, str, str]]:
        """Returns tenant, id and shown prefix of valid API keys that are not known to be made with this
        secret, the longest unused first.
        """
        query = (
            select(ApiKey.tenant_id, ApiKey.id, ApiKey.prefix)
            .where(*_valid_keys(), ApiKey.secret_id.is_distinct_from(secret_id))
            .order_by(ApiKey.last_used_at.nulls_first(), ApiKey.id)
            .limit(limit)
        )
        return [(row[0], row[1], row[2]) for row in (await self._session.execute(query)).all()]

    async def _use(
        self, what: str, model: Any, secret_id: str, *conditions: ColumnElement[bool]
    ) -> HashedUse:
        made_with = model.secret_id
        kind = case((made_with.is_(None), "unknown"), (made_with == secret_id, "current"), else_="other")
        query = select(kind, func.count()).select_from(model).where(*conditions).group_by(kind)
        found = {row[0]: row[1] for row in (await self._session.execute(query)).all()}
        return HashedUse(what, *(found.get(name, 0) for name in ("current", "other", "unknown")))


def _valid_keys() -> tuple[ColumnElement[bool], ...]:
    return (ApiKey.revoked_at.is_(None), ApiKey.expires_at.is_(None) | (ApiKey.expires_at > func.now()))


def _hashed() -> Sequence[tuple[str, Any, tuple[ColumnElement[bool], ...]]]:
    open_invite = (
        Invite.accepted_at.is_(None),
        Invite.deleted_at.is_(None),
        Invite.expires_at > func.now(),
    )
    return (
        ("API keys", ApiKey, _valid_keys()),
        ("SCIM tokens", ScimToken, (ScimToken.revoked_at.is_(None),)),
        ("invitations", Invite, open_invite),
        ("password reset tokens", PasswordReset, (PasswordReset.expires_at > func.now(),)),
        ("users' recovery codes", SecondFactor, (func.cardinality(SecondFactor.recovery) > 0,)),
    )
