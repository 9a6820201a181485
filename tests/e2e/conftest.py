"""One `rootstock up --demo` for all end-to-end tests, and ways to look at it from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack


# Of this folder: it would otherwise idle, with ten processes, until the last test of all ends.
@pytest.fixture(scope="package")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("up") / "data")
    try:
        stack.start()
        yield stack
    finally:
        stack.finish()


@pytest.fixture
def stack(running_stack: Stack) -> Stack:
    """The demo, serving and with nothing on its way to the ledger."""
    running_stack.wait_until_ready()
    running_stack.wait_until_metered()
    return running_stack


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A directory for an `up` that is expected to fail."""
    return tmp_path / "data"
