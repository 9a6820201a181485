"""Ranks that are forked, for tests of what they do once they have started."""

from collections.abc import Iterator

import pytest

from tests.support.forks import forked_programs


@pytest.fixture
def forked_ranks() -> Iterator[None]:
    """A rank's program takes a second of CPU to start; `test_losses` has some that start by themselves."""
    with forked_programs(("engine.parallel.rank",)):
        yield
