"""Accounts from the command line, over a real database and Redis."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import make_url

from cli.main import main

SECRET = "a server's secret of enough length"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Run a command against a service without tenants; `typed` is what its standard input says."""
    for name, value in {
        "DB_URL": database_url,
        "REDIS_URL": redis_url,
        "TENANTS_KEY_SECRET": SECRET,
    }.items():
        monkeypatch.setenv(f"ROOTSTOCK_{name}", value)

    def command(*arguments: str, typed: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["rootstock", *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return command


def table(printed: str) -> list[list[str]]:
    """Rows below the header; cells are apart by two spaces."""
    return [re.split(r"\s{2,}", line) for line in printed.splitlines()[1:]]


def test_an_accounts_life_and_its_log(run: Run, owner_url: str) -> None:
    tenant = run("tenant", "create", "acme")[1].strip()
    assert tenant.startswith("tnt_")
    project = run("project", "create", "acme", "web")[1].strip()
    assert [(name, state) for name, _, _, state in table(run("project", "list", "acme")[1])] == [
        ("Default", "default"),
        ("web", "active"),
    ]
    options = ("--project", "web", "--model", "base:*", "--network", "10.0.0.0/8", "--days", "30")
    code, key, _ = run("key", "create", "acme", "--name", "ci", *options)
    assert (code, key.startswith("rs_inference_")) == (0, True)
    [listed] = table(run("key", "list", "acme")[1])
    assert listed[1:4] == ["ci", "inference", "web"]
    assert listed[-1] == "active"
    code, new, _ = run("key", "rotate", "acme", listed[0], "--grace", "2")
    assert (code, new.startswith("rs_inference_"), new != key) == (0, True, True)
    assert run("key", "revoke", "acme", table(run("key", "list", "acme")[1])[1][0])[0] == 0
    assert [row[-1] for row in table(run("key", "list", "acme")[1])] == ["rotated", "revoked"]
    assert run("project", "archive", "acme", "web") == (0, "web is archived\n", "")
    assert {row[-1] for row in table(run("key", "list", "acme")[1])} == {"revoked"}

    for email, role in (("ann@example.com", "owner"), ("bob@example.com", "viewer")):
        typed = "correct horse battery\n"
        assert run("user", "create", "acme", email, "--role", role, typed=typed)[0] == 0
    assert run("user", "set-role", "acme", "bob@example.com", "admin")[1] == "bob@example.com is admin\n"
    assert [(row[0], row[2]) for row in table(run("user", "list", "acme")[1])] == [
        ("ann@example.com", "owner"),
        ("bob@example.com", "admin"),
    ]
    assert run("user", "remove", "acme", "bob@example.com")[0] == 0
    code, _, said = run("user", "remove", "acme", "ann@example.com")
    assert (code, "last owner" in said) == (1, True)
    assert run("tenant", "disable", "acme")[1] == "acme is disabled\n"
    assert table(run("tenant", "list")[1])[0][-1] == "disabled"
    assert run("tenant", "enable", "acme")[0] == 0

    entries = table(run("audit", "list", "acme", "--limit", "3")[1])
    assert [(row[2], row[3]) for row in entries] == [
        ("organization.updated", "operator"),
        ("organization.updated", "operator"),
        ("user.deleted", "operator"),
    ]
    assert run("audit", "verify") == (0, "1 audit log verified\n", "")
    owner = make_url(owner_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(owner) as connection:
        connection.execute("ALTER TABLE audit_log DISABLE TRIGGER USER")
        connection.execute("UPDATE audit_log SET details = '{}' WHERE target_id = %s AND seq > 2", [project])
    code, _, said = run("audit", "verify", "acme")
    assert (code, said) == (1, f"rootstock: the audit log was tampered with: {tenant} from entry 3\n")


def test_what_is_not_there_is_named(run: Run) -> None:
    run("tenant", "create", "acme")
    for arguments, code, says in (
        (("tenant", "create", "acme"), 1, "the tenant name 'acme' is taken"),
        (("key", "list", "birch"), 1, "there is no tenant 'birch'"),
        (("key", "create", "acme", "--project", "web"), 2, "acme has no project 'web'"),
        (("key", "create", "acme", "--network", "10.0.0.1/8"), 1, "networks"),
        (("key", "create", "acme", "--origin", "app.example"), 1, "origins"),
        (("key", "rotate", "acme", "key_none"), 1, "there is no API key 'key_none'"),
        (("user", "remove", "acme", "eve@example.com"), 2, "acme has no user 'eve@example.com'"),
        (("project", "archive", "acme", "Default"), 1, "default and cannot be archived"),
        (("audit", "list", "birch"), 1, "there is no tenant 'birch'"),
    ):
        found, out, said = run(*arguments)
        assert (found, out, says in said) == (code, "", True), (arguments, said)


def test_plans_are_in_a_chain_of_their_own(run: Run) -> None:
    run("tenant", "create", "acme")
    run("plan", "create", "large", "--max-adapters", "7")
    run("tenant", "set-plan", "acme", "large")
    assert [row[2] for row in table(run("audit", "list")[1])] == ["plan.created"]
    assert table(run("audit", "list", "acme")[1])[0][2] == "organization.updated"
    assert run("audit", "verify") == (0, "2 audit logs verified\n", "")


def test_a_forgotten_password_is_reset(run: Run, owner_url: str) -> None:
    run("tenant", "create", "acme")
    typed = "correct horse battery\n"
    assert run("user", "create", "acme", "ann@example.com", typed=typed)[0] == 0
    for options in ((), ("--second-factor",)):  # there is none: nothing to take away
        code, token, _ = run("user", "reset", "acme", "ann@example.com", *options)
        assert (code, token.startswith("rs_reset_")) == (0, True)
    code, _, said = run("user", "reset", "acme", "bob@example.com")
    assert (code, "no user" in said) == (2, True)
    with psycopg.connect(make_url(owner_url).set(drivername="postgresql").render_as_string(False)) as rows:
        rows.execute("SELECT set_config('rootstock.tenant', '*', false)")
        kept = rows.execute("SELECT count(*) FROM password_resets").fetchone()
        told = rows.execute(
            "SELECT actor->>'id' FROM audit_log WHERE type = 'password.reset_made'"
        ).fetchall()
    assert (kept, told) == ((2,), [("operator",), ("operator",)])
