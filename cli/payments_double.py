"""The demo's payments: a double of Stripe beside it, where the checkout has one.

Owns its process, its address, and the settings by which the service takes it for Stripe. It is part of the
tests, so nothing of it is imported: it is a program like the others, and without it the demo goes on without
payments. An operator who has set a key of Stripe's, were it none, has decided already.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cli.datadir import DataDir
from cli.listener import listen, visiting_url
from cli.supervisor import Program

MODULE = "tests.support.stripe_double"
API_KEY = "ROOTSTOCK_STRIPE_API_KEY"


class PaymentsDouble:
    """One demo's. `close` it at the end."""

    def __init__(self, data: DataDir, checkout: Path, site_url: str) -> None:
        """`site_url`: where the service is visited, which hears of payments there."""
        self._data = data
        self._checkout = checkout
        self._site_url = site_url
        self._listener = listen("127.0.0.1", 0)
        self.url = visiting_url(self._listener)

    @staticmethod
    def is_wanted(checkout: Path) -> bool:
        return API_KEY not in os.environ and (checkout / f"{MODULE.replace('.', '/')}/__main__.py").is_file()

    @property
    def settings(self) -> dict[str, str]:
        """What the service is told: a test mode's key, and where Stripe is."""
        return {
            API_KEY: f"sk_test_{self._data.secret('payments_double')[:32]}",
            "ROOTSTOCK_STRIPE_API_BASE": self.url,
            "ROOTSTOCK_STRIPE_WEBHOOK_SECRET": f"whsec_{self._data.secret('payments_double_webhooks')}",
            "ROOTSTOCK_STRIPE_RETURN_URL": f"{self._site_url}/console/billing",
        }

    def program(self) -> Program:
        descriptor = self._listener.fileno()
        kept = self._data.path / "payments-double.jsonl"
        hooks = f"{self._site_url}/webhooks/stripe"
        return Program(
            name="payments",
            argv=(
                *(sys.executable, "-m", MODULE, "--listen-fd", str(descriptor)),
                *("--keep", str(kept), "--webhooks", hooks),
            ),
            env={**os.environ, **self.settings},
            log=self._data.logs / "payments.log",
            grace_s=5,
            pass_fds=(descriptor,),
            cwd=self._checkout,
        )

    def close(self) -> None:
        self._listener.close()
