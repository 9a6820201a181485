"""Reads the console\'s settings from ROOTSTOCK_CONSOLE_*. Built by process mains only."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def checked_url(url: str) -> str:
    """HTTPS, or plain HTTP on this machine. Raises ValueError."""
    parts = urlsplit(url)
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("must be an address without user, query and fragment")
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError("must begin with https://")
    return url.rstrip("/")


class ProviderSettings(BaseModel):
    """An OpenID provider. Its redirect URI is `<url>/console/sign-in/from/<name>`."""

    name: str = Field(pattern=r"^[a-z0-9-]{1,30}$")
    title: str = Field(min_length=1, max_length=40)
    """What people know it by."""
    issuer: str
    """Below it lies `.well-known/openid-configuration`."""
    client_id: str = Field(min_length=1)
    client_secret: SecretStr = SecretStr("")
    """Empty: a public client, which PKCE alone proves."""
    scopes: str = "openid email profile"

    @field_validator("issuer")
    @classmethod
    def _is_private(cls, issuer: str) -> str:
        checked_url(issuer)
        return issuer  # compared letter by letter: a slash at its end belongs to it

    @field_validator("scopes")
    @classmethod
    def _has_openid(cls, scopes: str) -> str:
        if "openid" not in scopes.split():
            raise ValueError("must have openid")
        return scopes


class ConsoleSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_CONSOLE_")

    url: str = ""
    """Where browsers find the service, as `https://rootstock.example`. Mail with links needs it. Empty: links
    on pages lead to where the browser says it is."""
    providers: tuple[ProviderSettings, ...] = ()
    """In JSON: `[{"name": "acme", "title": "Acme", "issuer": "https://...", "client_id": "...", ...}]`."""
    operators_second_factor: bool = True
    """Whether operators have to have a second factor: who has none sets one up before anything else."""
    provider_timeout: float = Field(default=10.0, gt=0, le=60)
    """Seconds for one answer of a provider."""

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        return checked_url(url) if url else ""

    @field_validator("providers")
    @classmethod
    def _are_different(cls, providers: tuple[ProviderSettings, ...]) -> Any:
        for what in ("name", "issuer"):
            if len({getattr(one, what) for one in providers}) < len(providers):
                raise ValueError(f"two of them have the same {what}")
        return providers
