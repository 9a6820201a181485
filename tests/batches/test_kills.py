"""The short form of `benchmarks.batch_kills`: a few dozen lines, and kills of everything meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import batch_kills
from benchmarks.batch_kills import RESPONSES, compared, is_clean
from benchmarks.chaos_site import APIS, WORKERS

LINES, KILLS, SEED = 60, 6, 3


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rs-kills-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.timeout(400)
async def test_every_line_is_answered_and_billed_once(folder: Path) -> None:
    figures = await batch_kills.run(folder, LINES, KILLS, SEED)

    assert is_clean(figures), figures
    assert figures["answered"] == figures["ledger_rows"] == LINES
    assert figures["kills"] >= KILLS // 2, "the batch lived long enough"


@pytest.mark.timeout(400)
async def test_every_response_is_answered_and_billed_once(folder: Path) -> None:
    """Lines of responses, and kills of the processes that run and meter them."""
    victims = (*APIS, *WORKERS)

    figures = await batch_kills.run(folder, 24, 3, SEED, url=RESPONSES, victims=victims)

    assert is_clean(figures), figures
    assert figures["answered"] == figures["ledger_rows"] == 24
    assert {"api", "worker"} & figures["kills_by_kind"].keys()


LINE = {"custom_id": "a"}
ROW: dict[str, Any] = {
    "custom_id": "a",
    "response": {"body": {"id": "r", "usage": {"prompt_tokens": 3, "completion_tokens": 4}}},
}


@pytest.mark.parametrize(
    ("rows", "ledger", "wrong"),
    [
        ([], {}, {"lost": 1}),
        ([ROW, ROW], {"r": (3, 4)}, {"double": 1}),
        ([ROW], {"r": (3, 5)}, {"ledger_differs": 1}),
        ([ROW], {}, {"ledger_differs": 1}),
        ([ROW], {"r": (3, 4), "s": (3, 4)}, {"ledger_differs": 1}),
        ([ROW], {"r": (3, 4)}, {}),
    ],
)
def test_what_differs_is_found(
    rows: list[dict[str, Any]], ledger: dict[str, tuple[int, int]], wrong: dict[str, int]
) -> None:
    found = compared([LINE], rows, [], ledger)

    assert {name: found[name] for name in ("lost", "double", "ledger_differs") if found[name]} == wrong
