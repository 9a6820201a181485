"""A connection that is kept is as a new one, and one that is of no use any more is not kept."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import make_url

from tests.support.connections import connect

HELD = """SELECT current_setting('statement_timeout'), (
    SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'
), (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels())"""


@pytest.fixture
def server(database_url: str) -> str:
    return make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)


async def test_what_a_closed_one_held_is_gone(server: str) -> None:
    first = await connect(server)
    process = first.info.backend_pid
    as_new = await (await first.execute(HELD)).fetchone()
    await first.execute("SET statement_timeout = 77777")
    await first.execute("SELECT pg_advisory_lock(7)")
    await first.execute("SELECT 1", prepare=True)
    await first.execute("LISTEN something")
    await first.commit()
    assert await (await first.execute(HELD)).fetchone() != as_new
    await first.commit()
    await first.close()
    again = await connect(server)
    assert again.info.backend_pid == process
    assert await (await again.execute(HELD)).fetchone() == as_new
    assert await (await again.execute("SELECT 1", prepare=True)).fetchone() == (1,)
    await again.commit()
    await again.close()


async def test_neither_a_transaction_is_kept_nor_what_the_server_ended(
    server: str, postgres_admin: psycopg.Connection
) -> None:
    first = await connect(server)
    begun = first.info.backend_pid
    await first.execute("SELECT 1")
    await first.close()
    second = await connect(server)
    ended = second.info.backend_pid
    assert ended != begun
    await second.close()
    postgres_admin.execute("SELECT pg_terminate_backend(%s, 10000)", (ended,))
    third = await connect(server)
    assert third.info.backend_pid != ended
    assert await (await third.execute("SELECT 1")).fetchone() == (1,)
    await third.commit()
    await third.close()
