"""Describes the demo's payment provider: the process of a Stripe double, and the settings that point to it.

The double (`examples/stripe_double`) is started as a program of its own and never imported, so no process
that serves can mistake it for the real gateway. When ROOTSTOCK_STRIPE_API_KEY is set, even to nothing, the
demo starts no double.
"""

from __future__ import annotations

import os
import sys

from cli.datadir import DataDir
from cli.listener import listen, visiting_url
from cli.programs import CHECKOUT
from cli.supervisor import Program

MODULE = "examples.stripe_double"
API_KEY = "ROOTSTOCK_STRIPE_API_KEY"


class PaymentsDouble:
    """The payment provider of one demo. `close` it at the end."""

    def __init__(self, data: DataDir, site_url: str) -> None:
        """`site_url`: URL of the service, which receives the provider's webhooks there."""
        self._data = data
        self._site_url = site_url
        self._listener = listen("127.0.0.1", 0)
        self.url = visiting_url(self._listener)

    @staticmethod
    def is_wanted() -> bool:
        return API_KEY not in os.environ

    @property
    def settings(self) -> dict[str, str]:
        """Returns the service's settings: a test mode key, and the double's URL as Stripe's."""
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
            cwd=CHECKOUT,
        )

    def close(self) -> None:
        self._listener.close()
