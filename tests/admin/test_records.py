"""What is on record: the audit log with its filter and its proof, and the service levels of a month."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import text

from db.session import Database
from engine.protocol import PriorityClass
from sla.folding import SlaFolding
from sla.recorder import SlaRecorder
from tenants.actors import OPERATOR
from tenants.tier_terms import DEFAULTS
from tests.admin.conftest import EMAIL, Site, sign_in
from tests.admin.test_keys import XSS, as_role


def rows(page: httpx.Response) -> list[str]:
    body = page.text.partition("<tbody>")[2].partition("</tbody>")[0]
    return re.findall(r"<tr>.*?</tr>", body, re.DOTALL)


async def test_the_log_tells_who_did_what_to_what(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.keys.create(site.tenant_id, f"robot {XSS}", OPERATOR)
    await site.keys.create(site.place.tenants[1], "theirs", OPERATOR)
    page = await visitor.get("/audit")
    assert page.status_code == 200
    newest, entered, *_ = rows(page)
    for words in ("API key created", made.id, "operator", "&lt;img src=x"):
        assert words in newest
    assert "Login succeeded" in entered
    assert EMAIL in entered
    assert "from 127.0.0.1" in entered
    assert "theirs" not in page.text
    assert "<img src=x" not in page.text


async def test_the_filter_finds_and_says_what_is_wrong(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.keys.create(site.tenant_id, "robot", OPERATOR)
    await site.keys.create(site.tenant_id, "other", OPERATOR)
    await site.keys.revoke(site.tenant_id, made.id, OPERATOR)
    today = datetime.now(UTC).date()
    for query, count in (
        ({"type": "api_key.created"}, 2),
        ({"target": made.id}, 2),
        ({"type": "api_key.created", "target": made.id}, 1),
        ({"actor": EMAIL.upper(), "type": "login.succeeded"}, 1),
        ({"actor": "operator", "type": "api_key.deleted"}, 1),
        ({"since": today.isoformat(), "until": today.isoformat(), "target": made.id}, 2),
        ({"until": (today - timedelta(days=2)).isoformat()}, 0),
    ):
        page = await visitor.get("/audit", params=query)
        assert (page.status_code, len(rows(page))) == (200, count), query
    assert "No entries match these filters" in page.text
    wrong = await visitor.get("/audit", params={"since": "yesterday", "type": "x"})
    assert wrong.status_code == 422
    assert "Enter a date such as" in wrong.text
    assert 'value="yesterday"' in wrong.text
    assert (await visitor.get("/audit?after=audit_log-none")).status_code == 404


async def test_the_log_has_pages_within_a_filter(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.audit.page.PAGE", 2)
    await sign_in(visitor)
    made = [await site.keys.create(site.tenant_id, name, OPERATOR) for name in "abc"]
    first = await visitor.get("/audit?type=api_key.created")
    assert len(rows(first)) == 2
    older = re.search(r'href="/console(/audit\?[^"]*after=[^"]+)">Older', first.text)
    assert older is not None
    (last,) = rows(await visitor.get(html.unescape(older[1])))
    assert made[0].id in last


async def test_a_chain_is_proved_whole_or_broken(
    site: Site, visitor: httpx.AsyncClient, owner_database: Database
) -> None:
    await sign_in(visitor)
    await site.keys.create(site.tenant_id, "robot", OPERATOR)
    assert "Audit log verified" in (await visitor.get("/audit/check")).text
    async with owner_database.write(site.tenant_id) as session:
        await session.execute(text("ALTER TABLE audit_log DISABLE TRIGGER USER"))
        query = text("UPDATE audit_log SET type = 'nothing.happened' WHERE tenant_id = :tenant AND seq = 2")
        assert (await session.execute(query, {"tenant": site.tenant_id})).rowcount == 1  # type: ignore[attr-defined]
    page = (await visitor.get("/audit/check")).text
    assert "Audit log verification failed" in page
    assert "Entry #2 was changed or is missing" in page


async def test_only_who_may_reads_the_log(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "developer")
    for path in ("/audit", "/audit/check"):
        assert (await visitor.get(path)).status_code == 403
    assert (await visitor.get("/sla")).status_code == 200


async def test_service_levels_of_a_month(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = await visitor.get("/sla")
    assert page.status_code == 200
    assert "No requests" in page.text
    assert "This month is in progress" in page.text
    report = (await visitor.get("/sla/report.json")).json()
    assert [one["service_tier"] for one in report["data"]] == re.findall(r'id="class-([a-z]+)"', page.text)
    for wrong in ("2026-13", "9000-01", "'"):
        refused = await visitor.get("/sla", params={"month": wrong})
        assert refused.status_code == 404
        assert "There&#39;s no report for this month" in refused.text
    old = await visitor.get("/sla?month=2020-02")
    assert "February 2020" in old.text
    assert "This month is in progress" not in old.text


async def test_what_was_served_badly_is_shown(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    terms = DEFAULTS[PriorityClass.DEFAULT]
    recorder = SlaRecorder(site.redis)
    for _ in range(3):
        recorder.answered(site.tenant_id, PriorityClass.DEFAULT, terms, 0.02, 100.0)
    recorder.failed(site.tenant_id, PriorityClass.DEFAULT)
    assert await recorder.flush()
    assert await SlaFolding(site.place.database, site.redis, "test").drain() == 1
    page = (await visitor.get("/sla")).text
    shown = page.partition('id="class-default"')[2].partition("</section>")[0]
    assert "4 requests, 1 server errors" in shown
    assert "75 %" in shown
    (report,) = [
        one
        for one in (await visitor.get("/sla/report.json")).json()["data"]
        if one["service_tier"] == "default"
    ]
    assert report["availability"]["delivered"] == 0.75
    assert ("Missed" in shown) == (not report["kept"])
