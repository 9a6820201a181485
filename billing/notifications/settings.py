"""Reads the settings of notifications from ROOTSTOCK_NOTIFY_*. Only process entry points build them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing.notifications.mailing import Mailer


class NotificationSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_NOTIFY_")

    smtp_host: str = ""
    """The mail server. Empty means that no mail is sent."""
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str = ""
    """Empty means no authentication."""
    smtp_password: SecretStr = SecretStr("")
    sender: str = "Rootstock <billing@localhost>"
    """The sender of mail."""
    timeout: float = Field(default=10.0, gt=0, le=60)
    """Seconds for one webhook or one message."""
    webhooks_http: bool = False
    """Allows http:// URLs, for tests."""
    webhooks_private: bool = False
    """Allows private addresses, for tests and for installations whose tenants are internal."""

    def mailer(self) -> Mailer | None:
        """Returns a mail client; None if no mail server is set."""
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
