"""Reads which keys adapters must be signed with, from ROOTSTOCK_SIGNING_*."""

from __future__ import annotations

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from engine.signing.keys import TrustedKeys


class VerificationSettings(BaseSettings):
    """What a process that loads or shows adapters accepts."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_SIGNING_", frozen=True)

    public_keys: str = ""
    """The platform's public keys, as `rootstock rotate signing-key` prints them: separated by commas, the
    current one first. Empty: signatures are not verified."""
    required: bool = False
    """True: engines refuse adapters without a signature. Needs `public_keys`."""

    @field_validator("public_keys")
    @classmethod
    def _are_keys(cls, value: str) -> str:
        TrustedKeys.from_setting(value)
        return value

    @model_validator(mode="after")
    def _can_verify(self) -> VerificationSettings:
        if self.required and not self.public_keys:
            raise ValueError(
                "ROOTSTOCK_SIGNING_REQUIRED is set without ROOTSTOCK_SIGNING_PUBLIC_KEYS: set the public keys"
            )
        return self

    @property
    def keys(self) -> TrustedKeys:
        return TrustedKeys.from_setting(self.public_keys)
