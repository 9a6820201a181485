"""What commands find in their environment: a service without tenants."""

from collections.abc import Mapping

import pytest


@pytest.fixture
def environment(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    settings = {
        "ROOTSTOCK_DB_URL": database_url,
        "ROOTSTOCK_REDIS_URL": redis_url,
        "ROOTSTOCK_TENANTS_KEY_SECRET": "a secret of at least thirty-two characters",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ROOTSTOCK_DATA", raising=False)
    return settings
