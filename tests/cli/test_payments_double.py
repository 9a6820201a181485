"""Whether the demo has payments, and what the service is told of who takes them."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from billing.payments.settings import StripeSettings
from cli.datadir import DataDir
from cli.payments_double import API_KEY, PaymentsDouble
from cli.programs import LocalBase, Service


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ROOTSTOCK_STRIPE_")]:
        monkeypatch.delenv(name)


def test_the_demo_has_a_double_unless_a_stripe_key_is_set_even_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert PaymentsDouble.is_wanted()
    monkeypatch.setenv(API_KEY, "")
    assert not PaymentsDouble.is_wanted()


def test_the_service_takes_it_for_stripe_in_test_mode_at_every_start_the_same(tmp_path: Path) -> None:
    told = []
    for _ in range(2):
        with DataDir(tmp_path) as data:
            double = PaymentsDouble(data, "http://127.0.0.1:1")
            program = double.program()
            service = Service(
                data,
                [LocalBase("sapling", tmp_path, "none")],
                "unix:///nowhere",
                is_demo=True,
                payments=double.settings,
            )
            with socket.create_connection(("127.0.0.1", int(double.url.rpartition(":")[2])), 5):
                pass  # it is listened before anybody serves: who asks early waits
            double.close()
        assert service.environment()["ROOTSTOCK_STRIPE_API_BASE"] == double.url
        told.append((double.settings[API_KEY], double.settings["ROOTSTOCK_STRIPE_WEBHOOK_SECRET"]))
        assert not any(secret in word for word in program.argv for secret in told[-1])
        assert all(program.env[name] == value for name, value in double.settings.items())
    assert told[0] == told[1]
    assert told[0][0].startswith("sk_test_")
    assert not set(double.settings) - {
        f"ROOTSTOCK_STRIPE_{name.upper()}" for name in StripeSettings.model_fields
    }
