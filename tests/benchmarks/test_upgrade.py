"""What the upgrade trial counts as failed, lost and double, and how it finds the last release."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.releases import UnknownRelease, chosen, last_released_commit, unpacked
from benchmarks.upgrade_counts import compared, is_clean
from benchmarks.upgrade_traffic import Answer, read_answer

WHOLE = Answer("upgrade 1, api-0", True, 8, "whole", 8, (5, 8))
BROKEN = Answer("upgrade 1, api-1", False, 8, "broken", 3, error="APIError: the engine is gone")
REFUSED = Answer("rollback 1, engine-0", True, 8, error="InternalServerError: 503")
LEDGER = {"whole": (5, 8)}


def test_answers_that_the_ledger_has_once_are_clean() -> None:
    figures = compared([WHOLE], LEDGER)
    assert is_clean(figures)
    assert (figures["requests"], figures["streams"], figures["tokens"]) == (1, 1, 8)


@pytest.mark.parametrize(
    ("answers", "ledger", "wrong"),
    [
        ([WHOLE], {}, {"lost": 1}),
        ([WHOLE], {"whole": (5, 7)}, {"lost": 1}),
        ([WHOLE], {"whole": (4, 8)}, {"lost": 1}),
        ([WHOLE], {"whole": (5, 9)}, {"double": 1}),
        ([WHOLE], {"whole": (6, 8)}, {"double": 1}),
        ([WHOLE], LEDGER | {"again": (5, 8)}, {"double": 1}),
        ([WHOLE, BROKEN], LEDGER | {"broken": (5, 4)}, {"failed": 1}),
        ([WHOLE, BROKEN], LEDGER | {"broken": (5, 2)}, {"failed": 1, "lost": 1}),
        ([WHOLE, REFUSED], LEDGER, {"failed": 1}),
        ([WHOLE, REFUSED], LEDGER | {"nameless": (5, 0)}, {"failed": 1}),
        ([WHOLE, REFUSED], LEDGER | {"nameless": (5, 0), "again": (5, 8)}, {"failed": 1, "double": 1}),
    ],
)
def test_every_difference_is_counted(
    answers: list[Answer], ledger: dict[str, tuple[int, int]], wrong: dict[str, int]
) -> None:
    figures = compared(answers, ledger)
    assert {name: figures[name] for name in ("failed", "lost", "double") if figures[name]} == wrong
    assert not is_clean(figures)


def test_a_failure_is_listed_with_what_was_being_replaced() -> None:
    assert compared([REFUSED], {})["failures"] == ["rollback 1, engine-0: InternalServerError: 503"]


def test_a_run_without_requests_proves_nothing() -> None:
    assert not is_clean(compared([], {}))


class Completions:
    """Answers every request with the same parts of an answer."""

    def __init__(self, *parts: Any) -> None:
        self.chat = SimpleNamespace(completions=self)
        self._parts = parts

    async def create(self, **_: Any) -> Any:
        return self._each() if len(self._parts) > 1 else self._parts[0]

    async def _each(self) -> Any:
        for part in self._parts:
            yield part


def part(num_tokens: int, usage: tuple[int, int] | None = None) -> Any:
    choice = SimpleNamespace(logprobs=SimpleNamespace(content=[0] * num_tokens))
    counted = usage and SimpleNamespace(prompt_tokens=usage[0], completion_tokens=usage[1])
    return SimpleNamespace(id="r", usage=counted, choices=[choice])


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ([part(3), part(5), part(0, (5, 8))], ""),
        ([part(3), part(4), part(0, (5, 7))], "7 of 8 tokens arrived"),
        ([part(3), part(5)], "8 of 8 tokens arrived, usage None"),
    ],
    ids=["whole", "short", "without usage"],
)
async def test_a_stream_that_ends_early_has_failed(parts: list[Any], error: str) -> None:
    answer = Answer("start", streamed=True, asked=8)
    await read_answer(Completions(*parts), "sapling", 1, answer)  # type: ignore[arg-type]
    assert answer.error.startswith(error)
    assert answer.failed is bool(error)
    assert answer.id == "r"


class History:
    """A repository with a version in its `pyproject.toml`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        command = ["git", "-C", str(self.folder), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.folder / name.replace("_", ".")).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "x")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "repository")
    made.commit(pyproject_toml='version = "1"\n')
    return made


def test_the_last_release_is_the_commit_that_set_the_version(history: History, tmp_path: Path) -> None:
    released = history.commit(pyproject_toml='version = "2"\n', code_py="old\n")
    history.commit(pyproject_toml='version = "2"\nmore = 1\n', code_py="new\n")
    assert last_released_commit(history.folder) == released
    release = unpacked(released, tmp_path / "older", history.folder)
    assert released.startswith(release.name)
    assert release.folder is not None
    assert (release.folder / "code.py").read_text() == "old\n"
    assert release.environment({"PYTHONPATH": "/x", "A": "1"}) == {
        "PYTHONPATH": str(release.folder),
        "A": "1",
    }


def test_a_shallow_clone_has_no_last_release(history: History, tmp_path: Path) -> None:
    history.commit(code_py="new\n")
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", f"file://{history.folder}", tmp_path / "shallow"], check=True
    )
    with pytest.raises(UnknownRelease, match="shallow"):
        last_released_commit(tmp_path / "shallow")


def test_an_unknown_commit_and_a_folder_without_history_are_named(history: History, tmp_path: Path) -> None:
    with pytest.raises(UnknownRelease, match="git rev-parse"):
        unpacked("0" * 40, tmp_path / "older", history.folder)
    with pytest.raises(UnknownRelease, match="git rev-parse"):
        last_released_commit(tmp_path)


def test_an_interpreter_names_the_release_that_is_installed_for_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    release = chosen(str(python), tmp_path / "older")
    assert release.command("migrate") == (str(python), "-m", "cli.main", "migrate")
    assert release.environment({"PYTHONPATH": "/x"}) == {}
