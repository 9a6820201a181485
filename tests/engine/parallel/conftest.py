"""Ranks that are forked, for tests of what they do once they have started."""

import pytest

from tests.engine.parallel import forked_rank


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.parallel.ranks._start", forked_rank.start)
