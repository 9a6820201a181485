"""The double of Stripe, the real SDK on it, and a tenant with usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from billing.payments.settings import StripeSettings
from billing.stripe_gateway import StripeGateway
from tests.support.stripe_double import API_KEY, StripeDouble


@pytest.fixture
def double() -> Iterator[StripeDouble]:
    with StripeDouble().serving() as served:
        yield served


@pytest.fixture
def settings(double: StripeDouble) -> StripeSettings:
    return StripeSettings(api_key=API_KEY, api_base=double.url, timeout=2, webhook_secret="whsec_test")


@pytest.fixture
async def gateway(settings: StripeSettings) -> AsyncIterator[StripeGateway]:
    made = StripeGateway(settings)
    yield made
    await made.close()
