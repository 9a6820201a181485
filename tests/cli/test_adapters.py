"""Adapters and plans from the command line, over a real database and Redis; no engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from adapters.bases import Bases
from adapters.service import AdapterService
from cli.main import main
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef
from tenants.service import TenantService

SECRET = "a server's secret of enough length"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command against a service with one tenant, acme, whose adapter pirate has two versions."""
    for name, value in {
        "DB_URL": database_url,
        "REDIS_URL": redis_url,
        "TENANTS_KEY_SECRET": SECRET,
        "ENGINE_BASE_NAME": "sapling",
    }.items():
        monkeypatch.setenv(f"ROOTSTOCK_{name}", value)

    async def populate() -> None:
        database = Database(database_url)
        async with Redis.from_url(redis_url) as redis:
            tenant = await TenantService(database, redis).create_tenant("acme")
            for digit in "12":
                await AdapterService(database, redis, Bases("sapling")).register_version(
                    tenant.id, "pirate", AdapterRef(digit * 64, 8), base_digest="b" * 64
                )
            async with database.write(EVERY_TENANT) as session:
                await session.execute(
                    text(
                        "INSERT INTO adapter_versions (adapter_id, version, tenant_id, digest, rank,"
                        " base_digest, state, error) SELECT id, 3, tenant_id, :digest, 8, :base, 'failed',"
                        " 'the gate says no' FROM adapters"
                    ),
                    {"digest": "3" * 64, "base": "b" * 64},
                )
        await database.close()

    asyncio.run(populate())

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["rootstock", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return command


def test_an_adapters_life(run: Run) -> None:
    listed = run("adapter", "list", "acme")[1].splitlines()
    assert listed[0].split() == ["MODEL", "STATE", "ACTIVE", "RANK", "SINCE", "ID"]
    assert listed[1].split()[:4] == ["sapling:pirate", "ready", "2", "8"]
    assert run("adapter", "rollback", "acme", "pirate") == (0, "sapling:pirate@1\n", "")
    assert run("adapter", "activate", "acme", "pirate", "2") == (0, "sapling:pirate@2\n", "")
    code, _, said = run("adapter", "activate", "acme", "pirate", "3")
    assert (code, said) == (1, "rootstock: version 3 of the adapter 'pirate' is not ready: failed\n")
    assert run("adapter", "override", "acme", "pirate", "3", "--reason", "they know")[0] == 0
    assert run("adapter", "activate", "acme", "pirate", "3")[1] == "sapling:pirate@3\n"
    shown = run("adapter", "show", "acme", "pirate")[1]
    assert "3*" in shown
    assert "they know" in shown
    assert "version.overridden" in shown
    assert run("adapter", "disable", "acme", "pirate")[1] == "pirate is disabled\n"
    assert run("adapter", "list", "acme")[1].splitlines()[1].split()[1] == "disabled"
    assert run("adapter", "enable", "acme", "pirate")[0] == 0
    assert run("adapter", "delete", "acme", "pirate")[1].endswith(" is deleted\n")
    assert run("adapter", "list", "acme")[1].count("\n") == 1
    assert run("adapter", "show", "acme", "pirate") == (1, "", "rootstock: there is no adapter 'pirate'\n")


def test_of_many_versions_the_last_are_shown(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.adapters._PAGE", 2)
    shown = run("adapter", "show", "acme", "pirate")[1].splitlines()
    assert [line.split()[0] for line in shown[:4] if line] == ["VERSION", "2*", "3"]


def test_plans(run: Run) -> None:
    code, made, _ = run(
        *("plan", "create", "large", "--max-adapters", "500", "--pinned-adapters", "3"),
        *("--gate", "min_agreement=0.9", "--monthly-fee", "20000000", "--included-usage", "5000000"),
    )
    assert code == 0
    assert made.startswith("plan_")
    assert run("tenant", "set-plan", "acme", "large")[1] == "acme is on the plan large\n"
    assert run("plan", "set", "large", "--max-file-bytes", "1000")[0] == 0
    assert run("plan", "list")[1].splitlines()[2].split() == [
        "large",
        "500",
        "1000",
        "3",
        "20.000000",
        "5.000000",
        "min_agreement=0.9",
        "-",
    ]
    for arguments, code, says in (
        (("plan", "create", "large"), 1, "'large' is taken"),
        (("plan", "set", "absent"), 1, "there is no plan 'absent'"),
        (("plan", "set", "large", "--gate", "high"), 2, "--gate 'high' cannot be read: write NAME=NUMBER"),
        (("tenant", "set-plan", "nobody", "large"), 1, "there is no tenant 'nobody'"),
    ):
        ended, _, said = run(*arguments)
        assert (ended, says in said) == (code, True), said
