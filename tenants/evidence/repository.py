"""Queries who has access to what, of all tenants and of the service itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Row,
    Select,
    String,
    case,
    cast,
    extract,
    func,
    literal,
    null,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncSession

from tenants.audit.models import OPERATOR_CHAIN, AuditEntry
from tenants.models import (
    ApiKey,
    Identity,
    Project,
    ProjectMember,
    SecondFactor,
    ServiceAccount,
    Tenant,
    User,
)
from tenants.scim.models import ScimToken, ScimUser
from tenants.signing_keys.models import TenantSigningKey

SIGN_IN = "login.succeeded"


class EvidenceRepository:
    """All queries return rows in a fixed order, so that two exports can be compared."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def members(self) -> Sequence[Row[Any]]:
        """Returns the users who are members now, operators included, with how they sign in and when they last
        did.
        """
        last = (
            select(AuditEntry.at, AuditEntry.details["by"].astext.label("by"))
            .where(
                AuditEntry.tenant_id == User.tenant_id,
                AuditEntry.type == SIGN_IN,
                AuditEntry.target_id == User.id,
            )
            .order_by(AuditEntry.seq.desc())
            .limit(1)
            .lateral("last_sign_in")
        )
        issuers = (
            select(func.string_agg(Identity.issuer, aggregate_order_by(literal(" "), Identity.issuer)))
            .where(Identity.user_id == User.id)
            .scalar_subquery()
        )
        query = (
            select(
                User.tenant_id,
                Tenant.name,
                User.id,
                User.email,
                User.name,
                User.role,
                _state(User.disabled_at.is_not(None), "suspended"),
                _yes(User.password_hash.is_not(None)),
                _yes(SecondFactor.confirmed_at.is_not(None)),
                func.coalesce(issuers, ""),
                _yes(ScimUser.user_id.is_not(None)),
                User.created_at,
                last.c.at,
                func.coalesce(last.c.by, ""),
            )
            .join(Tenant, Tenant.id == User.tenant_id)
            .outerjoin(SecondFactor, SecondFactor.user_id == User.id)
            .outerjoin(ScimUser, ScimUser.user_id == User.id)
            .outerjoin(last, true())
            .where(User.removed_at.is_(None))
            .order_by(User.tenant_id, User.id)
        )
        return await self._all(query)

    async def project_members(self) -> Sequence[Row[Any]]:
        """Returns users and service accounts by the projects that they have a role in."""
        people = (
            select(
                ProjectMember.tenant_id,
                Project.id,
                Project.name,
                ProjectMember.user_id,
                User.email,
                ProjectMember.role,
                ProjectMember.added_at,
            )
            .join(Project, Project.id == ProjectMember.project_id)
            .join(User, User.id == ProjectMember.user_id)
            .where(User.removed_at.is_(None), Project.archived_at.is_(None))
        )
        accounts = (
            select(
                ServiceAccount.tenant_id,
                Project.id,
                Project.name,
                ServiceAccount.id,
                ServiceAccount.name,
                ServiceAccount.role,
                ServiceAccount.created_at,
            )
            .join(Project, Project.id == ServiceAccount.project_id)
            .where(ServiceAccount.deleted_at.is_(None), Project.archived_at.is_(None))
        )
        return await self._all(people.union_all(accounts).order_by("tenant_id", Project.id, "user_id"))

    async def keys(self) -> Sequence[Row[Any]]:
        """Returns the API keys, SCIM tokens and public keys for signing adapters that are valid now."""
        age = _days_since(ApiKey.created_at)
        keys: Select[Any] = (
            select(
                ApiKey.tenant_id,
                Tenant.name,
                ApiKey.id.label("key_id"),
                ApiKey.prefix,
                ApiKey.name,
                ApiKey.kind,
                func.coalesce(ApiKey.project_id, ""),
                func.coalesce(ApiKey.user_id, ApiKey.service_account_id, ""),
                func.array_to_string(ApiKey.scopes, " "),
                ApiKey.created_at,
                age,
                ApiKey.last_used_at,
                ApiKey.expires_at,
            )
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Project, Project.id == ApiKey.project_id)
            .where(
                ApiKey.revoked_at.is_(None),
                ApiKey.expires_at.is_(None) | (ApiKey.expires_at > func.now()),
                Project.archived_at.is_(None),
            )
        )
        empty = literal("", String)
        tokens = (
            select(
                ScimToken.tenant_id,
                Tenant.name,
                ScimToken.id,
                ScimToken.prefix,
                ScimToken.name,
                literal("scim", String),
                empty,
                empty,
                empty,
                ScimToken.created_at,
                _days_since(ScimToken.created_at),
                ScimToken.last_used_at,
                null().cast(ApiKey.expires_at.type),
            )
            .join(Tenant, Tenant.id == ScimToken.tenant_id)
            .where(ScimToken.revoked_at.is_(None))
        )
        signing = (
            select(
                TenantSigningKey.tenant_id,
                Tenant.name,
                TenantSigningKey.id,
                func.left(TenantSigningKey.key_id, 16),
                TenantSigningKey.name,
                literal("adapter_signing", String),
                empty,
                func.coalesce(TenantSigningKey.created_by, ""),
                empty,
                TenantSigningKey.created_at,
                _days_since(TenantSigningKey.created_at),
                null().cast(ApiKey.expires_at.type),
                null().cast(ApiKey.expires_at.type),
            )
            .join(Tenant, Tenant.id == TenantSigningKey.tenant_id)
            .where(TenantSigningKey.revoked_at.is_(None))
        )
        return await self._all(keys.union_all(tokens, signing).order_by("tenant_id", "key_id"))

    async def service_entries(self, types: Sequence[str]) -> Sequence[AuditEntry]:
        """Returns entries of these types of the service's own audit log, oldest first."""
        query = (
            select(AuditEntry)
            .where(AuditEntry.tenant_id == OPERATOR_CHAIN, AuditEntry.type.in_(types))
            .order_by(AuditEntry.seq)
        )
        return (await self._session.execute(query)).scalars().all()

    async def _all(self, query: Any) -> Sequence[Row[Any]]:
        return (await self._session.execute(query)).all()


def _yes(condition: ColumnElement[bool]) -> ColumnElement[str]:
    return case((condition, "yes"), else_="no")


def _state(condition: ColumnElement[bool], state: str) -> ColumnElement[str]:
    return case((condition, state), else_="active")


def _days_since(moment: Any) -> ColumnElement[int]:
    return cast(func.floor(extract("epoch", func.now() - moment) / 86_400), Integer)
