"""The status page, its JSON and its feed: public, served from memory, and silent about tenants and hosts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from api.app import VERSION, create_app
from api.process_report import ProcessReporting
from api.site.status import StatusPages
from sla.status.board import Component, Day, ShownIncident, Snapshot, Update
from tests.api.conftest import World, build
from tokenization.codec import TextCodec

NOW = datetime.now(UTC)
ATOM = "{http://www.w3.org/2005/Atom}"
TODAY = NOW.date()
EVIL = "<script>alert(1)</script> & more"


class TheSame(datetime):
    """The time at which this file was loaded: other tests may have run for minutes since."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return NOW


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.site.status.datetime", TheSame)


def component(name: str, title: str, state: Any, **minutes: int) -> Component:
    days = tuple(Day(TODAY - timedelta(days=back)) for back in range(89, 0, -1))
    return Component(name, title, state, (*days, Day(TODAY, **minutes)))


def incident(**changes: Any) -> ShownIncident:
    updates = (Update(NOW, "It gets better."), Update(NOW - timedelta(minutes=5), EVIL))
    shown = ShownIncident(
        "inc_1", f"Slow {EVIL}", "major", NOW - timedelta(hours=1), None, None, ("api",), updates
    )
    return ShownIncident(**({name: getattr(shown, name) for name in shown.__struct_fields__} | changes))


PLANNED = incident(
    id="inc_2",
    title="New disks",
    began_at=NOW + timedelta(days=1),
    planned_until=NOW + timedelta(days=1, hours=2),
    components=(),
    updates=(),
)
SNAPSHOT = Snapshot(
    NOW,
    NOW,
    (
        component("api", "API", "degraded", operational=1400, down=1),
        component("base:llama", "llama", "operational", operational=1400),
    ),
    (PLANNED, incident(), incident(id="inc_0", title="Over", ended_at=NOW - timedelta(days=1))),
)


class Board:
    """A snapshot that the test chooses."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.version = 1
        self._snapshot = snapshot
        self.num_read = 0

    @property
    def snapshot(self) -> Snapshot:
        self.num_read += 1
        return self._snapshot


@asynccontextmanager
async def reading(codec: TextCodec, board: Board) -> AsyncIterator[httpx.AsyncClient]:
    world = build(codec, status=board)
    transport = httpx.ASGITransport(create_app(world.services))
    async with httpx.AsyncClient(transport=transport, base_url="https://api.example") as client:
        yield client


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


async def test_the_page_needs_no_key_and_shows_what_is_known(codec: TextCodec) -> None:
    async with reading(codec, Board(SNAPSHOT)) as client:
        page = await client.get("/status")
    assert page.status_code == 200
    assert "max-age" in page.headers["cache-control"]
    assert EVIL not in page.text
    text = words(page.text)
    for said in (
        "Some systems are degraded",
        "API Degraded",
        "99.928 % uptime",
        "llama Operational",
        "100.000 % uptime",
        "It gets better.",
        "Planned maintenance",
        "affects all systems",
        "Over",
    ):
        assert said in text, said
    assert page.text.count("<rect") == 180
    assert "1 min down" in page.text


async def test_it_says_nothing_of_hosts_and_versions(codec: TextCodec) -> None:
    async with reading(codec, Board(SNAPSHOT)) as client:
        for path in ("/status", "/status.json", "/status.atom"):
            answered = await client.get(path)
            told = answered.text + str(answered.headers)
            assert VERSION not in told
            assert "author@" not in told
            if path != "/status.atom":
                assert "api.example" not in told


async def test_requests_are_served_from_memory(codec: TextCodec) -> None:
    board = Board(SNAPSHOT)
    async with reading(codec, board) as client:
        first = await client.get("/status")
        num_read = board.num_read
        for _ in range(20):
            again = await client.get("/status", headers={"if-none-match": first.headers["etag"]})
            assert again.status_code == 304
        assert board.num_read == num_read
        board.version += 1
        await client.get("/status")
        assert board.num_read > num_read


async def test_programs_read_the_same(codec: TextCodec) -> None:
    async with reading(codec, Board(SNAPSHOT)) as client:
        answered = await client.get("/status.json")
    body = answered.json()
    assert answered.headers["access-control-allow-origin"] == "*"
    assert (body["status"], body["stale"]) == ("degraded", False)
    api = body["components"][0]
    assert (api["id"], api["status"], len(api["days"])) == ("api", "degraded", 90)
    assert api["days"][-1]["minutes"]["down"] == 1
    assert api["days"][0]["status"] == "unknown"
    assert [one["id"] for one in body["incidents"]] == ["inc_1", "inc_0"]
    (planned,) = body["maintenance"]
    assert planned["planned_until"] == int(PLANNED.planned_until.timestamp())  # type: ignore[union-attr]
    assert set(body["incidents"][0]) == {
        *("id", "title", "severity", "components", "began_at", "planned_until", "ended_at", "updates")
    }, "no author"


async def test_a_feed_has_an_entry_for_each_incident(codec: TextCodec) -> None:
    async with reading(codec, Board(SNAPSHOT)) as client:
        answered = await client.get("/status.atom", headers={"host": "models.example"})
    assert answered.headers["content-type"].startswith("application/atom+xml")
    feed = ElementTree.fromstring(answered.content)  # noqa: S314  our own
    entries = feed.findall(f"{ATOM}entry")
    titles = [entry.findtext(f"{ATOM}title") for entry in entries]
    assert titles == ["Maintenance: New disks", f"Major: Slow {EVIL}", "Major: Over (resolved)"]
    for entry in (feed, *entries):
        for required in ("id", "title", "updated"):
            assert entry.findtext(f"{ATOM}{required}")
    assert "It gets better." in (entries[1].findtext(f"{ATOM}content") or "")
    assert len({entry.findtext(f"{ATOM}id") for entry in entries}) == 3
    links = {link.get("rel"): link.get("href") for link in feed.findall(f"{ATOM}link")}
    assert links["self"] == "http://models.example/status.atom" or links["self"].startswith("https://")


@pytest.mark.parametrize(
    ("sampled", "read", "said"),
    [
        (NOW - timedelta(minutes=7), NOW, "7 minutes old"),
        (NOW, NOW - timedelta(minutes=9), "9 minutes old"),
        (None, None, "No data has been collected yet"),
    ],
)
async def test_what_is_old_is_called_old(
    codec: TextCodec, sampled: datetime | None, read: datetime | None, said: str
) -> None:
    old = Snapshot(sampled, read, SNAPSHOT.components if sampled else (), ())
    async with reading(codec, Board(old)) as client:
        page, body = await client.get("/status"), (await client.get("/status.json")).json()
    assert said in words(page.text)
    assert "The current state is not known" in page.text
    assert (body["status"], body["stale"]) == ("unknown", True)


def test_hosts_that_clients_name_do_not_fill_the_memory() -> None:
    pages = StatusPages(Board(SNAPSHOT))  # type: ignore[arg-type]
    for number in range(100):
        pages.atom(f"https://host-{number}")
    assert len(pages._rendered) <= 17


async def test_a_process_reports_its_checks_and_bases(world: World) -> None:
    spoken: dict[str, bytes] = {}

    class Hash:
        async def hset(self, key: str, name: str, value: bytes) -> None:
            spoken[name] = value

        async def hdel(self, key: str, name: str) -> None:
            del spoken[name]

    async def fails() -> str:
        return "refuses writes: READONLY at 10.0.0.7"

    services = replace(world.services, checks={"redis": fails, "base": fails})
    reporting = ProcessReporting(services, Hash(), "api-0-ab", clock=lambda: 5.0)  # type: ignore[arg-type]
    world.engine.ready = False
    await reporting.report()
    assert b"redis" in spoken["api-0-ab"]
    assert b"base" not in spoken["api-0-ab"].replace(b"bases", b"")
    assert b"10.0.0.7" not in spoken["api-0-ab"], "the public page must not have it"
    await reporting.withdraw()
    assert spoken == {}
