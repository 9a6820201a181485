"""`rootstock backup`, its drill, `rootstock restore`; and what a kill -9 of them leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.local.postgres import serving_url
from db.errors import UnusableDatabase
from db.schema import assert_fit_to_serve
from db.session import Database
from tests.cli.backup.service import KEY, SECRET, Service
from tests.cli.commands import refusal, run
from tests.support.nursery import SERVICES


@pytest.fixture
def key_file(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's key; commands find the service in their environment."""
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "key"
    path.write_bytes(KEY + b"\n")
    monkeypatch.setenv("ROOTSTOCK_BACKUP_KEY_FILE", str(path))
    return path


async def test_a_drill_prints_a_report_and_writes_evidence(
    service: Service, key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, evidence = str(tmp_path / "backup"), tmp_path / "evidence.json"
    shown = await asyncio.to_thread(run, "backup", "--to", to)
    assert "with everything acknowledged by 20" in shown
    assert "all whole" in await asyncio.to_thread(run, "backup", "verify", to)
    # On this thread: the private server ends with the thread that started it.
    shown = await on_a_loop_of_its_own("backup", "drill", to, "--evidence", str(evidence))
    assert "The backup restores." in shown
    assert "audit      proven" in shown
    found = json.loads(await asyncio.to_thread(evidence.read_text))
    assert found["drill"]["passed"]
    assert await asyncio.to_thread(run, "backup", "record", str(evidence)) == (
        f"recorded: drill of {found['backup']['id']}, passed\n"
    )
    listed = await asyncio.to_thread(run, "audit", "list")
    assert listed.count("backup.drilled") == 2, "the drill itself, and the record of its file"
    await asyncio.to_thread((tmp_path / "other.json").write_text, '{"backup": {}}')
    assert "is not the result of a drill" in await asyncio.to_thread(
        refusal, "backup", "record", str(tmp_path / "other.json")
    )
    assert found["backup"]["id"].startswith("bkp_")
    assert {check["name"]: check["wrong"] for check in found["checks"]} == dict.fromkeys(
        ("rows", "ledger", "prices", "invoices", "audit", "objects", "artifacts"), 0
    )
    assert {check["name"]: check["checked"] for check in found["checks"]}["ledger"] == 3
    assert not hidden_in(tmp_path)
    assert service.file is not None
    os.unlink(service.folder / "objects" / service.file.object_key)
    shown = await asyncio.to_thread(refusal, "backup", "--to", str(tmp_path / "second"))
    assert "the database names 1 objects that could not be copied" in shown
    assert "manifest.sealed" in os.listdir(tmp_path / "second"), "the rest is there"
    assert "name the directory to make with --to" in await asyncio.to_thread(refusal, "backup")
    out = tmp_path / "secrets"
    await asyncio.to_thread(run, "backup", "secrets", to, "--out", str(out))
    assert f"ROOTSTOCK_TENANTS_KEY_SECRET='{SECRET}'" in (out / "rootstock.env").read_text()
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", "another secret of thirty-two characters")
    assert "no API key would work" in await asyncio.to_thread(refusal, "restore", to)
    await asyncio.to_thread(key_file.write_text, "another key of an operator")
    assert "was made with another key" in await asyncio.to_thread(refusal, "backup", "verify", to)


def hidden_in(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


async def on_a_loop_of_its_own(*arguments: str) -> str:
    """Runs a command that needs the main thread, whose loop runs already."""
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return run(*arguments)
    finally:
        asyncio._set_running_loop(before)


async def test_nothing_that_was_killed_looks_whole(
    service: Service, key_file: Path, empty_database_url: str, tmp_path: Path
) -> None:
    to = tmp_path / "backup"
    for step in ("PostgreSQL", "the end"):
        await killed(step, {}, "backup", "--to", str(to))
        assert "backup" not in os.listdir(tmp_path)
        assert len(hidden_in(tmp_path)) == 1, "the next one removes it"
    await asyncio.to_thread(run, "backup", "--to", str(to))
    assert not hidden_in(tmp_path)

    target = {
        "ROOTSTOCK_DB_URL": serving_url(empty_database_url),
        "ROOTSTOCK_DB_OWNER_URL": empty_database_url,
        "ROOTSTOCK_STORAGE_URL": f"file://{tmp_path}/restored",
        "ROOTSTOCK_ENGINE_ARTIFACTS_DIR": f"{tmp_path}/artifacts",
    }
    await killed("Usage", target, "restore", str(to))
    database = Database(target["ROOTSTOCK_DB_URL"])
    with pytest.raises(UnusableDatabase):
        await assert_fit_to_serve(database)
    await database.close()


async def killed(step: str, settings: Mapping[str, str], *arguments: str) -> None:
    """Runs a command to the step that kills it."""
    process = SERVICES.start(
        "tests.cli.backup.killed:run", Path("/dev/null"), {**os.environ, **settings}, [step, *arguments]
    )
    assert await asyncio.to_thread(process.wait, 60) == -signal.SIGKILL
