from __future__ import annotations

import pytest
from pydantic import ValidationError

from db.settings import DatabaseSettings
from tenants.settings import TenantSettings
from worker.settings import WorkerSettings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", "s" * 32)
    monkeypatch.setenv("ROOTSTOCK_DB_URL", "postgresql+psycopg://somewhere")
    monkeypatch.setenv("ROOTSTOCK_WORKER_REDIS_URL", "redis://somewhere")
    monkeypatch.setenv("ROOTSTOCK_WORKER_METER_BATCH", "5")
    tenants = TenantSettings()
    assert tenants.key_secret.get_secret_value() == "s" * 32
    assert "s" * 32 not in repr(tenants)
    assert DatabaseSettings().url == "postgresql+psycopg://somewhere"
    assert WorkerSettings().meter_batch == 5


def test_a_short_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", "short")
    with pytest.raises(ValidationError, match="key_secret"):
        TenantSettings()
