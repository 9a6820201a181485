"""Batches whose processes die, stop or stall: every line is answered once, under one id."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime

import openai
import pytest
from sqlalchemy import text

from batches.errors import BatchLeaseLost
from batches.lease import LineResult, claim
from db.session import EVERY_TENANT
from engine.protocol import Submit
from tests.api.fakes import Script
from tests.batches.conftest import Batches, as_jsonl, lines
from tests.support.waiting import eventually

URLS = ("/v1/chat/completions",)


async def test_another_process_goes_on_under_the_same_ids(place: Batches) -> None:
    place.world.engine.script = lambda submit: place.world.engine.says(submit, "Hello world", delay=0.02)
    batch = await place.create(as_jsonl(lines(48)))
    for number in range(4):
        runner = await place.start(f"api-{number}", lines_at_once=8)
        before = len(place.world.engine.submitted)
        await eventually(lambda: len(place.world.engine.submitted) >= before + 6)  # noqa: B023
        await place.kill(runner)
    await place.start("api-last")

    done = await place.ended(batch.id)

    rows = await place.rows(done.output_file_id)
    assert done.status == "completed"
    assert [row["custom_id"] for row in rows] == [f"request-{number}" for number in range(48)]
    by_line: dict[tuple[int, ...], set[tuple[str, float, int | None]]] = {}
    for submit in place.world.engine.submitted:
        identity = (submit.request_id, submit.submitted_at, submit.sampling.seed)
        by_line.setdefault(tuple(submit.prompt_ids), set()).add(identity)
    assert len(place.world.engine.submitted) > 48, "a line ran twice"
    assert {len(identities) for identities in by_line.values()} == {1}
    assert len({request_id for ((request_id, _, _),) in map(tuple, by_line.values())}) == 48
    reserved = Counter(reservation.request_id for reservation in place.world.quotas.reserved)
    assert set(reserved.values()) == {1}, "each attempt has a reservation of its own"
    assert place.world.quotas.num_held == 0


async def test_a_stopping_process_hands_its_batches_over_at_once(place: Batches) -> None:
    place.world.engine.script = lambda submit: place.world.engine.says(submit, "Hello world", delay=0.05)
    batch = await place.create(as_jsonl(lines(24)))
    first = await place.start("api-1", lines_at_once=4)
    await eventually(lambda: len(place.world.engine.submitted) >= 6)

    place.runners.remove(first)
    await first.close()
    async with place.database.read(EVERY_TENANT) as session:
        row = (await session.execute(text("SELECT lease_owner, status FROM batches"))).one()
    assert tuple(row) == (None, "in_progress")
    await place.start("api-2")

    done = await place.ended(batch.id)
    assert len(await place.rows(done.output_file_id)) == 24
    assert len({submit.request_id for submit in place.world.engine.submitted}) == 24


async def test_the_engine_answering_duplicate_is_asked_again(place: Batches) -> None:
    seen: Counter[str] = Counter()

    def script(submit: Submit) -> Script:
        seen[submit.request_id] += 1
        if seen[submit.request_id] < 3:
            return Script(reject=("duplicate", "it runs already"))
        return place.world.engine.says(submit, "Hello world")

    place.world.engine.script = script
    await place.start()
    batch = await place.create(as_jsonl(lines(2)))

    done = await place.ended(batch.id)

    assert len(await place.rows(done.output_file_id)) == 2
    assert set(seen.values()) == {3}


async def test_an_engine_that_dies_is_waited_for(place: Batches) -> None:
    seen: Counter[str] = Counter()

    def script(submit: Submit) -> Script:
        seen[submit.request_id] += 1
        said = place.world.engine.says(submit, "Hello world")
        if seen[submit.request_id] == 1:
            said.gone_after = 1
        return said

    place.world.engine.script = script
    await place.start()
    batch = await place.create(as_jsonl(lines(4)))

    done = await place.ended(batch.id)

    assert len(await place.rows(done.output_file_id)) == 4
    assert set(seen.values()) == {2}


async def test_a_lost_lease_writes_nothing(place: Batches) -> None:
    batch = await place.create(as_jsonl(lines(2)))
    options = {"endpoints": URLS, "seconds": 1.0, "most_per_tenant": 4}
    late = await claim(place.database, "late", **options)  # type: ignore[arg-type]
    assert late is not None
    assert await late.accept(2, None)
    assert await claim(place.database, "other", **options) is None  # type: ignore[arg-type]
    await place.change("UPDATE batches SET lease_until = now() - interval '1 second'")
    latest = await claim(place.database, "other", **options)  # type: ignore[arg-type]
    assert latest is not None
    assert latest.batch.id == batch.id

    for attempt in (
        late.begin([1]),
        late.store([LineResult(1, "{}", False)]),
        late.finalize(),
        late.end(None, None),
        late.renew(),
    ):
        with pytest.raises(BatchLeaseLost):
            await attempt

    began = await latest.begin([1, 2])
    assert await latest.begin([1, 2]) == began, "as after a commit of which no answer came"
    await latest.store([LineResult(1, "first", False)])
    await latest.store([LineResult(1, "second", False), LineResult(2, "two", True)])
    assert await latest.results(failed=False, after=0, limit=10) == [(1, "first")]
    assert (latest.batch.completed, latest.batch.failed) == (1, 1)


async def test_batches_of_a_busy_tenant_leave_room_for_others(place: Batches) -> None:
    ours = [await place.create(as_jsonl(lines(1))) for _ in range(3)]
    theirs = await place.create(as_jsonl(lines(1)), key=_OTHER)
    options = {"endpoints": URLS, "seconds": 30.0, "most_per_tenant": 2}

    taken = [await claim(place.database, "api", **options) for _ in range(4)]  # type: ignore[arg-type]

    ids = [lease.batch.id for lease in taken if lease is not None]
    assert ids == [ours[0].id, theirs.id, ours[1].id]
    assert taken[3] is None, "the tenant's third batch waits"


_OTHER = "sk-rs-0123456789abcdefABCDEFkey-two"


async def test_leases_are_kept_while_lines_take_long(place: Batches) -> None:
    place.world.engine.script = lambda submit: Script(
        place.world.engine.says(submit, "Hello").steps, hang_after=1
    )
    await place.create(as_jsonl(lines(1)))
    await place.start("api-1", lease=5.0)
    await eventually(lambda: len(place.world.engine.submitted) == 1)
    before = await until_leased(place)

    async def is_renewed() -> bool:
        return (await until_leased(place)) > before

    await eventually(is_renewed)


async def until_leased(place: Batches) -> datetime:
    async with place.database.read(EVERY_TENANT) as session:
        until: datetime = (await session.execute(text("SELECT lease_until FROM batches"))).scalar_one()
    return until


async def test_slots_go_to_the_tenant_that_has_fewest() -> None:
    from api.batches.fair_slots import FairSlots

    slots, order = FairSlots(3), []

    async def take(tenant: str) -> None:
        await slots.acquire(tenant)
        order.append(tenant)

    for _ in range(3):
        await take("busy")
    waiting = [asyncio.create_task(take(tenant)) for tenant in ("busy", "busy", "quiet", "quiet")]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    for _ in range(3):
        slots.release("busy")
        await asyncio.sleep(0)

    assert order == ["busy"] * 3 + ["quiet", "busy", "quiet"]
    for tenant in ("quiet", "quiet", "busy"):
        slots.release(tenant)
    await asyncio.wait_for(slots.acquire("late"), 1)


async def lose_input(place: Batches, batch: openai.types.Batch) -> None:
    """As if the object store had lost the batch's copy."""
    async with place.database.read(EVERY_TENANT) as session:
        query = text("SELECT input_key FROM batches WHERE id = :id")
        key = (await session.execute(query, {"id": batch.id})).scalar_one()
    await place.store.delete(key)


@pytest.mark.parametrize("has_file", [True, False])
async def test_an_input_that_the_store_has_lost(place: Batches, has_file: bool) -> None:
    """It is copied again; without the input file the batch fails, with what was answered."""
    world, seen = place.world, Counter[str]()

    def script(submit: Submit) -> Script:
        seen[submit.request_id] += 1
        return world.engine.says(submit, "Hello world", delay=0.0 if len(seen) <= 4 else 60.0)

    world.engine.script = script
    runner = await place.start("api-1")
    batch = await place.create(as_jsonl(lines(12)))
    await place.until(
        batch.id, lambda now: now.request_counts is not None and now.request_counts.completed == 4
    )
    await place.kill(runner)
    await lose_input(place, batch)
    if not has_file:
        await place.client().files.delete(batch.input_file_id)
    world.engine.script = lambda submit: world.engine.says(submit, "Hello world")
    await place.start("api-2")

    done = await place.ended(batch.id)

    answered = [row["custom_id"] for row in await place.rows(done.output_file_id)]
    if has_file:
        assert done.status == "completed"
        assert len(answered) == 12
        return
    assert done.status == "failed"
    assert len(answered) == len({*answered}) == 4
    assert done.errors is not None
    (error,) = done.errors.data or ()
    assert (error.code, error.param) == ("input_lost", "input_file_id")
    assert done.error_file_id is None


async def test_an_input_that_is_lost_before_it_is_checked(place: Batches) -> None:
    batch = await place.create(as_jsonl(lines(2)))
    await lose_input(place, batch)
    async with place.database.read(EVERY_TENANT) as session:
        query = text("SELECT object_key FROM files WHERE id = :id")
        key = (await session.execute(query, {"id": batch.input_file_id})).scalar_one()
    await place.store.delete(key)
    await place.start()

    done = await place.ended(batch.id)

    assert done.status == "failed"
    assert done.errors is not None
    assert [error.code for error in done.errors.data or ()] == ["input_lost"]
