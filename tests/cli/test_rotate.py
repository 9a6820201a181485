"""`rootstock rotate`: the walks of the documentation, step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
import redis

from adapters.imports.admission import ImportAdmission
from adapters.imports.policy import ImportPolicy
from adapters.imports.sources import HubSource
from adapters.jobs.models import IMPORT, Job
from billing.request_metadata.content import MetadataSealer, RequestMetadata
from billing.request_metadata.recorder import STREAM, MetadataEntry
from cli.datadir import DataDir, write_private_json
from db.session import EVERY_TENANT, Database
from tests.cli.test_accounts import SECRET, Run, run, table

__all__ = ["run"]

NEW = "the secret that follows it, of enough length"


def rotating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", NEW)
    monkeypatch.setenv("ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET", SECRET)


def test_a_walk_with_secrets_in_the_environment(
    run: Run, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    run("tenant", "create", "acme")
    run("key", "create", "acme")
    guide = run("rotate", "key-secret")[1]
    assert "ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET" in guide
    for command in ("reseal", "finish"):
        code, _, error = run("rotate", command)
        assert (code, "the service has one key secret" in error) == (1, True)
    rotating(monkeypatch)
    code, printed, _ = run("rotate", "status")
    assert code == 0
    assert table(printed)[0] == ["API keys", "0", "1", "0"]
    [key] = table(run("key", "list", "acme")[1])
    assert key[0] in printed, "to be replaced if it is not used"
    status = json.loads(run("rotate", "status", "--json")[1])
    assert (status["rotating"], status["waiting"]) == (True, 1)
    assert SECRET not in printed
    code, printed, _ = run("rotate", "reseal")
    assert code == 0
    assert {row[1] for row in table(printed)} == {"0"}
    code, _, error = run("rotate", "finish")
    assert (code, "1 credentials and values would be lost" in error) == (1, True)
    run("key", "revoke", "acme", key[0])
    with redis.Redis.from_url(redis_url) as client:
        sealed = MetadataSealer(SECRET).seal(RequestMetadata("user-77"), "tnt_1", "req_1")
        client.xadd(STREAM, {"row": msgspec.msgpack.encode(MetadataEntry("tnt_1", "req_1", sealed))})
        code, _, error = run("rotate", "finish")
        assert (code, "let a worker store it" in error) == (1, True)
        client.delete(STREAM)
    code, printed, _ = run("rotate", "finish")
    assert (code, "unset ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET" in printed) == (0, True)
    events = [row[2] if len(row) > 2 else "" for row in table(run("audit", "list")[1])]
    assert "secret.rotated" in " ".join(events) + run("audit", "list")[1]


def test_keys_can_be_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("tenant", "create", "acme")
    run("key", "create", "acme")
    rotating(monkeypatch)
    code, printed, _ = run("rotate", "finish", "--anyway")
    assert (code, "1 credentials and values are lost" in printed) == (0, True)


def test_imports_end_before_their_credentials_are_lost(
    run: Run, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    tenant_id = run("tenant", "create", "acme")[1].split()[0]
    admission = ImportAdmission(ImportPolicy(), SECRET)
    source = admission.admitted(HubSource("acme/adapter", token="hf_token"))
    stored = admission.sealed(source, tenant_id, "adp_1")

    async def add() -> None:
        database = Database(database_url)
        try:
            async with database.write(EVERY_TENANT) as session:
                job = Job(id="job_1", tenant_id=tenant_id, adapter_id="adp_1", version=1, status="queued")
                job.parameters = {IMPORT: stored}
                session.add(job)
        finally:
            await database.close()

    asyncio.run(add())
    rotating(monkeypatch)
    code, _, error = run("rotate", "finish")
    assert (code, "1 imports of adapters hold credentials" in error, "job_1" in error) == (1, True, True)
    code, printed, _ = run("rotate", "finish", "--anyway")
    assert (code, "1 credentials and values are lost" in printed) == (0, True)


def test_a_walk_in_a_data_directory(
    run: Run, environment: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", str(tmp_path))
    kept = DataDir(tmp_path)
    old = kept.secret("key_secret")

    def restart() -> None:
        previous = kept.previous_key_secret()
        settings = {**environment, "ROOTSTOCK_TENANTS_KEY_SECRET": kept.secret("key_secret")}
        if previous is not None:
            settings["ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET"] = previous
        write_private_json(tmp_path / "serving.json", {"environment": settings})

    code, _, error = run("rotate", "key-secret", *data)
    assert (code, "nothing serves from" in error) == (1, True)
    write_private_json(tmp_path / "serving.json", {"environment": {**environment}})
    code, _, error = run("rotate", "key-secret", *data)
    assert (code, "is set where `rootstock up` was started" in error) == (1, True)
    restart()
    assert run("rotate", "key-secret", *data)[0] == 0
    assert kept.previous_key_secret() == old
    assert kept.secret("key_secret") != old
    code, _, error = run("rotate", "key-secret", *data)
    assert (code, "a rotation has begun" in error) == (1, True)
    code, _, error = run("rotate", "finish", *data)
    assert (code, "one key secret" in error) == (1, True), "the running processes do not know of it"
    restart()
    assert run("rotate", "reseal", *data)[0] == 0
    assert run("rotate", "finish", *data)[0] == 0
    assert kept.previous_key_secret() is None
    assert set(json.loads((tmp_path / "secrets.json").read_text())) == {"key_secret"}
    log = run("audit", "list", *data)[1]
    assert all(event in log for event in ("secret.rotation_begun", "secret.resealed", "secret.rotated"))
    assert old not in log


def test_a_client_key_and_rotations_done_elsewhere(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "clients.key"
    old = run("client-key", str(file))[1].strip()
    both = run("rotate", "client-key", "add", str(file))[1].strip()
    assert both.split(",")[0] == old
    assert run("client-key", str(file))[1].strip() == both
    assert run("rotate", "client-key", "switch", str(file))[1].strip().split(",")[::-1] == both.split(",")
    assert run("rotate", "client-key", "finish", str(file))[1].strip() == both.split(",")[1]
    assert run("rotate", "client-key", "finish", str(file))[0] == 1
    code, printed, _ = run("rotate", "record", "smtp-password", "--note", "yearly")
    assert (code, printed.startswith("recorded: smtp-password was rotated")) == (0, True)
    code, _, error = run("rotate", "record", "colour")
    assert (code, "use one of key-secret" in error) == (1, True)


def test_the_signing_key(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "signing.key"
    old = run("rotate", "signing-key", "make", str(file))[1].strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert run("rotate", "signing-key", "make", str(file))[1].strip() == old
    both = run("rotate", "signing-key", "add", str(file))[1].strip()
    assert both.split(",")[0] == old
    code, _, error = run("rotate", "signing-key", "add", str(file))
    assert (code, "has 2 keys already" in error) == (1, True)
    switched = run("rotate", "signing-key", "switch", str(file))[1].strip()
    assert switched.split(",")[::-1] == both.split(",")
    assert run("rotate", "signing-key", "finish", str(file))[1].strip() == switched.split(",")[0]
    assert run("rotate", "signing-key", "show", str(file))[1].strip() == switched.split(",")[0]
    assert "signing-key" in run("audit", "list")[1]
    file.write_text("nothing")
    code, _, error = run("rotate", "signing-key", "show", str(file))
    assert (code, "0 keys in PEM" in error) == (1, True)
    code, _, error = run("rotate", "signing-key", "show")
    assert (code, "name the key file" in error) == (1, True)
