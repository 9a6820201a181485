"""Settings of payments, read from ROOTSTOCK_STRIPE_*. Without a key there are invoices only."""

from __future__ import annotations

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from billing.payments.gateway import LEAST_CHARGE


class StripeSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_STRIPE_")

    api_key: SecretStr | None = None
    """`sk_test_...` or `sk_live_...`, or a restricted key. None: no payments, invoices only."""
    webhook_secret: SecretStr | None = None
    """`whsec_...` of the endpoint at Stripe that posts to `/webhooks/stripe`. None: nothing is taken."""
    previous_webhook_secret: SecretStr | None = None
    """While the secret is being changed: signatures by this one are good too."""
    api_base: str = "https://api.stripe.com"
    timeout: float = Field(default=20.0, gt=0)
    """Seconds for one answer."""
    event_name: str = "rootstock_micro_usd"
    """Of the meter. Two installations on one Stripe account need two."""
    webhook_tolerance: float = Field(default=300.0, gt=0)
    """Seconds by which a webhook's time may differ from ours, either way."""
    grace_days: int = Field(default=7, ge=0, le=90)
    """From a payment that failed to the suspension of the account."""
    events_per_second: float = Field(default=20.0, gt=0, le=1000)
    """Meter events sent. Stripe takes 1 000 a second of a live account, and 25 requests of a sandbox."""
    minimum_cents: int = Field(default=LEAST_CHARGE, ge=0, le=10_000)
    """The least that Stripe charges in dollars. An invoice of less is carried to the next."""
    return_url: str = "http://127.0.0.1:8000/console/"
    """Where Stripe's pages send people back to."""

    @property
    def enabled(self) -> bool:
        return self.api_key is not None and bool(self.api_key.get_secret_value())

    @property
    def smallest_charge(self) -> int:
        """Cents. None where nobody charges: then every amount can be paid."""
        return self.minimum_cents if self.enabled else 0
