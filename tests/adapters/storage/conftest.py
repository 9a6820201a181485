"""Both object stores, empty, behind one interface."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from adapters.storage import LocalStore, ObjectStore
from tests.support.s3_server import S3Server

_serial = itertools.count()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return LocalStore(tmp_path / "store")
    server: S3Server = request.getfixturevalue("s3_server")
    return server.store(f"test/{next(_serial)}", tmp_path / "scratch")
