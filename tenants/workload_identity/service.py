"""Manages workload identity providers and federation rules, and makes keys for tokens that were verified.

Every method is one transaction. Keys of a rule that is disabled or deleted, or whose provider is, are revoked
in every process within a second. Verifying tokens is in `api.workload_identity`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis.asyncio

from db.base import new_id
from db.session import EVERY_TENANT, Database, WriteSession
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.errors import ServiceAccountNotFound, TenantNotFound
from tenants.key_service import CreatedKey, KeyRestrictions, KeyService
from tenants.models import ApiKey
from tenants.projects.repository import ProjectRepository
from tenants.repository import TenantDirectory
from tenants.resolver import revoke_keys
from tenants.validation import MAX_NAME_LEN, checked_name, is_printable
from tenants.workload_identity.errors import (
    FederationRuleNotFound,
    IdentityProviderNotFound,
    TokenNotAccepted,
    TooManyProviders,
)
from tenants.workload_identity.matching import check_matchers, claims_match
from tenants.workload_identity.models import FederationRule, WorkloadIdentityProvider
from tenants.workload_identity.repository import ProviderDirectory, WorkloadIdentityRepository

MAX_PROVIDERS, MAX_RULES = 50, 100
TOKEN_SECONDS = 3600
MIN_TOKEN_SECONDS, MAX_TOKEN_SECONDS = 60, 12 * 3600
MAX_TEXT = 500


@dataclass(frozen=True, slots=True)
class ExternalToken:
    """A subject token whose signature, issuer, audience and times are verified."""

    claims: Mapping[str, Any]

    @property
    def subject(self) -> str:
        return str(self.claims.get("sub", ""))


class WorkloadIdentities:
    """Providers and rules of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis, keys: KeyService) -> None:
        self._database = database
        self._redis = redis_client
        self._keys = keys

    # Providers --------------------------------------------------------------------------------------------

    async def providers(
        self, tenant_id: str, *, after: str | None = None, limit: int = 20, newest_first: bool = True
    ) -> Sequence[WorkloadIdentityProvider]:
        """Returns providers after the one with the id `after`. Raises UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            return [*await repository.provider_page(after=after, limit=limit, newest_first=newest_first)]

    async def provider(self, tenant_id: str, provider_id: str) -> WorkloadIdentityProvider:
        """Raises IdentityProviderNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await WorkloadIdentityRepository(session, tenant_id).provider(provider_id)
        if found is None:
            raise IdentityProviderNotFound(provider_id)
        return found

    async def enabled_provider(self, provider_id: str) -> WorkloadIdentityProvider:
        """Returns a provider of any tenant. Raises TokenNotAccepted if there is none, or it is disabled."""
        async with self._database.read(EVERY_TENANT) as session:
            found = await ProviderDirectory(session).enabled(provider_id)
        if found is None:
            raise TokenNotAccepted
        return found

    async def create_provider(
        self, tenant_id: str, fields: Mapping[str, Any], actor: Actor
    ) -> WorkloadIdentityProvider:
        """Creates a provider with these columns. The caller has checked issuer, URL and keys. Raises
        TooManyProviders, TenantNotFound, ValueError naming the field.
        """
        now = datetime.now(UTC)
        row = WorkloadIdentityProvider(
            id=new_id("wip"), tenant_id=tenant_id, created_at=now, updated_at=now, **_checked(fields)
        )
        async with self._database.write(tenant_id) as session:
            if await TenantDirectory(session).tenant(tenant_id) is None:
                raise TenantNotFound(tenant_id)
            repository = WorkloadIdentityRepository(session, tenant_id)
            await repository.advisory_lock("workload identity")
            if await repository.num_providers() >= MAX_PROVIDERS:
                raise TooManyProviders(MAX_PROVIDERS, "workload identity providers")
            repository.add_own(row)
            await _record(session, row, actor, "created", _described(fields))
            await session.refresh(row)
        return row

    async def update_provider(
        self, tenant_id: str, provider_id: str, fields: Mapping[str, Any], actor: Actor
    ) -> WorkloadIdentityProvider:
        """Changes columns of a provider. Raises IdentityProviderNotFound, ValueError naming the field."""
        changed = _checked(fields)
        async with self._database.write(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            row = await repository.provider(provider_id, lock=True)
            if row is None:
                raise IdentityProviderNotFound(provider_id)
            for name, value in changed.items():
                setattr(row, name, value)
            row.updated_at = datetime.now(UTC)
            revoked = (
                [] if row.is_enabled else await self._revoke(session, await repository.rules(provider_id))
            )
            details = _described(fields) | ({"revoked_keys": revoked} if revoked else {})
            await _record(session, row, actor, "updated", details)
        return row

    async def delete_provider(self, tenant_id: str, provider_id: str, actor: Actor) -> None:
        """Deletes a provider with its rules. Raises IdentityProviderNotFound."""
        async with self._database.write(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            row = await repository.provider(provider_id, lock=True)
            if row is None:
                raise IdentityProviderNotFound(provider_id)
            revoked = await self._revoke(session, await repository.rules(provider_id))
            await repository.delete_provider(provider_id)
            await _record(session, row, actor, "deleted", {"name": row.name, "revoked_keys": revoked})

    # Rules ------------------------------------------------------------------------------------------------

    async def rules(
        self,
        tenant_id: str,
        provider_id: str,
        *,
        service_account_id: str | None = None,
        after: str | None = None,
        limit: int = 20,
        newest_first: bool = True,
    ) -> Sequence[FederationRule]:
        """Returns rules after the one with the id `after`. Raises IdentityProviderNotFound, UnknownCursor."""
        async with self._database.read(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            if await repository.provider(provider_id) is None:
                raise IdentityProviderNotFound(provider_id)
            return [
                *await repository.rule_page(
                    provider_id,
                    service_account_id=service_account_id,
                    after=after,
                    limit=limit,
                    newest_first=newest_first,
                )
            ]

    async def rule(self, tenant_id: str, provider_id: str, rule_id: str) -> FederationRule:
        """Raises FederationRuleNotFound."""
        async with self._database.read(tenant_id) as session:
            found = await WorkloadIdentityRepository(session, tenant_id).rule(provider_id, rule_id)
        if found is None:
            raise FederationRuleNotFound(rule_id)
        return found

    async def create_rule(
        self,
        tenant_id: str,
        provider_id: str,
        service_account: tuple[str, str],
        fields: Mapping[str, Any],
        actor: Actor,
    ) -> FederationRule:
        """Creates a rule for a service account, which is given with its project. Raises
        IdentityProviderNotFound, ServiceAccountNotFound, TooManyProviders, ValueError naming the field.
        """
        project_id, account_id = service_account
        now = datetime.now(UTC)
        row = FederationRule(
            id=new_id("wifr"),
            tenant_id=tenant_id,
            provider_id=provider_id,
            project_id=project_id,
            service_account_id=account_id,
            created_at=now,
            updated_at=now,
            **_checked(fields),
        )
        async with self._database.write(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            if await repository.provider(provider_id, lock=True) is None:
                raise IdentityProviderNotFound(provider_id)
            account = await ProjectRepository(session, tenant_id).hold_account(account_id)
            if account is None or account.project_id != project_id:
                raise ServiceAccountNotFound(account_id)
            if len(await repository.rules(provider_id)) >= MAX_RULES:
                raise TooManyProviders(MAX_RULES, "federation rules of a provider")
            repository.add_own(row)
            details = {"provider": provider_id, "service_account": account_id, **_described(fields)}
            await _record(session, row, actor, "created", details)
            await session.refresh(row)
        return row

    async def update_rule(
        self, tenant_id: str, provider_id: str, rule_id: str, fields: Mapping[str, Any], actor: Actor
    ) -> FederationRule:
        """Changes columns of a rule. Raises FederationRuleNotFound, ValueError naming the field."""
        changed = _checked(fields)
        async with self._database.write(tenant_id) as session:
            row = await WorkloadIdentityRepository(session, tenant_id).rule(provider_id, rule_id, lock=True)
            if row is None:
                raise FederationRuleNotFound(rule_id)
            for name, value in changed.items():
                setattr(row, name, value)
            row.updated_at = datetime.now(UTC)
            revoked = [] if row.is_enabled else await self._revoke(session, [row])
            details = _described(fields) | ({"revoked_keys": revoked} if revoked else {})
            await _record(session, row, actor, "updated", details)
        return row

    async def delete_rule(self, tenant_id: str, provider_id: str, rule_id: str, actor: Actor) -> None:
        """Raises FederationRuleNotFound."""
        async with self._database.write(tenant_id) as session:
            repository = WorkloadIdentityRepository(session, tenant_id)
            row = await repository.rule(provider_id, rule_id, lock=True)
            if row is None:
                raise FederationRuleNotFound(rule_id)
            revoked = await self._revoke(session, [row])
            await repository.delete_rule(rule_id)
            await _record(session, row, actor, "deleted", {"revoked_keys": revoked})

    async def _revoke(self, session: WriteSession, rules: Sequence[FederationRule]) -> list[str]:
        ids = [row.id for row in rules]
        if not ids:
            return []
        return await revoke_keys(session, self._redis, rules[0].tenant_id, ApiKey.federation_rule_id.in_(ids))

    # Exchange ---------------------------------------------------------------------------------------------

    async def matching_rule(
        self, provider: WorkloadIdentityProvider, service_account_id: str, token: ExternalToken
    ) -> FederationRule:
        """Returns the provider's first rule for the service account that the token matches. Raises
        TokenNotAccepted.
        """
        async with self._database.read(provider.tenant_id) as session:
            rules = await WorkloadIdentityRepository(session, provider.tenant_id).rules(provider.id)
        for row in rules:
            if row.service_account_id != service_account_id or not row.is_enabled:
                continue
            if claims_match(row.matchers, token.claims):
                return row
        raise TokenNotAccepted("no rule of the service account matches its claims")

    async def create_key(
        self,
        provider: WorkloadIdentityProvider,
        rule: FederationRule,
        token: ExternalToken,
        *,
        address: str | None,
        request_id: str | None,
    ) -> CreatedKey:
        """Creates a key for a verified token. Raises ServiceAccountNotFound, ProjectArchived."""
        expires_at = datetime.now(UTC) + timedelta(seconds=provider.token_seconds)
        subject = "".join(one for one in token.subject if is_printable(one))
        return await self._keys.create(
            provider.tenant_id,
            f"{provider.name}: {subject}"[:MAX_NAME_LEN],
            Actor("workload_identity", provider.id, address, request_id),
            service_account_id=rule.service_account_id,
            restrictions=KeyRestrictions(scopes=frozenset(rule.scopes), expires_at=expires_at),
            federation_rule_id=rule.id,
        )


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the columns. Raises ValueError naming the field."""
    found = dict(fields)
    for name in ("name", "description", "audience"):
        text = found.get(name)
        if text is None:
            continue
        if name == "name":
            found[name] = checked_name(name, text)
        elif not text.strip() or len(text) > MAX_TEXT or not is_printable(text):
            raise ValueError(f"{name} must have 1 to {MAX_TEXT} printable characters")
    if not MIN_TOKEN_SECONDS <= found.get("token_seconds", TOKEN_SECONDS) <= MAX_TOKEN_SECONDS:
        raise ValueError(f"token_seconds must be from {MIN_TOKEN_SECONDS} to {MAX_TOKEN_SECONDS}")
    if "matchers" in found:
        check_matchers(found["matchers"])
    return found


def _described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that the audit log records: of uploaded keys their ids."""
    found = dict(fields)
    if found.get("jwks") is not None:
        found["jwks"] = [str(key.get("kid", "")) for key in found["jwks"].get("keys", [])]
    return found


async def _record(
    session: WriteSession,
    row: WorkloadIdentityProvider | FederationRule,
    actor: Actor,
    what: str,
    details: Mapping[str, Any],
) -> None:
    is_provider = isinstance(row, WorkloadIdentityProvider)
    kind = "workload_identity_provider" if is_provider else "federation_rule"
    await AuditLog.record(session, row.tenant_id, actor, f"{kind}.{what}", (kind, row.id), details)
