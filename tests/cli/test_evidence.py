"""`rootstock evidence`: what an auditor gets, and that a change of it is noticed."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from cli.backup.recording import details_of
from db.session import EVERY_TENANT, Database
from tenants.accounts import UserAccounts
from tenants.repository import TenantDirectory
from tests.cli.test_accounts import SECRET, Run, run, table

__all__ = ["run"]

DRILL = {
    "backup": {"id": "bkp_1", "moment": "2026-11-25T04:00:00.000+00:00", "manifest_sha256": "ab" * 32},
    "drill": {
        "recovered_to": None,
        "release": "0.2.0",
        "started_at": "2026-11-26T04:00:00.000+00:00",
        "ended_at": "2026-11-26T04:01:00.000+00:00",
        "passed": False,
    },
    "checks": [{"name": "ledger", "checked": 804, "wrong": 2}, {"name": "audit", "checked": 3, "wrong": 0}],
}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    written = json.loads((folder / f"{name}.json").read_text())
    assert [list(row) for row in written] == [list(row) for row in found], "both forms have the same"
    return found


def sign_in(owner_url: str, email: str, how: str) -> None:
    """As the console does."""

    async def work() -> None:
        database = Database(os.environ["ROOTSTOCK_DB_URL"])
        accounts = UserAccounts(database)
        async with database.read(EVERY_TENANT) as session:
            found = await TenantDirectory(session).user_by_email(email)
        assert found is not None
        account = await accounts.find(found[0].id, found[1].id)
        assert account is not None
        await accounts.record_sign_in(account, how)
        await database.close()

    asyncio.run(work())


def test_the_files_have_access_keys_drills_rotations_and_proofs(
    run: Run, tmp_path: Path, owner_url: str
) -> None:
    run("tenant", "create", "acme")
    run("tenant", "create", "=cmd()")
    key = run("key", "create", "acme", "--name", "ci")[1].strip()
    for email, role in (("ann@example.com", "owner"), ("bob@example.com", "viewer")):
        run("user", "create", "acme", email, "--role", role, typed="correct horse battery\n")
    run("operator", "add", "op@service.example", typed="correct horse battery\n")
    for how in ("password", "https://id.example"):
        sign_in(owner_url, "ann@example.com", how)
    run("rotate", "record", "smtp-password", "--note", "yearly")
    (tmp_path / "drill.json").write_text(json.dumps(DRILL))
    assert run("backup", "record", str(tmp_path / "drill.json"))[1] == "recorded: drill of bkp_1, failed\n"

    out = tmp_path / "evidence"
    code, printed, _ = run("evidence", "--out", str(out))
    assert code == 0
    assert [row[0] for row in table(printed)][-1] == "manifest.json"
    access = {row["email"]: row for row in rows(out, "access")}
    assert {email: (row["role"], row["organization"]) for email, row in access.items()} == {
        "ann@example.com": ("owner", "acme"),
        "bob@example.com": ("viewer", "acme"),
        "op@service.example": ("owner", access["op@service.example"]["organization"]),
    }
    ann, bob = access["ann@example.com"], access["bob@example.com"]
    assert (ann["last_sign_in_by"], ann["password"], ann["second_factor"]) == (
        "https://id.example",
        "yes",
        "no",
    )
    assert ann["last_sign_in_at"].endswith("Z")
    assert (bob["last_sign_in_at"], bob["last_sign_in_by"]) == ("", "")
    [found] = rows(out, "keys")
    assert (found["name"], found["age_days"], found["last_used_at"]) == ("ci", "0", "")
    assert key.startswith(found["prefix"])
    [drill] = rows(out, "restore-drills")
    assert (drill["backup_id"], drill["passed"], drill["checks_wrong"]) == ("bkp_1", "no", "ledger: 2")
    [rotation] = rows(out, "secret-rotations")
    assert (rotation["secret"], rotation["event"], rotation["details"]) == (
        "smtp-password",
        "rotated",
        "note yearly",
    )
    chains = rows(out, "audit-chains")
    assert {row["verified"] for row in chains} == {"yes"}
    assert "'=cmd()" in {row["organization"] for row in chains}, "no formula for a spreadsheet"
    everything = b"".join(path.read_bytes() for path in out.iterdir())
    assert key.encode() not in everything
    assert SECRET.encode() not in everything

    manifest = json.loads((out / "manifest.json").read_text())
    assert {file["name"] for file in manifest["files"]} | {"manifest.json", "SHA256SUMS"} == {
        path.name for path in out.iterdir()
    }
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    assert (out.stat().st_mode & 0o777, (out / "keys.csv").stat().st_mode & 0o777) == (0o700, 0o600)
    code, _, error = run("evidence", "--out", str(out))
    assert (code, "name a directory that does not exist" in error) == (1, True)

    tamper(owner_url)
    code, _, error = run("evidence", "--out", str(tmp_path / "second"))
    assert (code, "the audit log was tampered with" in error) == (1, True)
    broken = [row for row in rows(tmp_path / "second", "audit-chains") if row["verified"] == "no"]
    assert [row["broken_from_entry"] for row in broken] == ["1"]


def tamper(owner_url: str) -> None:
    url = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        connection.execute("SET rootstock.tenant = '*'")
        connection.execute("ALTER TABLE audit_log DISABLE TRIGGER USER")
        connection.execute("UPDATE audit_log SET type = 'x' WHERE seq = 1 AND tenant_id = 'operator'")
        connection.execute("ALTER TABLE audit_log ENABLE TRIGGER USER")


@pytest.mark.parametrize("missing", ["backup", "drill", "checks"])
def test_a_file_that_is_no_drill_is_refused(missing: str) -> None:
    with pytest.raises(KeyError):
        details_of({name: value for name, value in DRILL.items() if name != missing})
