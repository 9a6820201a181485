"""`rootstock version` reports what is installed, and the compatibility table says the same."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from cli.version import _commit_installed, _commit_of, installed_version
from db import compatibility
from db.schema import ALEMBIC_INI
from migrations import releases
from tests.support.commands import rootstock

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_prints_the_installed_version() -> None:
    version = installed_version()
    newest = max(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("[0-9]*.py"))
    assert f'version = "{version.release}"' in (ROOT / "pyproject.toml").read_text()
    assert version.schema == newest

    shown = rootstock("version")
    assert shown.returncode == 0
    printed = dict(line.split(maxsplit=1) for line in shown.stdout.splitlines())
    assert printed["release"] == version.release
    assert printed["schema"] == version.schema

    as_json = rootstock("version", "--json")
    assert json.loads(as_json.stdout) == asdict(version)


def test_the_commit_is_that_of_the_checkout_and_of_no_other(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    assert _commit_of(tmp_path) is None
    git("init", "--quiet")
    assert _commit_of(tmp_path) is None  # nothing committed yet
    git("commit", "--quiet", "--allow-empty", "--message", "first")
    assert _commit_of(tmp_path) == git("rev-parse", "HEAD")
    inside = tmp_path / "site-packages"
    inside.mkdir()
    assert _commit_of(inside) is None


def test_a_machine_without_git_knows_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _commit_of(tmp_path) is None


def test_the_commit_of_an_installation_from_git_is_the_recorded_one() -> None:
    recorded = {"url": "https://example.com/r.git", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}
    assert _commit_installed(json.dumps(recorded)) == "ab12"
    assert _commit_installed('{"url": "file:///srv/rootstock", "dir_info": {"editable": true}}') is None
    assert _commit_installed(None) is None


def test_the_compatibility_table_is_true() -> None:
    section = (ROOT / "docs" / "upgrading.md").read_text().split("## Compatibility", 1)[1].split("\n## ")[0]
    cells = re.findall(r"^\| (\S+) \| (\d{4}) \| (\d{4}) \| (\d{4}) \|$", section, re.MULTILINE)
    rows = {release: tuple(schemas) for release, *schemas in cells}
    version = installed_version()
    newest: dict[str, str] = {}
    for entry in releases.released():
        newest[entry.release] = max(newest.get(entry.release, ""), entry.file[:4])

    if version.schema not in newest.values():
        assert rows.pop("unreleased") == (version.schema, version.served_by, version.migrates_from)
    scripts = ScriptDirectory.from_config(Config(ALEMBIC_INI))
    for schema, served_by, _ in rows.values():
        assert served_by == compatibility.oldest_code(scripts, schema)
    assert {release: schemas[0] for release, schemas in rows.items()} == newest
