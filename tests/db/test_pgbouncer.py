"""The pool behind a real PgBouncer, which refuses `options` and gives each transaction another connection."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url, text

from cli.local.postgres import SERVING_ROLE
from db import schema
from db.session import Database
from tests.support import unpacked_programs
from tests.support.ports import free_port
from tests.support.waiting import until

INI = """
[databases]
* = host={sockets}
[pgbouncer]
pool_mode = {mode}
default_pool_size = 2
query_wait_timeout = 15
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
logfile = {log}
{user}
"""

Through = Callable[[str], str]


@pytest.fixture
def through_pgbouncer(database_url: str, servers_dir: Path) -> Iterator[Through]:
    """Starts a PgBouncer in a pool mode; the database's URL through it."""
    program = unpacked_programs.program("pgbouncer")
    started: list[subprocess.Popen[bytes]] = []
    url = make_url(database_url)

    def start(mode: str) -> str:
        port = free_port()
        users, ini = servers_dir / "bouncer-users.txt", servers_dir / "bouncer.ini"
        users.write_text(f'"{SERVING_ROLE}" ""\n')
        sockets = Path(str(url.query["host"]))
        # It will not run as root, and only the server's account may enter the directory of its socket.
        user = f"user = {sockets.owner()}" if os.geteuid() == 0 else ""
        log = servers_dir / "bouncer.log"
        log.touch()
        log.chmod(0o666)
        ini.write_text(INI.format(sockets=sockets, mode=mode, port=port, users=users, log=log, user=user))
        servers_dir.chmod(0o711)
        command = [program, "-q", ini]
        started.append(
            subprocess.Popen(command, env=unpacked_programs.environment(), stdout=subprocess.DEVNULL)
        )

        def is_listening() -> bool:
            with socket.socket() as client:
                return client.connect_ex(("127.0.0.1", port)) == 0

        until(is_listening, 20, "PgBouncer listens")
        bounced = url.set(host="127.0.0.1", port=port).difference_update_query(["host"])
        return bounced.render_as_string(hide_password=False)

    yield start
    for process in started:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize(("mode", "prepared"), [("session", True), ("transaction", False)])
async def test_transactions_keep_their_tenant_and_settings_behind_pgbouncer(
    through_pgbouncer: Through, mode: str, prepared: bool
) -> None:
    url = through_pgbouncer(mode)
    # Two connections each: in session mode all that PgBouncer has to the server.
    database, others = (
        Database(url, pool_size=2, pool_overflow=0, statement_timeout=n, prepared_statements=prepared)
        for n in (7, 9)
    )
    query = text(
        "SELECT current_setting('rootstock.tenant'), current_setting('statement_timeout'),"
        " current_setting('timezone')"
    )

    async def look(pool: Database, tenant: str) -> tuple[str, ...]:
        async with pool.read(tenant) as session:
            first = (await session.execute(query)).one()
            await asyncio.sleep(0)  # others have their turn between two statements
            assert (await session.execute(query)).one() == first
            return tuple(first)

    try:
        await schema.assert_fit_to_serve(database)
        if mode == "session":  # there a connection is its client's: as many as the pool has
            await others.close()
            others = database
        turns = [(pool, f"ten_{n}") for n in range(20) for pool in (database, others)]
        seen = await asyncio.gather(*(look(pool, tenant) for pool, tenant in turns))
        assert seen == [(tenant, "7s" if pool is database else "9s", "UTC") for pool, tenant in turns]
    finally:
        await database.close()
        await others.close()
