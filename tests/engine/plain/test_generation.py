"""What a generation tells its reader, one that waits and one that listens."""

from __future__ import annotations

import asyncio

import pytest

from engine.protocol import TokenChunk, Usage
from engine.transport.generation import EngineGone, Generation, ReaderStalled


class Client:
    """Where generations come from."""

    def __init__(self) -> None:
        self.num_unread = 0
        self.aborted: list[str] = []

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def chunk(*token_ids: int, index: int = 0) -> TokenChunk:
    return TokenChunk("r", index, list(token_ids))


def test_who_listens_is_told_at_once_and_takes_all_there_is() -> None:
    client = Client()
    generation = Generation(client, "r")
    told: list[tuple[list[int], bool]] = []
    generation.listen(
        lambda: told.append(
            ([token for one in generation.take() for token in one.token_ids], generation.ended)
        )
    )
    assert generation.take() == []
    generation.receive(chunk(1, 2))
    generation.receive(chunk(3))
    assert client.num_unread == 3
    generation.wake()
    generation.receive(chunk(4))
    generation.end(Usage(1, 0, 4), None)
    assert told == [([1, 2, 3], False), ([4], True)]
    assert client.num_unread == 0
    generation.listen(None)
    generation.wake()
    assert len(told) == 2


def test_what_came_before_the_end_is_there_after_it() -> None:
    client = Client()
    generation = Generation(client, "r")
    generation.receive(chunk(1))
    generation.end(None, EngineGone("away"))
    assert generation.ended
    assert [one.token_ids for one in generation.take()] == [[1]]
    assert isinstance(generation.error, EngineGone)


def test_a_stalled_reader_is_told_and_what_comes_later_is_dropped() -> None:
    client = Client()
    generation = Generation(client, "r")
    told: list[bool] = []
    generation.listen(lambda: told.append(generation.ended))
    generation.receive(chunk(1))
    generation.stall(ReaderStalled("too much"))
    assert generation.receive(chunk(2)) == 0
    assert told == [True]
    assert [one.token_ids for one in generation.take()] == [[1]]


async def test_a_reader_that_waits_is_woken_and_reads_to_the_end() -> None:
    generation = Generation(Client(), "r")

    async def read() -> list[int]:
        return [token async for chunks in generation for one in chunks for token in one.token_ids]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    generation.receive(chunk(1))
    generation.wake()
    await asyncio.sleep(0)
    generation.receive(chunk(2))
    generation.end(Usage(1, 0, 2), None)
    assert await reading == [1, 2]


async def test_a_reader_that_is_cancelled_aborts() -> None:
    client = Client()
    generation = Generation(client, "r")
    reading = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert client.aborted == ["r"]
