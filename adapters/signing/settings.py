"""Reads where the platform's signing key is, from ROOTSTOCK_SIGNING_*."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class SigningSettings(BaseSettings):
    """For workers that run jobs, and for the operator's commands."""

    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_SIGNING_", frozen=True, env_ignore_empty=True)

    key_file: Path | None = None
    """The file with the private key that adapters are signed with, in PEM. While it is rotated it has two:
    the key to use, then the other whose signatures are accepted. Unset: adapters are not signed."""
