"""The short form of `benchmarks.journal_damage`: each file of the journal damaged twice, Redis too."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from benchmarks.journal_damage import TARGETS, damage, figures_of, run

SEED = 11


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="rs-damage-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.timeout(300)
async def test_tokens_lost_to_damage_are_named_with_their_count(
    folder: Path, redis_url: str, owner_url: str
) -> None:
    played = await run(2 * len(TARGETS), SEED, folder, redis_url, owner_url)
    figures = figures_of(played, SEED)
    assert figures["wrong"] == [], figures
    assert figures["tokens_unnamed"] == figures["tokens_overbilled"] == 0
    assert figures["rounds_with_losses"] > 2, "otherwise nothing was tried"
    assert figures["tokens_named"] >= figures["tokens_lost"] > 100
    whole = [one for one in played if one.target in ("counters.bin", "issued.spool")]
    assert [one.lost for one in whole] == [0] * len(whole), "usage itself is not in these files"


def test_damage_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "f"
    done = set()
    for number in range(60):
        path.write_bytes(b"x" * 50_000)
        done.add(damage(path, Random(number)).rpartition(" ")[2])
        assert not path.exists() or path.read_bytes() != b"x" * 50_000
    assert done == {"changed", "zeroed", "overwritten", "removed", "bytes"}
    path.write_bytes(b"")
    assert damage(path, Random(1)) == "empty"
