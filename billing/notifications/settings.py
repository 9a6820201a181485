"""Settings of notifications, read from ROOTSTOCK_NOTIFY_*. Built by process mains only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class NotificationSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_NOTIFY_")

    smtp_host: str = ""
    """Of the mail server. Empty: nothing is mailed."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    """Empty: without signing in."""
    smtp_password: SecretStr = SecretStr("")
    sender: str = "Rootstock <billing@localhost>"
    """Whom messages are from."""
    timeout: float = Field(default=10.0, gt=0, le=60)
    """Seconds for one webhook or one message."""
    webhooks_http: bool = False
    """Take http:// URLs too: for tests."""
    webhooks_private: bool = False
    """Also deliver to private addresses: for tests, and where all tenants are one's own people."""
