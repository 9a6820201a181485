"""Settings of notifications, read from ROOTSTOCK_NOTIFY_*. Built by process mains only."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing.notifications.mailing import Mailer


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

    def mailer(self) -> Mailer | None:
        """None: nothing is mailed."""
        if not self.smtp_host:
            return None
        return Mailer(
            self.smtp_host,
            self.smtp_port,
            sender=self.sender,
            security=self.smtp_security,
            user=self.smtp_user,
            password=self.smtp_password.get_secret_value(),
            timeout=self.timeout,
        )
