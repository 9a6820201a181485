"""A small service that has everything a backup copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cli.backup import sealed_files
from db.session import Database
from tests.cli.backup.service import SECRET, Service


@pytest.fixture(autouse=True)
def cheap_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deriving a key takes an eighth of a second of CPU."""
    monkeypatch.setitem(sealed_files._SCRYPT, "n", 2)


@pytest.fixture
async def service(
    database_url: str, owner_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[Service]:
    folder = tmp_path / "service"
    made = Service(Database(database_url), Database(owner_url), redis_url, folder)
    made.environment = {
        "ROOTSTOCK_DB_URL": database_url,
        "ROOTSTOCK_DB_OWNER_URL": owner_url,
        "ROOTSTOCK_REDIS_URL": redis_url,
        "ROOTSTOCK_TENANTS_KEY_SECRET": SECRET,
        "ROOTSTOCK_STORAGE_URL": f"file://{folder}/objects",
        "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": f"{folder}/artifacts",
        "ROOTSTOCK_ENGINE_DATA_DIR": str(folder),
    }
    await made.populate()
    yield made
    await made.close()
