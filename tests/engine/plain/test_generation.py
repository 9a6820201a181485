"""What a generation tells its reader, one that waits and one that listens."""

from __future__ import annotations

import asyncio

import pytest

from engine.protocol import TokenChunk, Usage
from engine.transport.generation import EngineGone, Generation, ReaderStalled


class Client:
    """Where generations come from."""

    def __init__(self) -> None:
        self._num_unread = 0
        self.aborted: list[str] = []

    def _abort(self, request_id: str) -> None:
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
    generation._receive(chunk(1, 2))
    generation._receive(chunk(3))
    assert client._num_unread == 3
    generation._wake()
    generation._receive(chunk(4))
    generation._close(Usage(1, 0, 4), None)
    assert told == [([1, 2, 3], False), ([4], True)]
    assert client._num_unread == 0
    generation.listen(None)
    generation._wake()
    assert len(told) == 2


def test_what_came_before_the_end_is_there_after_it() -> None:
    client = Client()
    generation = Generation(client, "r")
    generation._receive(chunk(1))
    generation._close(None, EngineGone("away"))
    assert generation.ended
    assert [one.token_ids for one in generation.take()] == [[1]]
    assert isinstance(generation.error, EngineGone)


def test_a_stalled_reader_is_told_and_what_comes_later_is_dropped() -> None:
    client = Client()
    generation = Generation(client, "r")
    told: list[bool] = []
    generation.listen(lambda: told.append(generation.ended))
    generation._receive(chunk(1))
    generation._stall(ReaderStalled("too much"))
    assert generation._receive(chunk(2)) == 0
    assert told == [True]
    assert [one.token_ids for one in generation.take()] == [[1]]


async def test_a_reader_that_waits_is_woken_and_reads_to_the_end() -> None:
    generation = Generation(Client(), "r")

    async def read() -> list[int]:
        return [token async for chunks in generation for one in chunks for token in one.token_ids]

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    generation._receive(chunk(1))
    generation._wake()
    await asyncio.sleep(0)
    generation._receive(chunk(2))
    generation._close(Usage(1, 0, 2), None)
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
