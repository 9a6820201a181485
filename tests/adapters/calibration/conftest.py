"""One thread, as a worker on a small machine; and what a calibration is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.adapters.calibration.sapling import BASE
from tokenization.codec import TextCodec


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def sapling_codec() -> TextCodec:
    return TextCodec.load(BASE)


@pytest.fixture
def artifacts_dir(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"
