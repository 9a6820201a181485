"""Verifies a subject token: its signature by the issuer's keys, then issuer, audience and times.

Only signatures that the issuer alone can make are accepted: neither `none`, nor those with a shared secret,
for which a public key could be taken.
"""

from __future__ import annotations

import time
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from admin.sign_in.oidc.provider import ALGORITHMS, LEEWAY_S
from api.workload_identity.published_keys import PublishedKeys, read_keys
from tenants.workload_identity.errors import TokenNotAccepted
from tenants.workload_identity.models import WorkloadIdentityProvider
from tenants.workload_identity.service import ExternalToken

MAX_LEN = 16 * 1024
MAX_LIFE_S = 24 * 3600
"""Longest time until a token expires: it is how long a token that was exchanged is remembered."""

LAST = 2.0**53
"""Seconds. Python's JSON reads NaN, which would pass every comparison, and integers that no float holds."""


class TokenVerifier:
    """Verifies tokens of all providers."""

    def __init__(self, published: PublishedKeys) -> None:
        self._published = published

    async def verify(self, provider: WorkloadIdentityProvider, token: str) -> ExternalToken:
        """Raises TokenNotAccepted, IssuerUnavailable."""
        claims = await self._signed_claims(provider, token)
        _check_claims(provider, claims)
        return ExternalToken(claims)

    async def _signed_claims(self, provider: WorkloadIdentityProvider, token: str) -> dict[str, Any]:
        if len(token) > MAX_LEN or not token.isascii():
            raise TokenNotAccepted
        if provider.jwks is not None:
            claims = _decoded(token, read_keys(provider.jwks))
        else:
            keys = await self._published.of(provider.issuer, provider.discovery_url)
            claims = _decoded(token, keys)
            if claims is None:
                fresh = await self._published.of(provider.issuer, provider.discovery_url, anew=True)
                claims = None if fresh is keys else _decoded(token, fresh)
        if claims is None:
            raise TokenNotAccepted
        return claims


def _decoded(token: str, keys: KeySet) -> dict[str, Any] | None:
    """Returns the claims of a token that one of the keys has signed."""
    try:
        claims = jwt.decode(token, keys, algorithms=[*ALGORITHMS]).claims
    except (JoseError, ValueError, TypeError):
        return None
    return claims if isinstance(claims, dict) else None


def _check_claims(provider: WorkloadIdentityProvider, claims: dict[str, Any]) -> None:
    """Raises TokenNotAccepted, with the reason: the issuer has signed the token."""
    now = time.time()
    if claims.get("iss") != provider.issuer:
        raise TokenNotAccepted("its issuer is not the provider's")
    audience = claims.get("aud")
    if provider.audience not in (audience if isinstance(audience, list) else [audience]):
        raise TokenNotAccepted("its audience is not the provider's")
    expires = _moment(claims, "exp")
    if expires is None or expires <= now - LEEWAY_S:
        raise TokenNotAccepted("it has expired")
    if expires > now + MAX_LIFE_S:
        raise TokenNotAccepted("it is valid for longer than a day")
    for name in ("nbf", "iat"):
        moment = _moment(claims, name)
        if moment is not None and moment > now + LEEWAY_S:
            raise TokenNotAccepted("it is not valid yet")


def _moment(claims: dict[str, Any], name: str) -> float | None:
    """Returns a time of the token; None if it has none. Raises TokenNotAccepted if it is no time."""
    found = claims.get(name)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not -LAST < found < LAST:
        raise TokenNotAccepted(f"its {name} is not a time")
    return float(found)
