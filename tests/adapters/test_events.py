"""Reading events on and on: none comes twice, and none is missed that was committed later than the next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from adapters import events
from adapters.events import MAX_PAGE, Tail
from adapters.models import AdapterEvent
from db.base import new_id
from db.session import EVERY_TENANT, Database
from tenants.models import Tenant

TENANT = "ten_1"


@pytest.fixture(autouse=True)
async def tenant(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        session.add(Tenant(id=TENANT, name="acme"))


async def write(database: Database, *event_ids: str, age: timedelta = timedelta()) -> None:
    async with database.write(EVERY_TENANT) as session:
        session.add_all(
            AdapterEvent(
                id=event_id, tenant_id=TENANT, adapter_id="adp_1", job_id="job_1", type="job.started",
                level="info", message="", created_at=datetime.now(UTC) - age,
            )
            for event_id in event_ids
        )  # fmt: skip


async def read(database: Database, tail: Tail) -> list[str]:
    async with database.read(EVERY_TENANT) as session:
        return [event.id for event in await tail.read(session)]


@pytest.mark.parametrize("of", [{"adapter_id": "adp_1"}, {"job_id": "job_1"}], ids=str)
async def test_an_event_that_appears_behind_another_is_told_too(
    database: Database, of: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "SETTLED_AFTER", timedelta(hours=1))  # however slow the machine is
    first, late, last = (new_id("aev") for _ in range(3))
    tail = Tail(TENANT, **of)
    await write(database, first)
    assert await read(database, tail) == [first]
    await write(database, last)
    assert await read(database, tail) == [last]
    await write(database, late)
    assert await read(database, tail) == [late]
    assert await read(database, tail) == []
    assert tail.at_end


async def test_what_is_settled_is_left_behind_page_by_page(database: Database) -> None:
    ids = [new_id("aev") for _ in range(MAX_PAGE + 30)]
    await write(database, *ids, age=timedelta(minutes=1))
    tail = Tail(TENANT, "adp_1", after=ids[0])
    assert await read(database, tail) == ids[1 : MAX_PAGE + 1]
    assert not tail.at_end, "there is more, to be asked for at once"
    assert await read(database, tail) == ids[MAX_PAGE + 1 :]
    assert tail.at_end
    await write(database, fresh := new_id("aev"))
    assert await read(database, tail) == [fresh]
    assert await read(database, tail) == []
