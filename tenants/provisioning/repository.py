"""Queries SCIM tokens, and one tenant's provisioned users and groups. Compiles filters to SQL conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    String,
    and_,
    column,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncSession

from db.cursors import fetch_page
from db.repository import TenantRepository
from tenants.audit.repository import deleted_ids
from tenants.models import Tenant, User
from tenants.provisioning.errors import InvalidFilter
from tenants.provisioning.filters import (
    CASE_EXACT,
    Comparison,
    Filter,
    Junction,
    Not,
    Operator,
    Present,
    Within,
)
from tenants.provisioning.profiles import GroupName
from tenants.repository import is_id
from tenants.scim.models import ScimGroup, ScimGroupMember, ScimToken, ScimUser

_EMAILS = func.coalesce(
    ScimUser.attributes["emails"],
    func.jsonb_build_array(func.jsonb_build_object("value", User.email, "primary", True)),
)
_USER_COLUMNS: Mapping[str, Any] = {
    "id": User.id,
    "externalid": ScimUser.external_id,
    "username": func.coalesce(ScimUser.user_name, User.email),
    "displayname": func.coalesce(ScimUser.attributes["displayName"].astext, User.name),
    "name.formatted": ScimUser.attributes["name"]["formatted"].astext,
    "name.givenname": ScimUser.attributes["name"]["givenName"].astext,
    "name.familyname": ScimUser.attributes["name"]["familyName"].astext,
    "active": User.disabled_at.is_(None),
    "meta.created": User.created_at,
    "meta.lastmodified": func.coalesce(ScimUser.updated_at, User.created_at),
}
_GROUP_COLUMNS: Mapping[str, Any] = {
    "id": ScimGroup.id,
    "externalid": ScimGroup.external_id,
    "displayname": ScimGroup.display_name,
    "meta.created": ScimGroup.created_at,
    "meta.lastmodified": ScimGroup.updated_at,
}
FoundUser = Row[User, ScimUser | None]


class ScimTokenDirectory:
    """Finds the tenant of a token. Not scoped to a tenant."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def by_digest(self, digests: Collection[bytes]) -> ScimToken | None:
        """Returns the token with one of these digests if it is valid and its tenant is not disabled."""
        query = (
            select(ScimToken)
            .join(Tenant, Tenant.id == ScimToken.tenant_id)
            .where(
                ScimToken.digest.in_(digests), ScimToken.revoked_at.is_(None), Tenant.disabled_at.is_(None)
            )
        )
        return (await self._session.execute(query)).scalar_one_or_none()


class ScimTokenRepository(TenantRepository):
    async def list(self) -> Sequence[ScimToken]:
        """Returns the tokens that are not revoked, newest first."""
        query = self.select_own(ScimToken).where(ScimToken.revoked_at.is_(None))
        return (await self.session.execute(query.order_by(ScimToken.id.desc()))).scalars().all()

    async def lock(self, token_id: str) -> ScimToken | None:
        if not is_id(token_id):
            return None
        query = self.select_own(ScimToken).where(ScimToken.id == token_id, ScimToken.revoked_at.is_(None))
        return (await self.session.execute(query.with_for_update())).scalar_one_or_none()

    async def note_used(self, token_id: str, now: datetime, digest: bytes, secret_id: str) -> None:
        """Notes a use, and the token's digest under the current key secret."""
        query = update(ScimToken).where(ScimToken.id == token_id)
        await self.session.execute(query.values(last_used_at=now, digest=digest, secret_id=secret_id))


class ProvisioningRepository(TenantRepository):
    # Users ------------------------------------------------------------------------------------------------

    async def user(self, user_id: str) -> FoundUser | None:
        if not is_id(user_id):
            return None
        return (await self.session.execute(self._users().where(User.id == user_id))).one_or_none()

    async def users(
        self, condition: Filter | None, offset: int, limit: int
    ) -> tuple[int, Sequence[FoundUser]]:
        """Returns how many users match, and some of them in order of creation. Raises InvalidFilter."""
        query = self._users()
        if condition is not None:
            query = query.where(self._compiled(condition, _USER_COLUMNS, self._of_user))
        return await self._page(query, User.id, offset, limit)

    async def row(self, user_id: str) -> ScimUser | None:
        query = self.select_own(ScimUser).where(ScimUser.user_id == user_id)
        return (await self.session.execute(query)).scalar_one_or_none()

    async def user_name_taken(self, user_name: str, but: str | None = None) -> bool:
        """Whether another user of the tenant has the name, or signs in with it as their address."""
        taken = func.lower(_USER_COLUMNS["username"]) == user_name.lower()
        query = self._users().where(taken)
        if but is not None:
            query = query.where(User.id != but)
        return (await self.session.execute(query.limit(1))).first() is not None

    async def hold_users(self, user_ids: Collection[str]) -> Sequence[str]:
        """Returns those of the ids that are users, and keeps them until the transaction ends."""
        known = [user_id for user_id in user_ids if is_id(user_id)]
        query = self.select_own(User, User.id).where(User.id.in_(known), User.removed_at.is_(None))
        return (await self.session.execute(query.with_for_update(read=True))).scalars().all()

    async def groups_of(self, user_ids: Collection[str]) -> dict[str, list[GroupName]]:
        """Returns the groups of these users, by user."""
        member, found = ScimGroupMember, dict[str, list[GroupName]]()
        query = (
            self.select_own(member, member.user_id, ScimGroup.id, ScimGroup.display_name)
            .join(ScimGroup, ScimGroup.id == member.group_id)
            .where(member.user_id.in_(user_ids))
            .order_by(ScimGroup.id)
        )
        for user_id, group_id, name in await self.session.execute(query):
            found.setdefault(user_id, []).append(GroupName(group_id, name))
        return found

    def _users(self) -> Select[Any]:
        return (
            self.select_own(User, User, ScimUser)
            .outerjoin(ScimUser, ScimUser.user_id == User.id)
            .where(User.removed_at.is_(None))
        )

    # Groups -----------------------------------------------------------------------------------------------

    async def group(self, group_id: str, *, lock: bool = False) -> ScimGroup | None:
        if not is_id(group_id):
            return None
        query = self.select_own(ScimGroup).where(ScimGroup.id == group_id)
        return (await self.session.execute(query.with_for_update() if lock else query)).scalar_one_or_none()

    async def groups(
        self, condition: Filter | None, offset: int, limit: int
    ) -> tuple[int, Sequence[Row[ScimGroup]]]:
        """Returns how many groups match, and some of them in order of creation. Raises InvalidFilter."""
        query = self.select_own(ScimGroup)
        if condition is not None:
            query = query.where(self._compiled(condition, _GROUP_COLUMNS, self._of_group))
        return await self._page(query, ScimGroup.id, offset, limit)

    async def group_page(self, *, after: str | None, limit: int, newest_first: bool) -> Sequence[ScimGroup]:
        page = await fetch_page(
            self.session,
            self.select_own(ScimGroup),
            ScimGroup.id,
            after=after,
            limit=limit,
            newest_first=newest_first,
            deleted=deleted_ids(self.tenant_id, "group.deleted"),
        )
        return page.scalars().all()

    async def named_groups(self, names: Collection[str], user_id: str) -> tuple[set[str], set[str]]:
        """Returns the ids of the groups with these names, or ids of the identity provider, and those of the
        groups that the user is in. All of them are locked until the transaction ends.
        """
        lower = {one.lower() for one in names}
        named = or_(func.lower(ScimGroup.display_name).in_(lower), ScimGroup.external_id.in_([*names]))
        member = self.select_own(ScimGroupMember, ScimGroupMember.group_id)
        member = member.where(ScimGroupMember.user_id == user_id)
        query = self.select_own(ScimGroup).where(or_(named, ScimGroup.id.in_(member)))
        rows = (await self.session.execute(query.order_by(ScimGroup.id).with_for_update())).scalars().all()
        found = {row.id for row in rows if row.display_name.lower() in lower or row.external_id in names}
        return found, set((await self.session.execute(member)).scalars())

    async def group_name_taken(self, display_name: str, but: str | None = None) -> bool:
        query = self.select_own(ScimGroup).where(func.lower(ScimGroup.display_name) == display_name.lower())
        if but is not None:
            query = query.where(ScimGroup.id != but)
        return (await self.session.execute(query.limit(1))).first() is not None

    async def member_ids(self, group_ids: Collection[str]) -> dict[str, frozenset[str]]:
        """Returns the members of these groups, by group."""
        member = ScimGroupMember
        ids = func.array_agg(member.user_id)
        query = self.select_own(member, member.group_id, ids).where(member.group_id.in_(group_ids))
        rows = await self.session.execute(query.group_by(member.group_id))
        return {group_id: frozenset(user_ids) for group_id, user_ids in rows}

    async def num_members(self, group_ids: Collection[str]) -> dict[str, int]:
        """Returns how many members these groups have, by group."""
        member = ScimGroupMember
        query = self.select_own(member, member.group_id, func.count()).where(member.group_id.in_(group_ids))
        rows = await self.session.execute(query.group_by(member.group_id))
        return {group_id: count for group_id, count in rows}  # noqa: C416  rows, not pairs

    async def mapped_roles(self, user_ids: Collection[str]) -> dict[str, set[str]]:
        """Returns the roles that the groups of these users give them, by user."""
        member, found = ScimGroupMember, {user_id: set[str]() for user_id in user_ids}
        query = (
            self.select_own(member, member.user_id, ScimGroup.role)
            .join(ScimGroup, ScimGroup.id == member.group_id)
            .where(member.user_id.in_(user_ids), ScimGroup.role.is_not(None))
        )
        for user_id, role in await self.session.execute(query):
            found[user_id].add(role)
        return found

    async def remove_members(self, group_id: str, user_ids: Collection[str]) -> None:
        member = ScimGroupMember
        gone = self.delete_own(member).where(member.group_id == group_id, member.user_id.in_(user_ids))
        await self.session.execute(gone)

    async def delete_group(self, group_id: str) -> None:
        await self.session.execute(self.delete_own(ScimGroup).where(ScimGroup.id == group_id))

    # Filters ----------------------------------------------------------------------------------------------

    async def _page(self, query: Select[Any], key: Any, offset: int, limit: int) -> tuple[int, Sequence[Any]]:
        count = select(func.count()).select_from(query.with_only_columns(key).subquery())
        total = int((await self.session.execute(count)).scalar_one())
        if not limit:
            return total, []
        rows = await self.session.execute(query.order_by(key).offset(offset).limit(limit))
        return total, rows.all()

    def _compiled(self, condition: Filter, columns: Mapping[str, Any], special: Any) -> ColumnElement[bool]:
        match condition:
            case Junction(kind, parts):
                joined = [self._compiled(part, columns, special) for part in parts]
                return and_(*joined) if kind == "and" else or_(*joined)
            case Not(part):
                # A comparison with an attribute that has no value is false, not unknown.
                return not_(func.coalesce(self._compiled(part, columns, special), False))
            case Comparison(attribute, operator, value) if attribute in columns:
                return _compared(attribute, columns[attribute], operator, value)
            case Present(attribute) if attribute in columns:
                found = columns[attribute]
                filled = found.is_not(None)
                return and_(filled, found != "") if isinstance(found.type, String) else filled
            case _:
                return special(condition)

    def _of_user(self, condition: Filter) -> ColumnElement[bool]:
        """Compiles a condition on email addresses or groups. Raises InvalidFilter."""
        attribute, part = _of_values(condition)
        if attribute == "emails":
            one = func.jsonb_array_elements(_EMAILS).table_valued(column("email", JSONB)).render_derived()
            email = one.c.email
            parts = {
                "value": email["value"].astext,
                "type": email["type"].astext,
                "primary": email["primary"].astext == "true",
            }
            return exists(select(literal(1)).select_from(one).where(self._compiled(part, parts, _unknown)))
        if attribute == "groups":
            groups = {"value": ScimGroup.id, "display": ScimGroup.display_name}
            inner = (
                self.select_own(ScimGroupMember, ScimGroupMember.user_id)
                .join(ScimGroup, ScimGroup.id == ScimGroupMember.group_id)
                .where(self._compiled(part, groups, _unknown))
            )
            return User.id.in_(inner)
        return _unknown(condition)

    def _of_group(self, condition: Filter) -> ColumnElement[bool]:
        """Compiles a condition on members. Raises InvalidFilter."""
        attribute, part = _of_values(condition)
        if attribute != "members":
            return _unknown(condition)
        members = {"value": ScimGroupMember.user_id}
        inner = self.select_own(ScimGroupMember, ScimGroupMember.group_id)
        return ScimGroup.id.in_(inner.where(self._compiled(part, members, _unknown)))


def _of_values(condition: Filter) -> tuple[str, Filter]:
    """Returns a multi-valued attribute, and what one of its values must match: `emails co "x"` and
    `emails.value co "x"` are short for `emails[value co "x"]`.
    """
    match condition:
        case Within(attribute, part):
            return attribute, part
        case Comparison(attribute, operator, value):
            name, _, inner = attribute.partition(".")
            return name, Comparison(inner or "value", operator, value)
        case Present(attribute):
            name, _, inner = attribute.partition(".")
            return name, Present(inner or "value")
        case _:
            return "", condition


def _unknown(condition: Filter) -> ColumnElement[bool]:
    name = getattr(condition, "attribute", "this")
    raise InvalidFilter(f"{name[:80]!r} cannot be filtered by")


def _compared(attribute: str, found: Any, operator: Operator, value: Any) -> ColumnElement[bool]:
    """Raises InvalidFilter if the value is of another type than the attribute."""
    if attribute in ("active", "primary"):
        if not isinstance(value, bool) or operator not in ("eq", "ne"):
            raise InvalidFilter(f"{attribute} can be compared with eq or ne, to true or false")
        return found.is_(value) if operator == "eq" else found.is_not(value)
    if value is None and operator in ("eq", "ne"):
        return found.is_(None) if operator == "eq" else found.is_not(None)
    if not isinstance(value, str):
        raise InvalidFilter(f"{attribute} can be compared to text only: put it in double quotes")
    if attribute.startswith("meta."):
        return _ordered(found, operator, _moment(attribute, value))
    if attribute not in CASE_EXACT:
        found, value = func.lower(found), value.lower()
    if operator == "co":
        return found.contains(value, autoescape=True)
    if operator == "sw":
        return found.startswith(value, autoescape=True)
    if operator == "ew":
        return found.endswith(value, autoescape=True)
    return _ordered(found, operator, value)


def _ordered(found: Any, operator: Operator, value: Any) -> ColumnElement[bool]:
    match operator:
        case "eq":
            return found == value
        case "ne":
            return found.is_distinct_from(value)
        case "gt":
            return found > value
        case "ge":
            return found >= value
        case "lt":
            return found < value
        case "le":
            return found <= value
        case _:
            raise InvalidFilter(f"times cannot be compared with {operator}")


def _moment(attribute: str, value: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise InvalidFilter(f"{attribute} must be compared to a time such as 2026-01-31T12:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
