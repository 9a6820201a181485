"""Batches of responses: answered as single requests, stored once, and only if a line says so."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from sqlalchemy import text

from batches.lease import BatchLease
from db.session import EVERY_TENANT
from tests.api.fakes import KEY
from tests.batches.conftest import Batches, as_jsonl, response_line
from tests.support.waiting import eventually


@pytest.fixture
async def project(place: Batches) -> Batches:
    """The application whose key belongs to a project."""
    async with place.database.write(EVERY_TENANT) as session:
        values = {"id": "proj_one", "tenant": "ten_one"}
        await session.execute(
            text("INSERT INTO projects (id, tenant_id, name) VALUES (:id, :tenant, :id)"), values
        )
    callers = place.world.keys.callers
    callers[KEY] = dataclasses.replace(callers[KEY], project_id="proj_one")
    return place


async def num_stored(place: Batches) -> int:
    async with place.database.read(EVERY_TENANT) as session:
        found = await session.execute(text("SELECT count(*) FROM stored_responses"))
        return int(found.scalar_one())


async def run(place: Batches, *rows: dict[str, Any]) -> openai.types.Batch:
    batch = await place.create(as_jsonl(rows), endpoint="/v1/responses")
    return await place.ended(batch.id)


async def bodies(place: Batches, done: openai.types.Batch) -> list[Response]:
    """The answers in the order of the lines, as the client's type."""
    rows = await place.rows(done.output_file_id)
    for row in rows:
        assert row["response"]["request_id"] == row["response"]["body"]["id"]
    return [Response.model_validate(row["response"]["body"], strict=True) for row in rows]


async def test_lines_are_answered_as_responses(project: Batches) -> None:
    await project.start()
    rows = [response_line(f"request-{number}", f"hi {number}", instructions="Brief.") for number in range(8)]

    done = await run(project, *rows)

    assert (done.status, done.endpoint) == ("completed", "/v1/responses")
    found = await bodies(project, done)
    assert {one.output_text for one in found} == {"Hello world"}
    assert {one.status for one in found} == {"completed"}
    assert len({one.id for one in found}) == 8
    assert {one.id[:5] for one in found} == {"resp_"}
    assert done.usage is not None
    assert done.usage.input_tokens == sum(one.usage.input_tokens for one in found if one.usage)
    submitted = project.world.engine.submitted
    assert {submit.request_id for submit in submitted} == {one.id for one in found}
    assert {submit.labels["endpoint"] for submit in submitted} == {"responses"}
    assert {submit.labels["service_tier"] for submit in submitted} == {"batch"}


async def test_a_line_is_stored_only_if_it_says_so(project: Batches) -> None:
    await project.start()

    done = await run(
        project, response_line("a"), response_line("b", store=False), response_line("c", store=True)
    )

    first, second, kept = await bodies(project, done)
    sdk = project.client()
    for one in (first, second):
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(one.id)
    assert await sdk.responses.retrieve(kept.id) == kept
    assert [item.type async for item in sdk.responses.input_items.list(kept.id)] == ["message"]
    assert await num_stored(project) == 1


async def test_a_line_continues_a_stored_response(project: Batches) -> None:
    await project.start()
    sdk = project.client()
    earlier = await sdk.responses.create(model="sapling", input="I am Bob")
    fresh = response_line("fresh", "Who?")
    rows = [response_line(name, "Who?", previous_response_id=earlier.id) for name in ("a", "b")]
    lost = response_line("lost", "Who?", previous_response_id="resp_absent")

    done = await run(project, *rows, fresh, lost)

    first, second, alone = await bodies(project, done)
    assert first.usage is not None
    assert second.usage is not None
    assert alone.usage is not None
    assert first.usage.input_tokens == second.usage.input_tokens > alone.usage.input_tokens
    (failed,) = await project.rows(done.error_file_id)
    assert failed["custom_id"] == "lost"
    assert failed["response"]["status_code"] == 404
    assert failed["response"]["body"]["error"]["param"] == "previous_response_id"


async def test_an_organization_that_stores_nothing(project: Batches) -> None:
    await project.start()
    callers = project.world.keys.callers
    callers[KEY] = dataclasses.replace(callers[KEY], stores_nothing=True)

    done = await run(project, response_line("a"), response_line("b", store=True))

    (answered,) = await bodies(project, done)
    assert answered.output_text == "Hello world"
    (failed,) = await project.rows(done.error_file_id)
    error = failed["response"]["body"]["error"]
    assert (failed["custom_id"], error["code"], error["param"]) == ("b", "storage_not_allowed", "store")
    assert await num_stored(project) == 0


async def test_a_line_that_runs_again_is_stored_once(
    project: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process died between storing the response and storing the line's result."""
    rows = [response_line(f"request-{number}", store=True) for number in range(3)]
    batch = await project.create(as_jsonl(rows), endpoint="/v1/responses")

    async def stalls(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as stalled:
        stalled.setattr(BatchLease, "store", stalls)
        runner = await project.start("api-1")

        async def are_stored() -> bool:
            return await num_stored(project) == 3

        await eventually(are_stored)
        await project.kill(runner)
    await project.start("api-2")

    done = await project.ended(batch.id)

    found = await bodies(project, done)
    assert len(project.world.engine.submitted) == 6
    assert {submit.request_id for submit in project.world.engine.submitted} == {one.id for one in found}
    assert await num_stored(project) == 3
    sdk = project.client()
    for one in found:
        assert await sdk.responses.retrieve(one.id) == one
