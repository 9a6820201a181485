"""Usage for tests of the console: some days of a tenant's up to now, of several keys, people and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from billing.charges import STORAGE
from billing.rates import Rate
from engine.protocol import Usage
from tenants.actors import OPERATOR
from tests.admin.conftest import EMAIL, Site
from tests.support.booked import Booked, book, request, write

RATE = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000)
FLEX = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000, 50)


@dataclass(frozen=True)
class Using:
    """What there is to be found."""

    laptop: str
    robot: str
    revoked: str
    project: str
    person: str
    adapter: str
    today: datetime
    """Midnight."""


async def make_usage(site: Site, adapter_name: str = "pirate") -> Using:
    """Today: 3 of the laptop and 2 in the playground, on an adapter; yesterday 4 of the robot, flex, and
    storage; five days ago 1 by a key that is revoked, 1 by one that is no more, and 1 taken back since.
    """
    tenant = site.tenant_id
    support = await site.account.projects.create(tenant, "Support <b>", OPERATOR)
    (ada,) = [user for user in await site.account.members.list(tenant) if user.email == EMAIL]
    laptop = await site.keys.create(tenant, "laptop", OPERATOR)
    robot = await site.keys.create(tenant, "robot <i>", OPERATOR, project_id=support.id)
    revoked = await site.keys.create(tenant, "old one", OPERATOR)
    await site.keys.revoke(tenant, revoked.id, OPERATOR)
    adapter = (await site.place.create(adapter_name)).adapter.id
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    today, project = midnight.timestamp(), laptop.row.project_id or ""
    used: dict[str, Any] = {"usage": Usage(1000, 400, 100), "rate": RATE}
    on = {"model": "sapling:pirate@1", "adapter_id": adapter, "adapter_version": "1"}
    flex = {"usage": Usage(2000, 0, 300), "rate": FLEX, "tier": "flex"}
    requests: list[dict[str, Any]] = [
        *({"at": today + at, "key": laptop.id, "project_id": project, **used, **on} for at in (1, 2, 3)),
        *(
            {"at": today + at, "key": ada.id, "user_id": ada.id, "project_id": project, **used, **on}
            for at in (4, 5)
        ),
        *(
            {"at": today - 3600 * at, "key": robot.id, "project_id": support.id, **flex}
            for at in (1, 1.5, 5, 9)
        ),
        *(
            {"at": today - 5 * 86_400 + 60, "key": key, **used}
            for key in (revoked.id, "key_gone", "key_gone")
        ),
    ]
    stored = (STORAGE, int(today) - 86_400, 2**30, 700)
    await book(site.place.database, tenant, Booked(requests, [stored], [(11, int(today) + 1)]))
    return Using(laptop.id, robot.id, revoked.id, support.id, ada.id, adapter, midnight)


async def add_request(site: Site, at: datetime, **fields: Any) -> str:
    """One more; its id."""
    event = request(site.tenant_id, at.timestamp(), **({"usage": Usage(10, 0, 5), "rate": RATE} | fields))
    await write(site.place.database, [event])
    return event.request_id


def days_ago(using: Using, days: int) -> str:
    return f"{using.today - timedelta(days=days):%Y-%m-%d}"
