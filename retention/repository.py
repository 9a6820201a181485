"""Queries, counts, deletes and erases the rows of one organization that a rule is about."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    and_,
    column,
    delete,
    exists,
    func,
    literal,
    null,
    or_,
    select,
    table,
    tuple_,
    update,
)
from sqlalchemy import inspect as inspected
from sqlalchemy.ext.asyncio import AsyncSession

from adapters.models import AdapterVersion
from billing.request_metadata.models import StoredMetadata
from conversations.models import Conversation, StoredResponse
from db.repository import TenantRepository
from retention.rules import CLASS_RULES, PLAN_DAYS, Rule
from tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class Due:
    """Which rows of a rule are due."""

    before: datetime | None
    """Rows from before this moment; None: none by their age."""
    held: Collection[str]
    """Ids of objects on hold."""
    plan_days: int
    takes_all: bool = False
    """Every row, also in use: the organization is deleted, or stores nothing."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows that are due, locked until the transaction ends."""

    keys: Sequence[Sequence[Any]]
    ids: Sequence[str]
    span: tuple[datetime, datetime] | None
    object_keys: Sequence[str]


class SweepRepository(TenantRepository):
    """The rows of one organization, of any table with a rule."""

    async def which(self, asked: Sequence[tuple[Rule, Due]]) -> list[Rule]:
        """Returns the rules that have rows which are due, by one query."""
        if not asked:
            return []
        found = [
            exists(
                select(literal(1))
                .select_from(rule.model)
                .where(rule.model.tenant_id == self.tenant_id, *_conditions(rule, due))
            ).label(f"rule_{number}")
            for number, (rule, due) in enumerate(asked)
        ]
        row = (await self.session.execute(select(*found), {PLAN_DAYS: asked[0][1].plan_days})).one()
        return [rule for (rule, _), is_due in zip(asked, row, strict=True) if is_due]

    async def due(self, rule: Rule, due: Due, limit: int) -> Slice:
        """Locks up to `limit` rows that are due, the oldest first, without those that others have locked."""
        moment, keys = rule.moment, _keys(rule)
        query = (
            select(
                *(key.label(f"key_{number}") for number, key in enumerate(keys)),
                (null() if rule.row_id is None else rule.row_id).label("row_id"),
                moment.label("moment"),
                *(one.label(f"object_{number}") for number, one in enumerate(rule.objects)),
            )
            .select_from(rule.model)
            .where(rule.model.tenant_id == self.tenant_id, *_conditions(rule, due))
            .order_by(moment, *keys)
            .limit(limit)
            .with_for_update(skip_locked=True, of=rule.model)
        )
        rows = (await self.session.execute(query, {PLAN_DAYS: due.plan_days})).all()
        moments = [row.moment for row in rows if row.moment is not None]
        return Slice(
            [row[: len(keys)] for row in rows],
            [] if rule.row_id is None else [row.row_id for row in rows],
            (min(moments), max(moments)) if moments else None,
            [key for row in rows for key in _object_keys(row, len(rule.objects))],
        )

    async def count(self, rule: Rule, due: Due) -> tuple[int, int, datetime | None]:
        """Returns how many rows are due, how many of the same age are kept by holds on objects, and the time
        of the oldest that is due.
        """
        free = Due(due.before, (), due.plan_days, due.takes_all)
        is_due = and_(*_conditions(rule, due))
        query = (
            select(func.count().filter(is_due), func.count(), func.min(rule.moment).filter(is_due))
            .select_from(rule.model)
            .where(rule.model.tenant_id == self.tenant_id, *_conditions(rule, free))
        )
        num_due, num_all, oldest = (await self.session.execute(query, {PLAN_DAYS: due.plan_days})).one()
        return num_due, num_all - num_due, oldest

    async def cascaded(self, name: str, reference: str, ids: Sequence[str]) -> int:
        """Returns how many rows of the table `name` go with the rows of these ids."""
        other = table(name, column("tenant_id"), column(reference))
        query = select(func.count()).select_from(other)
        query = query.where(other.c.tenant_id == self.tenant_id, other.c[reference].in_(ids))
        return int((await self.session.execute(query)).scalar_one())

    async def remove(self, rule: Rule, keys: Sequence[Sequence[Any]]) -> None:
        """Deletes locked rows, or erases what they say."""
        chosen = tuple_(*_keys(rule)).in_(keys)
        own = rule.model.tenant_id == self.tenant_id
        without = {"synchronize_session": False}
        if rule.erases is None:
            await self.session.execute(delete(rule.model).where(own, chosen), execution_options=without)
        else:
            erased = update(rule.model).where(own, chosen).values(dict(rule.erases))
            await self.session.execute(erased, execution_options=without)

    async def num_stored_versions(self) -> int:
        """Returns how many adapter versions there still are, with what is stored of them."""
        query = self.select_own(AdapterVersion, func.count())
        return int((await self.session.execute(query)).scalar_one())


async def tenants_with_expired(session: AsyncSession) -> Sequence[str]:
    """Returns organizations with rows whose time is over whatever their periods say."""
    found = [
        select(rule.model.tenant_id).where(rule.expired).distinct()
        for rule in CLASS_RULES
        if rule.expired is not None
    ]
    for model in (StoredResponse, Conversation, StoredMetadata):
        silent = select(Tenant.id).where(Tenant.stores_nothing)
        found.append(select(model.tenant_id).where(model.tenant_id.in_(silent)).distinct())
    query = found[0].union(*found[1:])
    return sorted((await session.execute(query)).scalars())


async def database_clock(session: AsyncSession) -> datetime:
    """Returns the database's clock."""
    moment: datetime = (await session.execute(select(func.clock_timestamp()))).scalar_one()
    return moment


def _keys(rule: Rule) -> list[Any]:
    """Returns the primary key of the rule's table, except the tenant."""
    columns = [one for one in inspected(rule.model).primary_key if one.name != "tenant_id"]
    return [getattr(rule.model, _attribute(rule, one)) for one in columns] or [rule.model.tenant_id]


def _attribute(rule: Rule, one: Any) -> str:
    return str(inspected(rule.model).get_property_by_column(one).key)


def _conditions(rule: Rule, due: Due) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = [] if rule.where is None else [rule.where]
    if due.held:
        held = [*due.held]
        found += [or_(one.is_(None), one.not_in(held)) for one in rule.held_by]
    if due.takes_all:
        return found
    by_age = literal(False) if due.before is None else rule.moment < due.before
    if rule.has_ended is not None:
        by_age = and_(by_age, rule.has_ended)
    found.append(by_age if rule.expired is None else or_(by_age, rule.expired))
    return found


def _object_keys(row: Any, num: int) -> list[str]:
    """Returns the keys in the columns with objects: a text, an array of texts, or nothing."""
    values = [getattr(row, f"object_{number}") for number in range(num)]
    found = [value if isinstance(value, list) else [value] for value in values if value is not None]
    return [key for keys in found for key in keys]
