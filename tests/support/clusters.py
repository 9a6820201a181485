"""Starts a test process's PostgreSQL on a copy of a cluster that already holds the migrated schema.

Initialising a cluster and running every migration takes several seconds of CPU; copying the result takes a
tenth. The original is kept under `var/`, named by a digest of everything it is made from.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import psycopg
from sqlalchemy import make_url

from cli.local.postgres import installations, serving_url, start_postgres
from cli.local.server import LocalServer
from db import schema
from tests.support.scratch import scratch_directory

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "var" / "test-clusters"
MADE_FROM = ("migrations", "db", "cli/local", "tests/support/clusters.py")
TEMPLATE = "template_migrated"
"""A database at the current schema, to which nothing connects."""
MIGRATOR = "rootstock_migrator"
"""Owner of the template and of its copies: no superuser, since the documented owner is none."""


def start_migrated(directory: Path) -> LocalServer:
    """Start PostgreSQL in `directory`, with TEMPLATE in it; its data survive no crash."""
    subprocess.run(["cp", "-a", _original() / "postgres", directory / "postgres"], check=True)
    return start_postgres(directory, ephemeral=True)


def _original() -> Path:
    """The kept cluster; it is made when there is none for this schema, and older ones are removed."""
    KEPT.mkdir(parents=True, exist_ok=True)
    wanted = KEPT / _digest()
    with (KEPT / "lock").open("w") as one_at_a_time:
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        if not wanted.exists():
            for outdated in KEPT.glob("*/"):
                shutil.rmtree(outdated)
            _make(wanted)
    return wanted


def _make(wanted: Path) -> None:
    with scratch_directory() as directory:
        with start_postgres(directory, ephemeral=True) as server:
            _migrate(server)
        unfinished = wanted.with_name("unfinished")
        unfinished.mkdir()
        subprocess.run(["cp", "-a", directory / "postgres", unfinished / "postgres"], check=True)
        unfinished.rename(wanted)


def _migrate(server: LocalServer) -> None:
    url = make_url(server.url)
    admin = url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {MIGRATOR} LOGIN NOSUPERUSER NOBYPASSRLS")
        connection.execute(f"CREATE DATABASE {TEMPLATE} OWNER {MIGRATOR}")
    superuser_url = url.set(database=TEMPLATE).render_as_string(hide_password=False)
    schema.upgrade(migrator_url(superuser_url), serving_url(superuser_url))


def migrator_url(url: str) -> str:
    """The same database for the role that migrates."""
    return make_url(url).set(username=MIGRATOR).render_as_string(hide_password=False)


def _digest() -> str:
    digest = hashlib.sha256(repr(next(installations(), None)).encode())
    for place in MADE_FROM:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
