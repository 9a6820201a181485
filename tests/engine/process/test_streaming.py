"""Requests through a real engine process: tokens, ends, refusals, and what is billed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from cli.local.server import LocalServer
from engine.client import EngineClient, Generation, ReaderStalled, RequestRejected
from engine.protocol import Abort, AdapterRef, Outputs, TokenChunk
from tests.engine.process.conftest import Connect
from tests.engine.process.engines import (
    SUBMITTED_AT,
    EngineProcess,
    billed,
    engine_process,
    journal_events,
    read,
    submission,
    tokens_of,
    until,
)


@pytest.fixture(scope="module", params=[0, 1], ids=["in turn", "overlapped"])
def engine(redis_server: LocalServer, request: pytest.FixtureRequest) -> Iterator[EngineProcess]:
    """One of a kind for all of these tests: none of them hurts it."""
    folder = Path(tempfile.mkdtemp(prefix="rs-engine-"))
    for process in engine_process(folder, redis_server.url, null_depth=request.param):
        process.start()
        yield process
    shutil.rmtree(folder)


async def test_a_request_streams_ends_and_is_in_the_journal_when_it_has_ended(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 20))
    items = [chunks async for chunks in generation]
    events = journal_events(redis_url)  # no waiting: it was written before the end was told

    chunks = [chunk for item in items for chunk in item]
    assert len(tokens_of(chunks)) == 20
    assert len(items) > 10, "tokens must come as they are made, not at the end"
    assert chunks[-1].finish_reason == "length"
    assert generation.usage is not None
    assert (generation.usage.prompt_tokens, generation.usage.completion_tokens) == (3, 20)
    (event,) = events
    assert event.usage == generation.usage
    assert (event.request_id, event.tenant, event.submitted_at) == ("r1", "tenant-a", SUBMITTED_AT)
    assert (event.engine_id, event.labels, event.finish_reason) == ("engine-0", {"key_id": "key-1"}, "length")
    assert client.info is not None
    assert event.incarnation == client.info.incarnation
    assert client.num_open == 0


async def test_what_is_wanted_whole_comes_in_few_messages(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    streamed = await read(client.submit(submission("r1", 600)))
    generation = client.submit(submission("r2", 600, whole=True))
    items = [chunks async for chunks in generation]

    assert [len(tokens_of(chunks)) for chunks in items] == [256, 256, 88]
    chunks = [chunk for item in items for chunk in item]
    assert tokens_of(chunks) == tokens_of(streamed)
    assert chunks[-1].finish_reason == "length"
    assert generation.usage is not None
    assert generation.usage.completion_tokens == 600


async def test_what_is_wanted_whole_says_how_long_its_first_token_was_held(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine)
    began = time.monotonic()
    generation = client.submit(submission("r1", 30, whole=True))
    items = [chunks async for chunks in generation]
    took = time.monotonic() - began
    assert len(items) == 1
    assert 29 * 0.01 * 0.9 < generation.held_for < took  # steps of 10 ms after that of the first token

    streamed = client.submit(submission("r2", 3))
    await read(streamed)
    assert streamed.held_for == 0


async def test_what_is_wanted_whole_keeps_its_choices_and_logprobs_apart(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine)
    sampling = {"temperature": 1.0, "seed": 1, "logprobs": 0}
    streamed = await read(client.submit(submission("r1", 30, n=3, sampling=sampling)))
    whole = await read(client.submit(submission("r2", 30, n=3, sampling=sampling, whole=True)))
    for index in range(3):
        assert tokens_of(whole, index) == tokens_of(streamed, index)
        told = [chunk.logprobs for chunk in whole if chunk.index == index and chunk.logprobs]
        assert sum(map(len, told)) == 30


async def test_an_abort_ends_what_is_wanted_whole(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 100_000, whole=True))
    chunks = await anext(generation)
    generation.abort()
    chunks += [chunk async for item in generation for chunk in item]
    assert chunks[-1].finish_reason == "abort"
    assert generation.usage is not None
    assert 1 <= generation.usage.completion_tokens == len(tokens_of(chunks)) < 100_000


async def test_many_requests_of_two_clients_at_once_get_their_own_tokens(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    clients = [await connect(engine), await connect(engine)]
    alone = {
        i: tokens_of(await read(clients[0].submit(submission(f"alone-{i}", 8, prompt_ids=[i + 1, 7]))))
        for i in range(4)
    }
    generations = {
        (c, i): clients[c].submit(submission(f"r-{c}-{i}", 8, prompt_ids=[i + 1, 7]))
        for c in range(2)
        for i in range(4)
    }
    answers = await asyncio.gather(*(read(generation) for generation in generations.values()))

    for (_, i), chunks in zip(generations, answers, strict=True):
        assert tokens_of(chunks) == alone[i]
    bills = billed(journal_events(redis_url))
    assert {bills[f"r-{c}-{i}"].usage.completion_tokens for c, i in generations} == {8}
    assert len({tuple(ids) for ids in alone.values()}) == 4


async def test_choices_of_one_request_are_billed_together(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 5, n=3, sampling={"temperature": 1.0, "seed": 1}))
    chunks = await read(generation)

    assert [len(tokens_of(chunks, index)) for index in range(3)] == [5, 5, 5]
    assert generation.usage is not None
    assert generation.usage.completion_tokens == 15
    assert billed(journal_events(redis_url))["r1"].usage == generation.usage


async def test_an_abort_ends_a_request_within_a_few_steps_and_bills_what_was_made(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine)
    made = []
    while len(made) < 5 and min(made, default=100) > 9:  # the best of a few: a busy reader asks late
        name = f"r{len(made)}"
        generation = client.submit(submission(name, 5000))
        received: list[TokenChunk] = []
        async for chunks in generation:
            received += chunks
            if len(received) >= 5:
                generation.abort()
                generation.abort()
        assert received[-1].finish_reason == "abort"
        made.append(len(tokens_of(received)))
        assert generation.usage is not None
        assert generation.usage.completion_tokens == made[-1]
        assert billed(journal_events(redis_url))[name].usage.completion_tokens == made[-1]
        generation.abort()  # after the end: ignored
    assert 5 <= min(made) <= 9, "it takes effect at the next step"


async def test_a_cancelled_reader_aborts_its_request(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    generation = client.submit(submission("r1", 5000))
    reader = asyncio.create_task(read(generation))
    await asyncio.sleep(0.1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await until(lambda: client.num_open == 0)
    assert generation.usage is not None
    assert generation.usage.completion_tokens < 5000


async def test_nobody_aborts_another_clients_request(engine: EngineProcess, connect: Connect) -> None:
    mine, other = await connect(engine), await connect(engine)
    generation = mine.submit(submission("r1", 30))
    other.submit(submission("r2", 2))
    other._send(Abort("r1"))
    assert len(tokens_of(await read(generation))) == 30


async def test_refusals_name_their_reason_and_are_not_billed(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client, other = await connect(engine), await connect(engine)
    running = client.submit(submission("r1", 150))
    head = await anext(
        running
    )  # two clients' messages have no order: the id must be taken before it is again
    refused = {
        "invalid": client.submit(submission("r2", 5, prompt_ids=[])),
        "context_length_exceeded": client.submit(submission("r3", 5, prompt_ids=[1] * 9000)),
        "duplicate": other.submit(submission("r1", 5)),
    }
    for code, generation in refused.items():
        with pytest.raises(RequestRejected) as refusal:
            await read(generation)
        assert refusal.value.code == code
        assert refusal.value.message
    with pytest.raises(RequestRejected) as refusal:
        client.submit(submission("r1", 5))
    assert refusal.value.code == "duplicate"
    with pytest.raises(RequestRejected, match="labels") as refusal:
        await read(client.submit(submission("r4", 5, labels={"note": "x" * 5000})))
    assert refusal.value.code == "invalid"

    tokens = tokens_of(head + await read(running))
    assert len(tokens) == 150, "the first holder of the id is not disturbed"
    assert set(billed(journal_events(redis_url))) == {"r1"}


async def test_a_reader_that_does_not_read_is_cut_off(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine, max_unread_tokens=20)
    stalled = client.submit(submission("r1", 5000))
    reading = client.submit(submission("r2", 60))
    assert len(tokens_of(await read(reading))) == 60
    kept = await anext(stalled)
    assert len(tokens_of(kept)) == 21, "what came before the limit is still given"
    with pytest.raises(ReaderStalled, match="21 tokens"):
        await anext(stalled)
    await until(lambda: client.stats is not None and client.stats.running == 0)


async def test_readers_that_do_not_read_share_what_may_be_unread_in_all(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine, max_unread_in_all=60)
    stalled = [client.submit(submission(f"r{number}", 5000)) for number in range(2)]
    await until(lambda: all(generation.usage is not None for generation in stalled))
    for generation in stalled:
        assert 30 < len(tokens_of(await anext(generation))) <= 65, "what came before is still given"
        with pytest.raises(ReaderStalled):
            await anext(generation)

    # What has been read, and what nobody can read any more, makes room for others.
    async def leave_unread() -> None:
        forgotten = client.submit(submission("forgotten", 50))
        await until(lambda: forgotten.usage is not None)

    await leave_unread()
    assert len(tokens_of(await read(client.submit(submission("read", 50))))) == 50


async def test_the_end_is_heard_with_the_usage_whatever_becomes_of_the_reader(
    engine: EngineProcess, connect: Connect, redis_url: str
) -> None:
    client = await connect(engine, max_unread_tokens=20)
    ended: dict[str, Generation] = {}

    def hear(generation: Generation) -> None:
        ended[generation.request_id] = generation

    def follow(request_id: str, max_tokens: int) -> Generation:
        generation = client.submit(submission(request_id, max_tokens))
        generation.when_ended(hear)
        return generation

    follow("stalled", 5000)
    left = follow("left", 5000)
    await anext(left)
    left.abort()
    await read(follow("read", 9))
    await until(lambda: len(ended) == 3)
    charged = {event.request_id: event.usage for event in journal_events(redis_url) if event.finish_reason}
    assert {request_id: generation.usage for request_id, generation in ended.items()} == charged
    assert isinstance(ended["stalled"].error, ReaderStalled)
    assert ended["left"].error is None


async def test_adapters_load_in_the_engine_and_heartbeats_show_it(
    engine: EngineProcess, connect: Connect
) -> None:
    client = await connect(engine)
    client.prefetch(AdapterRef("a" * 64, 8))
    await until(lambda: client.stats is not None and client.stats.slots_resident == 1)
    adapter = AdapterRef("b" * 64, 8)
    with_adapter = tokens_of(await read(client.submit(submission("r1", 5, adapter=adapter))))
    without = tokens_of(await read(client.submit(submission("r2", 5))))
    assert with_adapter != without


async def test_messages_that_make_no_sense_harm_nobody(engine: EngineProcess, connect: Connect) -> None:
    client = await connect(engine)
    running = client.submit(submission("r1", 40))
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(engine.endpoint)
    wrong_type = msgspec.msgpack.encode({"type": "submit", "request_id": "bad", "prompt_ids": "text"})
    for parts in ([b""], [b"\xc1"], [b"\x00" * 5000], [b"a", b"b", b"c"], [b"[" * 3000], [wrong_type]):
        socket.send_multipart(parts)
    nested: object = []
    for _ in range(300):
        nested = [nested]
    socket.send(msgspec.msgpack.encode({"type": "submit", "request_id": "deep", "labels": nested}))
    assert socket.poll(30_000)
    answer = msgspec.msgpack.decode(socket.recv(), type=Outputs)
    context.destroy(linger=0)

    (rejected,) = answer.rejected
    assert (rejected.request_id, rejected.code) == ("bad", "invalid")
    assert "prompt_ids" in rejected.message
    assert len(tokens_of(await read(running))) == 40
    await until(lambda: client.stats is not None and client.stats.errors == 7)


async def test_tcp_serves_as_well(
    folder: Path, redis_url: str, connect: Connect, unused_tcp_port: int
) -> None:
    process = EngineProcess(folder, redis_url, endpoint=f"tcp://127.0.0.1:{unused_tcp_port}")
    process.start()
    try:
        client: EngineClient = await connect(process)
        assert len(tokens_of(await read(client.submit(submission("r1", 5))))) == 5
    finally:
        process.end()
