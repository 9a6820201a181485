"""Speaks OpenID Connect to one identity provider: discovery, authorization URL, and verification of ID
tokens.

Endpoints and keys are cached. A token signed with an unknown key refreshes them, but at most once every half
minute, so that forged tokens cannot cause a flood of requests.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from admin.settings import ProviderSettings, checked_url
from admin.sign_in.oidc.errors import IdentityRejected, ProviderUnavailable
from tenants.external_identity import ExternalIdentity

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""Signatures that only the provider can make: neither `none` nor those with a shared secret."""
KEEP_S = 3600.0
ASK_AGAIN_S = 30.0
"""Least time between two lookups of keys."""
LEEWAY_S = 60
"""By how much clocks may differ."""
MAX_ANSWER = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Found:
    """What discovery says."""

    authorization: str
    token: str
    keys: str
    with_basic: bool
    says_iss: bool
    """Names itself in the answer that browsers bring (RFC 9207)."""
    at: float


class Provider:
    """`client`: for tests; else one of its own, without redirects."""

    def __init__(
        self, settings: ProviderSettings, *, timeout: float = 10.0, client: httpx2.AsyncClient | None = None
    ) -> None:
        self.name = settings.name
        self.title = settings.title
        self.issuer = settings.issuer
        self._settings = settings
        self._client = client or httpx2.AsyncClient(timeout=timeout, follow_redirects=False)
        self._found: _Found | None = None
        self._keys: KeySet | None = None
        self._keys_at = 0.0
        self._looking = asyncio.Lock()

    async def authorization_url(self, *, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Where to send a browser. Raises ProviderAway."""
        found = await self._discover()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self._settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(found.authorization).query else "?"
        return f"{found.authorization}{joint}{urlencode(query)}"

    async def identify(
        self, *, code: str, issued_by: str | None, redirect_uri: str, nonce: str, verifier: str
    ) -> ExternalIdentity:
        """Whom the code stands for. `issued_by`: what the answer named as its issuer, if anything. Raises
        NotVouched, ProviderAway.
        """
        found = await self._discover()
        if issued_by != self.issuer and (issued_by is not None or found.says_iss):
            raise self._refused("the answer is another issuer's")
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        client_id, secret = self._settings.client_id, self._settings.client_secret.get_secret_value()
        auth: httpx2.BasicAuth | None = None
        if secret and found.with_basic:
            auth = httpx2.BasicAuth(client_id, secret)
        else:
            fields["client_id"] = client_id
            if secret:
                fields["client_secret"] = secret
        answer = await self._asked("POST", found.token, data=fields, auth=auth, refusable=True)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise self._refused("it gave no ID token")
        return _identity_of(self.issuer, await self._claims(token, nonce))

    async def close(self) -> None:
        await self._client.aclose()

    async def _claims(self, token: str, nonce: str) -> Mapping[str, Any]:
        """What the token says, once it is known to be for us, now, and by the provider."""
        try:
            read = jwt.decode(token, await self._key_set(), algorithms=[*ALGORITHMS])
        except (JoseError, ValueError):
            try:
                read = jwt.decode(token, await self._key_set(anew=True), algorithms=[*ALGORITHMS])
            except (JoseError, ValueError) as error:
                raise self._refused(f"the ID token's signature: {error}") from error
        claims = read.claims
        registry = jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.issuer},
            sub={"essential": True},
            aud={"essential": True, "value": self._settings.client_id},
            exp={"essential": True},
            iat={"essential": True},
        )
        try:
            registry.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise self._refused(f"the ID token's claims: {error}") from error
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        party = claims.get("azp")
        if (several or party is not None) and party != self._settings.client_id:
            raise self._refused("the ID token is for another party")
        returned = claims.get("nonce")
        if not isinstance(returned, str) or not hmac.compare_digest(returned.encode(), nonce.encode()):
            raise self._refused("the ID token is of another sign-in")
        if not claims["sub"] or len(claims["sub"]) > 255:
            raise self._refused("the ID token has no subject")
        return claims

    async def _discover(self) -> _Found:
        async with self._looking:
            if self._found is not None and time.monotonic() - self._found.at < KEEP_S:
                return self._found
            address = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            told = await self._asked("GET", address)
            if told.get("issuer") != self.issuer:
                raise ProviderUnavailable(self.name, "its configuration names another issuer")
            methods = told.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
            try:
                self._found = _Found(
                    checked_endpoint(told["authorization_endpoint"]),
                    checked_endpoint(told["token_endpoint"]),
                    checked_endpoint(told["jwks_uri"]),
                    "client_secret_basic" in methods,
                    told.get("authorization_response_iss_parameter_supported") is True,
                    time.monotonic(),
                )
            except (KeyError, TypeError, ValueError) as error:
                raise ProviderUnavailable(self.name, f"its configuration cannot be used: {error}") from error
            return self._found

    async def _key_set(self, *, anew: bool = False) -> KeySet:
        found = await self._discover()
        async with self._looking:
            age = time.monotonic() - self._keys_at
            if self._keys is not None and age < (ASK_AGAIN_S if anew else KEEP_S):
                return self._keys
            told = await self._asked("GET", found.keys)
            try:
                self._keys = KeySet.import_key_set(told)  # type: ignore[arg-type]
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise ProviderUnavailable(self.name, f"its keys cannot be read: {error}") from error
            self._keys_at = time.monotonic()
            return self._keys

    async def _asked(
        self,
        method: str,
        address: str,
        *,
        data: dict[str, str] | None = None,
        auth: httpx2.BasicAuth | None = None,
        refusable: bool = False,
    ) -> dict[str, Any]:
        """A JSON object. Raises ProviderAway; with `refusable`, NotVouched where the provider says no."""
        try:
            answer = await self._client.request(
                method, address, data=data, auth=auth, headers={"Accept": "application/json"}
            )
        except httpx2.HTTPError as error:
            raise ProviderUnavailable(self.name, type(error).__name__) from error
        if refusable and 400 <= answer.status_code < 500:
            raise self._refused(f"it does not take the code ({answer.status_code})")
        if answer.status_code != 200 or len(answer.content) > MAX_ANSWER:
            raise ProviderUnavailable(self.name, f"it answered {answer.status_code}")
        try:
            told = answer.json()
        except ValueError as error:
            raise ProviderUnavailable(self.name, "it did not answer in JSON") from error
        if not isinstance(told, dict):
            raise ProviderUnavailable(self.name, "it did not answer with an object")
        return told

    def _refused(self, reason: str) -> IdentityRejected:
        return IdentityRejected(self.name, reason)


def checked_endpoint(address: str) -> str:
    """As `checked_url`, but with a query if it has one. Raises ValueError."""
    checked_url(address.partition("?")[0])
    return address


def _identity_of(issuer: str, claims: Mapping[str, Any]) -> ExternalIdentity:
    email, name = claims.get("email"), claims.get("name")
    return ExternalIdentity(
        issuer,
        claims["sub"],
        email if isinstance(email, str) else "",
        claims.get("email_verified") is True,
        name if isinstance(name, str) else "",
    )
