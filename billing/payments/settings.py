"""Reads the payment settings from ROOTSTOCK_STRIPE_*. Without an API key there are invoices only."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing.payments.gateway import LEAST_CHARGE


class StripeSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_STRIPE_")

    api_key: SecretStr | None = None
    """`sk_test_...` or `sk_live_...`, or a restricted key. None disables payments."""
    webhook_secret: SecretStr | None = None
    """`whsec_...` of Stripe's endpoint that posts to `/webhooks/stripe`. None rejects all webhooks."""
    previous_webhook_secret: SecretStr | None = None
    """A second accepted secret, while the secret is being rotated."""
    api_base: str = "https://api.stripe.com"
    timeout: float = Field(default=20.0, gt=0)
    """Seconds for one response."""
    event_name: str = "rootstock_micro_usd"
    """The meter's event name. Two installations on one Stripe account need different names."""
    webhook_tolerance: float = Field(default=300.0, gt=0)
    """Seconds by which a webhook's time may differ from ours, either way."""
    grace_days: int = Field(default=7, ge=0, le=90)
    """Days from a failed payment to the suspension of the account."""
    events_per_second: float = Field(default=20.0, gt=0, le=1000)
    """Meter events sent. Stripe accepts 1 000 a second from a live account, 25 requests from a sandbox."""
    minimum_cents: int = Field(default=LEAST_CHARGE, ge=0, le=10_000)
    """The smallest amount that Stripe charges in dollars. A smaller invoice is carried to the next."""
    return_url: str = "http://127.0.0.1:8000/console/"
    """The page that Stripe's pages return to."""

    @property
    def enabled(self) -> bool:
        return self.api_key is not None and bool(self.api_key.get_secret_value())

    @property
    def smallest_charge(self) -> int:
        """Cents; zero without a payment provider, when every amount can be paid."""
        return self.minimum_cents if self.enabled else 0
