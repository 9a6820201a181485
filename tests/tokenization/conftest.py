"""A tokenizer and a template of our own, as small as they come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.text_base import write_base
from tokenization.codec import TextCodec


@pytest.fixture(scope="session")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def codec(base_dir: Path) -> TextCodec:
    return TextCodec.load(base_dir)
