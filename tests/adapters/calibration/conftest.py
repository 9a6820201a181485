"""One thread, as a worker on a small machine; and what a calibration is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.calibration.sapling import BASE
from tests.support.arithmetic import arithmetic_threads
from tokenization.codec import TextCodec


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="session")
def sapling_codec() -> TextCodec:
    return TextCodec.load(BASE)


@pytest.fixture
def artifacts_dir(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"
