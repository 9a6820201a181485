"""Backups of a service hold all of it, agree with themselves, and restore into empty places only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg
import pytest
from sqlalchemy import make_url, text

from billing.rates import RATE_LABEL
from cli.backup.archive import Backup
from cli.backup.drill import check
from cli.backup.errors import DamagedBackup, TargetNotEmpty
from cli.backup.restoring import restore_to
from cli.errors import CliError
from cli.local.postgres import serving_url
from db.errors import UnusableDatabase
from db.schema import assert_fit_to_serve
from db.session import EVERY_TENANT, Database
from engine.journal.inflight_table import InflightTable
from engine.journal.records import encode_record
from engine.lora.draft_adapters import DraftAdapter, read_note, write_note
from engine.protocol import AdapterRef, UsageEvent
from tenants.keys import KeyHasher
from tests.billing.invoices.conftest import MICRO_A_TOKEN
from tests.cli.backup.service import NOVEMBER, SECRET, Service, Watched, at, opened, target
from tests.support.journal import usage_event, write_events


def event(service: Service, name: str, completion: int, *, reason: str | None = "stop") -> UsageEvent:
    moment = at(NOVEMBER, 7).timestamp()
    return usage_event(
        name,
        10,
        completion,
        tenant=service.tenant_id,
        submitted_at=moment,
        recorded_at=moment + 2,
        finished_at=moment + 1 if reason else None,
        finish_reason=reason,
        labels={"key_id": "key_1", "model": "sapling", RATE_LABEL: MICRO_A_TOKEN.label},
    )


async def ledger(url: str) -> dict[str, tuple[int, str | None]]:
    database = Database(url)
    try:
        async with database.read(EVERY_TENANT) as session:
            rows = await session.execute(
                text("SELECT request_id, completion_tokens, finish_reason FROM usage_records")
            )
            return {row[0]: (row[1], row[2]) for row in rows}
    finally:
        await database.close()


async def restored(service: Service, backup: Backup, owner_url: str) -> dict[str, int]:
    """Restores and checks; returns what each check found wrong."""
    place = target(owner_url, service.folder / "restored")
    await restore_to(backup, place, Watched())
    return {result.name: result.num_wrong for result in await check(backup, place, Watched())}


async def test_a_backup_restores_everything(
    service: Service, empty_database_url: str, tmp_path: Path
) -> None:
    write_events(service.redis_url, [event(service, "in-redis", 20)])
    disk = service.folder / "engine" / "engine-0"
    disk.mkdir(parents=True)
    spooled = [event(service, "spooled", 30), event(service, "in-redis", 20)]
    (disk / "usage.spool").write_bytes(
        b"".join(encode_record(msgspec.msgpack.encode(one)) for one in spooled)
    )
    table = InflightTable(disk / "inflight.bin")
    table.admit(event(service, "running", 40, reason=None))
    table.admit(event(service, "in-redis", 5, reason=None))
    table.close()
    drafter = DraftAdapter(AdapterRef("d" * 64, 4), 7, 3)
    write_note(service.folder / "artifacts", service.digest, drafter)
    before = await ledger(service.environment["ROOTSTOCK_DB_URL"])
    progress = Watched()
    manifest = await service.back_up(tmp_path / "backup", progress)
    assert not manifest.unavailable
    assert not manifest.deleted
    for store in ("Usage", "Secrets", "Objects", "PostgreSQL", "New objects"):
        assert f"{store}: " in progress.shown.getvalue()

    backup = opened(tmp_path / "backup")
    wrong = await restored(service, backup, empty_database_url)
    assert wrong == dict.fromkeys(
        ("rows", "ledger", "prices", "invoices", "audit", "objects", "artifacts"), 0
    )
    after = await ledger(serving_url(empty_database_url))
    assert after == before | {
        "in-redis": (20, "stop"),
        "spooled": (30, "stop"),
        "running": (40, "error"),  # as after a crash
    }
    place = target(empty_database_url, service.folder / "restored")
    assert service.file is not None
    content = b"".join([piece async for piece in place.store.get(service.file.object_key)])
    assert content == b'{"text": "to calibrate on"}\n'
    assert read_note(place.artifacts, service.digest, 100) == drafter
    database = Database(serving_url(empty_database_url))
    await assert_fit_to_serve(database)
    async with database.read(EVERY_TENANT) as session:
        digest = (await session.execute(text("SELECT digest FROM api_keys"))).scalar_one()
    await database.close()
    assert bytes(digest) == KeyHasher(SECRET).digest(service.api_key)
    secrets = backup.secrets()
    assert secrets["settings"] == service.environment
    clear = b"".join(path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file())
    assert SECRET.encode() not in clear
    assert b"to calibrate on" not in clear


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


async def test_a_damaged_or_foreign_backup_is_refused(service: Service, tmp_path: Path) -> None:
    manifest = await service.back_up(tmp_path / "whole")
    await service.back_up(tmp_path / "other")
    assert service.file is not None
    stored = f"objects/{service.file.object_key}"
    packed = f"artifacts/{service.digest[:2]}/{service.digest}.rsa"
    assert {stored, packed} < manifest.files.keys()
    files = [stored, packed, "database.sealed", "usage.sealed", "secrets.sealed", "manifest.sealed"]
    harms: dict[str, Callable[[Path], object]] = {
        "flipped": flip,
        "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
        "missing": Path.unlink,
        "foreign": lambda path: shutil.copy(tmp_path / "other" / path.relative_to(tmp_path / "whole"), path),
    }
    backup = opened(tmp_path / "whole")
    for name in files:
        path = tmp_path / "whole" / name
        whole = path.read_bytes()
        for harm in harms.values():
            harm(path)
            with pytest.raises(DamagedBackup, match=name):
                list((opened(tmp_path / "whole") if name == "manifest.sealed" else backup).verify())
            path.write_bytes(whole)
    (tmp_path / "whole" / "objects" / "more").write_bytes(b"")
    with pytest.raises(DamagedBackup, match="objects/more: the manifest does not name it"):
        list(opened(tmp_path / "whole").verify())
    with pytest.raises(CliError, match="was made with another key"):
        opened(tmp_path / "whole", b"another key than the one")
    with pytest.raises(CliError, match="is not a backup: it has no backup"):
        opened(tmp_path)
    header = json.loads((tmp_path / "whole" / "backup.json").read_text())
    (tmp_path / "whole" / "backup.json").write_text(json.dumps(header | {"format": 2}))
    with pytest.raises(CliError, match="has format 2, this release reads 1"):
        opened(tmp_path / "whole")


async def test_only_empty_places_are_restored_into(
    service: Service, empty_database_url: str, owner_url: str, tmp_path: Path
) -> None:
    await service.back_up(tmp_path / "backup")
    backup = opened(tmp_path / "backup")
    with pytest.raises(TargetNotEmpty, match="DB_OWNER_URL is not empty"):
        await restore_to(backup, target(owner_url, tmp_path / "one"), Watched())
    for folder, name in (("objects", "tenants/x/files/y"), ("artifacts", "ab/abcd.rsa")):
        found = tmp_path / folder / folder / name
        found.parent.mkdir(parents=True)
        found.write_bytes(b"x")
        with pytest.raises(TargetNotEmpty, match=name.rpartition("/")[2]):
            await restore_to(backup, target(empty_database_url, tmp_path / folder), Watched())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(TargetNotEmpty, match="full is not empty"):
        await service.back_up(tmp_path / "full")
    await no_process_serves_what_is_not_whole(backup, empty_database_url, tmp_path / "two")


async def no_process_serves_what_is_not_whole(backup: Backup, owner_url: str, folder: Path) -> None:
    """Whatever ends a restore after the tables are there."""

    def end() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await restore_to(backup, target(owner_url, folder), Watched({"Rights": end}))
    database = Database(serving_url(owner_url))
    with pytest.raises(UnusableDatabase):
        await assert_fit_to_serve(database)
    await database.close()


async def test_what_changes_while_a_backup_is_made(
    service: Service, empty_database_url: str, tmp_path: Path
) -> None:
    """Files that are stored before the snapshot are in the backup; of those deleted, none is missed."""
    early, late, never = [await service.upload(f"file {number}".encode()) for number in range(3)]

    def delete(key: str) -> None:
        with psycopg.connect(
            make_url(service.environment["ROOTSTOCK_DB_OWNER_URL"])
            .set(drivername="postgresql")
            .render_as_string(hide_password=False)
        ) as connection:
            connection.execute("DELETE FROM files WHERE object_key = %s", (key,))
        (service.folder / "objects" / key).unlink()

    def store_unseen() -> None:
        """An object that the first copy did not see, deleted before the second."""
        (service.folder / "objects" / never.object_key).rename(tmp_path / "hidden")

    def delete_more() -> None:
        delete(late.object_key)
        (tmp_path / "hidden").rename(service.folder / "objects" / never.object_key)
        delete(never.object_key)

    manifest = await service.back_up(
        tmp_path / "backup",
        Watched(
            {
                "Objects": store_unseen,
                "PostgreSQL": lambda: delete(early.object_key),
                "New objects": delete_more,
            }
        ),
    )
    assert early.object_key not in manifest.named
    assert f"objects/{late.object_key}" in manifest.files, "the first copy has it"
    assert manifest.deleted == [never.object_key]
    assert not manifest.unavailable
    wrong = await restored(service, opened(tmp_path / "backup"), empty_database_url)
    assert not any(wrong.values())


async def test_the_drill_names_what_was_tampered_with(
    service: Service, empty_database_url: str, tmp_path: Path
) -> None:
    lost, damaged = await service.upload(b"to be lost"), await service.upload(b"to be damaged")
    (service.folder / "objects" / lost.object_key).unlink()
    flip(service.folder / "objects" / damaged.object_key)
    swapped = await service.upload(b"to be swapped")
    other = await service.upload(b"another file")
    shutil.copy(
        service.folder / "objects" / other.object_key, service.folder / "objects" / swapped.object_key
    )
    (service.folder / "artifacts" / service.digest[:2] / f"{service.digest}.rsa").write_bytes(b"other")
    async with service.owner_database.write(EVERY_TENANT) as session:
        for statement in (
            "ALTER TABLE audit_log DISABLE TRIGGER USER",
            """UPDATE audit_log SET details = '{"name": "second"}' WHERE type = 'api_key.created'""",
            "ALTER TABLE audit_log ENABLE TRIGGER USER",
            "UPDATE usage_records SET completion_tokens = completion_tokens + 1 WHERE prompt_tokens = 70",
            "ALTER TABLE invoice_lines DISABLE TRIGGER USER",
            "UPDATE invoice_lines SET amount = amount - 1 WHERE kind = 'usage' AND amount > 900",
            "ALTER TABLE invoice_lines ENABLE TRIGGER USER",
        ):
            await session.execute(text(statement))
        changed = text("SELECT seq FROM audit_log WHERE type = 'api_key.created'")
        seq = (await session.execute(changed)).scalar_one()
    manifest = await service.back_up(tmp_path / "backup")
    assert manifest.unavailable.keys() == {lost.object_key, damaged.object_key}
    backup, place = opened(tmp_path / "backup"), target(empty_database_url, service.folder / "restored")
    await restore_to(backup, place, Watched())
    found = {result.name: result for result in await check(backup, place, Watched())}
    assert {name for name, result in found.items() if result.num_wrong} == {
        "ledger", "invoices", "audit", "objects", "artifacts",
    }  # fmt: skip
    assert any("completion" in one and "expected 8, found 7" in one for one in found["ledger"].wrong)
    assert all(service.tenant_id in one for one in found["ledger"].wrong)
    assert any("2026-10" in one or "total" in one for one in found["invoices"].wrong)
    assert found["audit"].wrong == [
        f"{service.tenant_id}: entry {seq} of the audit log was changed, or is missing"
    ]
    assert [one.partition(": ")[0] for one in found["objects"].wrong] == sorted(
        [lost.object_key, damaged.object_key, swapped.object_key]
    )
    assert f"its row has {swapped.sha256}" in next(
        one for one in found["objects"].wrong if swapped.object_key in one
    )
    assert service.digest in found["artifacts"].wrong[0]
