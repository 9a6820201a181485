"""When Redis counts as away: it does not answer, though we look."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
import redis
import uvloop

from tenants.quotas.redis_connection import RedisConnection, RedisDown
from tenants.quotas.scripts import command
from tests.support.waiting import eventually

PATIENCE = 0.3


async def test_standing_still_ourselves_is_not_its_silence(redis_url: str) -> None:
    """The answer comes after the patience, most of which this process has slept through."""
    connection = RedisConnection(redis_url, [], timeout=PATIENCE, on_connected=lambda: None)
    connection.start()
    other = redis.Redis.from_url(redis_url)
    try:
        await eventually(lambda: connection.is_up)
        other.execute_command("CLIENT", "PAUSE", 500)
        asked = connection.call(command(b"PING"))
        await asyncio.sleep(0)  # it is sent
        time.sleep(0.45)  # noqa: ASYNC251  the loop stands still
        assert await asked == b"PONG"
    finally:
        other.close()
        await connection.close()


async def test_no_answer_is_noticed_in_time(redis_url: str) -> None:
    connection = RedisConnection(redis_url, [], timeout=PATIENCE, on_connected=lambda: None)
    connection.start()
    other = redis.Redis.from_url(redis_url)
    try:
        await eventually(lambda: connection.is_up)
        other.execute_command("CLIENT", "PAUSE", 1500)  # milliseconds; it ends by itself
        with pytest.raises(RedisDown, match="no answer"):
            await connection.call(command(b"PING"))
        assert not connection.is_up
    finally:
        other.close()
        await connection.close()


class Peer:
    """Takes a connection on a thread of its own and remembers what came, piece by piece."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}"
        self.pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection, _ = self._listening.accept()
        with connection, self._listening:
            while piece := connection.recv(65536):
                self.pieces.append(piece)
                connection.sendall(b"+OK\r\n" * piece.count(b"PING"))

    def wait_for(self, num_pieces: int, seconds: float = 5.0) -> bool:
        """With the caller's event loop standing still."""
        deadline = time.monotonic() + seconds
        while len(self.pieces) < num_pieces and time.monotonic() < deadline:
            time.sleep(0.005)
        return len(self.pieces) >= num_pieces

    def close(self) -> None:
        self._thread.join(5)


async def _order_of_leaving(peer: Peer) -> None:
    connection = RedisConnection(peer.url, [], timeout=5.0, on_connected=lambda: None)
    connection.start()
    try:
        await eventually(lambda: connection.is_up)
        ping = command(b"PING")
        urgent = connection.call(ping, urgent=True)
        assert peer.wait_for(1), "before the loop turns"
        later = [connection.call(ping), connection.call(ping, urgent=True)]
        assert not peer.wait_for(2, seconds=0.1), "one packet a turn, however urgent its parts are"
        assert await asyncio.gather(urgent, *later) == [b"OK"] * 3
        assert [piece.count(b"PING") for piece in peer.pieces] == [1, 2]
        told = connection.call(ping)
        assert not peer.wait_for(3, seconds=0.1), "nobody waits for it"
        assert await told == b"OK"
    finally:
        await connection.close()


def test_an_urgent_call_leaves_at_once_and_what_follows_together() -> None:
    """On the loop that serves, which has not always written at once."""
    peer = Peer()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_order_of_leaving(peer))
    peer.close()
