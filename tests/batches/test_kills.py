"""The short form of `benchmarks.batch_kills`: a few dozen lines, and kills of everything meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import batch_kills
from benchmarks.batch_kills import RESPONSES, Part, compared, is_clean
from benchmarks.chaos_site import APIS, WORKERS

SEED = 3
CHATS = Part(num_lines=60, kills=6)
ANSWERS = Part(24, 3, RESPONSES, victims=(*APIS, *WORKERS))
"""Lines of responses, and kills of the processes that run and meter them."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: a socket's path has 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="rs-kills-"))
    yield path
    shutil.rmtree(path)


@pytest.mark.timeout(400)
async def test_every_line_and_every_response_is_answered_and_billed_once(folder: Path) -> None:
    """In one service, which takes seconds to start."""
    chats, answers = await batch_kills.run(folder, [CHATS, ANSWERS], SEED)

    assert is_clean(chats), chats
    assert chats["answered"] == chats["ledger_rows"] == CHATS.num_lines
    assert chats["kills"] >= CHATS.kills // 2, "the batch lived long enough"
    assert is_clean(answers), answers
    assert answers["answered"] == answers["ledger_rows"] == ANSWERS.num_lines
    assert {"api", "worker"} & answers["kills_by_kind"].keys()


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
