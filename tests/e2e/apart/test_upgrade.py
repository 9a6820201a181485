"""One engine and one API process are upgraded from the last release and go back, under load."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import upgrade
from benchmarks.releases import Release, UnknownRelease, head, last_released_commit, unpacked
from benchmarks.upgrade_counts import is_clean
from benchmarks.upgrade_traffic import Load
from cli.programs import CHECKOUT
from tests.shipping.bytecode import share_unchanged
from tests.support import unpacked_programs
from tests.support.forks import forked_programs


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, unlike pytest's own: a socket's path has 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="rs-up-") as made:
        yield Path(made)


@pytest.fixture
def last_release(folder: Path) -> Release:
    try:
        release = unpacked(last_released_commit(), folder / "older")
    except UnknownRelease as error:
        pytest.skip(str(error))
    share_unchanged(folder / "older", CHECKOUT)  # each of its processes would compile it all
    return release


@pytest.mark.timeout(400)
async def test_no_request_fails_while_two_releases_serve_together(
    folder: Path, last_release: Release
) -> None:
    program = str(unpacked_programs.program("nginx"))
    libraries = f"LD_LIBRARY_PATH={unpacked_programs.environment()['LD_LIBRARY_PATH']}"
    (folder / "site").mkdir()
    with forked_programs():
        figures = await upgrade.run(
            folder / "site",
            last_release,
            head(),
            nginx=("env", libraries, program),
            upgrades=1,
            load=Load(num_clients=2, lengths=(4, 24), longest_pause_s=1.0),
            adapters=["pirate"],
            order=["engine-1", "api-1"],
            reconcile=False,
        )
    assert is_clean(figures), figures
    assert figures["problems"] == []
    assert figures["replaced"] == 4
