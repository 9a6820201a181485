"""The capacity page: what fits now, when limits are reached, and what the planner says would help."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
from sqlalchemy import text

from db.session import EVERY_TENANT
from sla.capacity.reading import ADVICE, Advice, Option
from sla.capacity.repository import CapacityRepository, Measured
from tests.admin.conftest import Site, sign_in
from tests.admin.operators import operate
from tests.admin.test_operator_engines import report

HERE = "/operator/capacity"
ADVISED = Advice(
    "",
    max_requests_per_s=12.5,
    max_output_tokens_per_s=4225.0,
    utilisation=0.9,
    replicas=2,
    misses=("time to first token: p99 of 900 ms, the target is 500 ms",),
    options=(Option(1.0, 3, "time to first token"), Option(2.0, None, "no number of replicas")),
    helps=("Another replica takes 6.2 requests/s more.",),
)


async def furnish(site: Site, days: int = 21) -> None:
    """A base whose adapters grow, and a disk that fills."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=days)
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("DELETE FROM capacity_samples"))
        repository = CapacityRepository(session)
        for hour in range(days * 24):
            busy = 40 if hour % 24 < 12 else 0
            await repository.add(
                start + timedelta(hours=hour),
                [
                    Measured("sapling", "resident_adapters", 60 + hour * 0.1 + busy, 200.0),
                    Measured("sapling", "output_tokens_per_s", 900.0 + hour + 10 * busy, 4225.0),
                    Measured("", "storage_bytes", 4e11 + hour * 1e8, 1e12),
                    Measured("", "database_bytes", 3e9 + hour * 1e6, None),
                ],
            )
    await site.redis.hset(ADVICE, "sapling", msgspec.msgpack.encode(ADVISED))


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


async def test_it_says_when_limits_are_reached_and_what_helps(site: Site, visitor: httpx.AsyncClient) -> None:
    await furnish(site)
    site.engines.reports = [report()]
    await operate(site, visitor)
    answered = await visitor.get(HERE)
    assert answered.status_code == 200
    said = words(answered.text)
    for part in (
        "First limit: Resident adapters of sapling, expected",
        "Object store disk",
        "No limit known",
        "90.00 % of what the step model allows: 12.5 requests/s",
        "Misses its targets: time to first token",
        "Another replica takes 6.2 requests/s more.",
        "Room on",
        "blocks free",
        "More that fit",
    ):
        assert part in said, part
    assert answered.text.count('class="figure"') == 4
    assert 'href="/console/operator/capacity"' in answered.text


async def test_without_samples_it_says_so(site: Site, visitor: httpx.AsyncClient) -> None:
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("DELETE FROM capacity_samples"))
    site.engines.reports = []
    await operate(site, visitor)
    assert "No samples yet" in (await visitor.get(HERE)).text


async def test_tenants_have_no_such_page(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert (await visitor.get(HERE)).status_code == 404
