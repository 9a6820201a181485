"""A payment provider that has a customer for every tenant and a page for every wish: for tests of what
surrounds payments. What payments do is tested against `examples.stripe_double`.
"""

from __future__ import annotations

from collections.abc import Mapping

from billing.stripe_gateway import StripeGateway


class SilentGateway(StripeGateway):
    """Asks nobody."""

    def __init__(self) -> None:
        self.live = False

    async def close(self) -> None: ...

    async def find_customer(self, tenant_id: str) -> str | None:
        return f"cus_{tenant_id}"

    async def checkout(
        self, customer_id: str, cents: int, metadata: Mapping[str, str], return_url: str, key: str
    ) -> tuple[str, str]:
        return f"cs_{customer_id}", "https://checkout.example/"

    async def portal(self, customer_id: str, return_url: str) -> str:
        return "https://portal.example/"
