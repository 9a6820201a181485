"""An OpenID provider behind a real server: it signs whatever a test wants it to say.

What it says is right unless a test changes it: claims, the key or the algorithm of a token, the answer that a
browser brings back. It checks what a provider checks: the client, the redirect, PKCE, codes that are good
once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlencode

from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT_ID = "rootstock"
CLIENT_SECRET = "a secret that the provider gave"

Claims = dict[str, Any]


@cache
def new_key(kid: str) -> RSAKey:
    """The same for the same name."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})


@dataclass
class OpenIdProvider:
    """`issuer` is set once it is served."""

    issuer: str = ""
    key: RSAKey = field(default_factory=lambda: new_key("one"))
    """It signs with."""
    published: list[RSAKey] = field(default_factory=list)
    """It tells of; none: the one it signs with."""
    subject: str = "248289761001"
    email: str = "grace@acme.example"
    email_verified: Any = True
    change: Callable[[Claims], Claims] = lambda claims: claims
    """What a token is made to say instead."""
    sign: Callable[[OpenIdProvider, Claims], str] | None = None
    """How it is signed instead."""
    answer: dict[str, str] = field(default_factory=dict)
    """What else a browser brings back."""
    is_down: bool = False
    asked: list[str] = field(default_factory=list)
    """Paths, in the order they were asked for."""
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/keys", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    async def _configuration(self, request: Request) -> Response:
        self.asked.append("configuration")
        if self.is_down:
            return Response(status_code=503)
        return JSONResponse(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_response_iss_parameter_supported": True,
            }
        )

    async def _keys(self, request: Request) -> Response:
        self.asked.append("keys")
        keys = self.published or [self.key]
        return JSONResponse({"keys": [key.as_dict(private=False) for key in keys]})

    async def _authorize(self, request: Request) -> Response:
        """Whoever asks is signed in, and willing."""
        self.asked.append("authorize")
        query = dict(request.query_params)
        assert query["client_id"] == CLIENT_ID
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        back = {"code": code, "state": query["state"], "iss": self.issuer, **self.answer}
        if "error" in self.answer:
            del back["code"]
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode(back)}", 302)

    async def _token(self, request: Request) -> Response:
        self.asked.append("token")
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        basic = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        asked = self._codes.pop(form.get("code", ""), None)
        verifier = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        proof = base64.urlsafe_b64encode(verifier).rstrip(b"=").decode()
        if (
            asked is None
            or request.headers.get("authorization") != f"Basic {basic}"
            or form.get("redirect_uri") != asked["redirect_uri"]
            or proof != asked["code_challenge"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        claims = self.change(
            {
                "iss": self.issuer,
                "sub": self.subject,
                "aud": CLIENT_ID,
                "iat": now,
                "exp": now + 300,
                "nonce": asked["nonce"],
                "email": self.email,
                "email_verified": self.email_verified,
                "name": "Grace",
            }
        )
        token = self.sign(self, claims) if self.sign is not None else signed(self.key, claims)
        return JSONResponse({"access_token": "x", "token_type": "Bearer", "id_token": token})


def signed(key: RSAKey, claims: Claims) -> str:
    return jwt.encode({"alg": "RS256", "kid": key.kid}, claims, key)


def unsigned(_: OpenIdProvider, claims: Claims) -> str:
    """`alg` none: says what it likes."""
    pieces = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join(base64.urlsafe_b64encode(piece).rstrip(b"=").decode() for piece in pieces) + "."


def signed_by_client_secret(_: OpenIdProvider, claims: Claims) -> str:
    """With what the client knows, too."""
    return jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(CLIENT_SECRET * 2))


def signed_with_public_key(provider: OpenIdProvider, claims: Claims) -> str:
    """A key that everybody knows, taken for a secret."""
    secret = OctKey.import_key(provider.key.as_pem(private=False).replace(b"-", b" "))
    return jwt.encode({"alg": "HS256", "kid": provider.key.kid}, claims, secret)


def signed_by_another(provider: OpenIdProvider, claims: Claims) -> str:
    """By a key that says it is that one."""
    return jwt.encode({"alg": "RS256", "kid": provider.key.kid}, claims, new_key("another"))
