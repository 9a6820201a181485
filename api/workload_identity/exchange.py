"""Exchanges a verified subject token for a short-lived API key of a service account."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from api.workload_identity.published_keys import PublishedKeys
from api.workload_identity.verification import TokenVerifier
from tenants.errors import ProjectArchived, ServiceAccountNotFound
from tenants.workload_identity.errors import TokenNotAccepted
from tenants.workload_identity.service import WorkloadIdentities
from tenants.workload_identity.spent_tokens import SpentTokens

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExchangedKey:
    """A key, and its lifetime."""

    plaintext: str = field(repr=False)
    seconds: int
    scopes: tuple[str, ...]


class TokenExchange:
    """Exchanges tokens of all tenants' providers."""

    def __init__(self, identities: WorkloadIdentities, published: PublishedKeys, spent: SpentTokens) -> None:
        self.published = published
        self._identities = identities
        self._verifier = TokenVerifier(published)
        self._spent = spent

    async def exchange(
        self,
        provider_id: str,
        service_account_id: str,
        token: str,
        *,
        address: str | None,
        request_id: str | None,
    ) -> ExchangedKey:
        """Raises TokenNotAccepted, IssuerUnavailable, RecordsUnavailable."""
        provider = await self._identities.enabled_provider(provider_id)
        try:
            verified = await self._verifier.verify(provider, token)
            rule = await self._identities.matching_rule(provider, service_account_id, verified)
            if provider.is_single_use and not await self._spent.spend(
                provider.id, token, float(verified.claims["exp"])
            ):
                raise TokenNotAccepted("it was exchanged before")
        except TokenNotAccepted as error:
            log.info(
                "a subject token is not accepted",
                tenant_id=provider.tenant_id,
                provider_id=provider.id,
                reason=str(error),
            )
            raise
        try:
            made = await self._identities.create_key(
                provider, rule, verified, address=address, request_id=request_id
            )
        except (ServiceAccountNotFound, ProjectArchived) as error:
            raise TokenNotAccepted("its service account or project is no longer active") from error
        return ExchangedKey(made.plaintext, provider.token_seconds, tuple(rule.scopes))
