"""Prices, incidents, jobs, reconciliation, the margin and everybody's audit log, as operators have them."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import UTC, date, datetime, timedelta

import httpx
from sqlalchemy import text

from adapters.jobs.models import JobStatus
from billing.months import begin, month_of
from billing.pricing import PriceService
from billing.rates import Rate
from billing.reconciliation.comparing import compare
from db.session import EVERY_TENANT
from engine.protocol import Usage
from tenants.actors import OPERATOR
from tenants.audit.service import OPERATOR_CHAIN
from tests.admin.conftest import Site, sign_in
from tests.admin.operators import OPERATOR_EMAIL, operate, post
from tests.support.booked import request, write

DRAFT = {
    "input": "0.30",
    "cached_input": "0.10",
    "output": "1.2",
    "adapter_surcharge": "0.05",
    "adapter_gb_day": "0",
    "calibration_job": "0",
}
XSS = "<img src=x onerror=alert(1)>"


def last_month() -> datetime:
    """A moment of it."""
    return begin(month_of(begin(month_of(datetime.now(UTC))) - timedelta(days=1))) + timedelta(days=3)


def cells(page: str, name: str) -> list[str]:
    """Of the table's row that begins with a name."""
    row = html.unescape(page).partition(f">{name}</a></th>")[2].partition("</tr>")[0]
    return [re.sub(r"<[^>]+>.*", "", cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)]


async def test_prices_are_previewed_on_the_last_month_and_published(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    old = Rate("prc_old", 200_000, 100_000, 800_000)
    usages = [Usage(1_000_000, 400_000, 50_000), Usage(10, 0, 3)]
    at = last_month().timestamp()
    events = [request(site.tenant_id, at, usage=one, rate=old) for one in usages]
    adapted = Usage(2_000_000, 0, 100_000)
    events.append(
        request(site.place.tenants[1], at, usage=adapted, rate=old, tier="flex", adapter_id="adp_x")
    )
    await write(site.place.database, events)
    await operate(site, visitor)
    assert "No prices yet" in (await visitor.get("/operator/prices")).text
    page = (await visitor.get("/operator/prices/new", params=DRAFT)).text
    (ours, theirs) = [await site.tenants.find_tenant(one) for one in site.place.tenants]
    # By hand: 600,000 x 0.30 + 400,000 x 0.10 + 50,000 x 1.20 per million, and the small one.
    summed = Usage(1_000_010, 400_000, 50_003)
    assert cells(page, ours.name)[:2] == [
        "2",
        f"${sum(old.cost(one) for one in usages) / 1e6:.6f}".rstrip("0"),
    ]
    assert cells(page, ours.name)[
        2
    ] == f"${Rate('', 300_000, 100_000, 1_200_000).cost(summed) / 1e6:.6f}".rstrip("0")
    # On an adapter, at what its class pays: half.
    adapter_rate = Rate("", 350_000, 150_000, 1_250_000, 50)
    assert cells(page, theirs.name)[2] == f"${adapter_rate.cost(adapted) / 1e6:.6f}".rstrip("0")
    assert not await PriceService(site.place.database, site.redis).list(), "a preview keeps nothing"
    for wrong, status in (({"input": "much"}, 422), ({"input": "999999999"}, 422), ({"output": "-1"}, 422)):
        refused = await visitor.get("/operator/prices/new", params={**DRAFT, **wrong})
        assert refused.status_code == status
        assert f'id="problem-{next(iter(wrong))}"' in refused.text
    here = "/operator/prices/review?" + str(httpx.QueryParams(DRAFT))
    past = {**DRAFT, "effective_from": "at", "at": "2020-01-01T00:00"}
    for refused in (
        await visitor.get("/operator/prices/review", params=past),
        await post(visitor, here, "/operator/prices", **past, replaces=""),
    ):
        assert refused.status_code == 422
        assert "must not be in the past" in html.unescape(refused.text)
    now = {**DRAFT, "effective_from": "now"}
    unseen = await post(visitor, here, "/operator/prices", **now)
    assert unseen.status_code == 409, "what nobody has reviewed is not published"
    assert (await post(visitor, here, "/operator/prices", **now, replaces="")).status_code == 303
    (made,) = await PriceService(site.place.database, site.redis).list()
    assert (made.input, made.output, made.adapter_surcharge) == (300_000, 1_200_000, 50_000)
    listed = (await visitor.get("/operator/prices")).text
    assert "In effect" in listed
    assert "$1.20" in listed
    (entry, *_) = await site.account.audit.list(OPERATOR_CHAIN)
    assert (entry.type, entry.actor["email"], entry.details["input"]) == (
        "price.created",
        OPERATOR_EMAIL,
        300_000,
    )


async def test_prices_are_confirmed_beside_those_they_replace(site: Site, visitor: httpx.AsyncClient) -> None:
    rate = Rate("prc_old", 200_000, 100_000, 1_200_000)
    event = request(site.tenant_id, last_month().timestamp(), usage=Usage(1_000_000, 0, 50_000), rate=rate)
    await write(site.place.database, [event])
    prices = PriceService(site.place.database, site.redis)
    await prices.add(input=200_000, cached_input=100_000, output=1_200_000, adapter_surcharge=50_000)
    await operate(site, visitor)
    here = "/operator/prices/review?" + str(httpx.QueryParams({**DRAFT, "effective_from": "now"}))
    page = html.unescape((await visitor.get(here)).text)
    assert "1 of 6 prices change" in page
    (changes,) = re.findall(r'<table class="list differences".*?</table>', page, re.S)
    rows = [
        [re.sub(r"<small>.*|<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in changes.split("</tr>")[1:-1]
    ]
    assert rows[0] == ["Input", "$0.20", "$0.30", "+$0.10"]
    assert rows[1] == ["Cached input", "$0.10", "$0.10", "None"]
    assert "+50.0 %" in changes
    affected = re.sub(r"<[^>]+>", "", page.partition('id="affected">')[2].partition("</p>")[0])
    assert "2 tenants are billed at these prices." in affected
    assert "1 would have paid a different amount: $0.26 → $0.36 in total (+$0.10)" in affected

    await prices.add(input=999_000, cached_input=100_000, output=1_200_000)  # by another operator
    late = await post(
        visitor, here, "/operator/prices", **DRAFT, **hidden(page, "effective_from", "replaces")
    )
    assert late.status_code == 409
    assert "$1.00" not in late.text
    assert "$0.999" in late.text
    assert len(await prices.list()) == 2
    again = hidden(late.text, "effective_from", "replaces")
    assert (await post(visitor, here, "/operator/prices", **DRAFT, **again)).status_code == 303
    assert (await prices.list())[-1].input == 300_000


async def test_a_scheduled_price_is_compared_with_what_it_will_replace(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    prices = PriceService(site.place.database, site.redis)
    for year, amount in ((2090, 500_000), (2095, 700_000)):
        at = datetime(year, 1, 1, tzinfo=UTC)
        await prices.add(input=amount, cached_input=0, output=0, effective_from=at)
    await operate(site, visitor)
    params = {**DRAFT, "effective_from": "at", "at": "2092-01-01T00:00"}
    page = html.unescape((await visitor.get("/operator/prices/review", params=params)).text)
    assert "$0.50" in page
    lead = re.sub(r"<[^>]+>", "", page.partition('class="lead">')[2].partition("</p>")[0])
    assert lead == (
        "Effective from 2092-01-01 00:00 UTC until 2095-01-01 00:00 UTC,"
        " when a scheduled version replaces them."
    )


def hidden(page: str, *names: str) -> dict[str, str]:
    """Returns values of hidden fields."""
    return {name: re.findall(rf'type="hidden" name="{name}" value="([^"]*)"', page)[0] for name in names}


async def test_incidents_are_opened_told_and_closed(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    here = "/operator/incidents"
    given = {"title": f"Answers are slow {XSS}", "severity": "major", "is_public": "on", "note": "We look."}
    opened = await post(visitor, here, here, **given)
    assert opened.status_code == 303
    one = opened.headers["location"].removeprefix("/console")
    async with site.visitor() as theirs:
        await sign_in(theirs)
        page = (await theirs.get("/members")).text
        assert "Answers are slow" in page
        assert "We look." in page
        assert 'class="incident major"' in page
        assert XSS not in page
        assert (await post(visitor, one, f"{one}/note", note="a guess of ours")).status_code == 303
        assert (
            await post(visitor, one, f"{one}/note", note="It gets better.", is_public="on")
        ).status_code == 303
        assert "It gets better." in (await theirs.get("/members")).text
        assert "a guess of ours" not in (await theirs.get("/members")).text
        assert (await post(visitor, one, f"{one}/close")).status_code == 303
        assert (await post(visitor, one, f"{one}/close")).status_code == 409
        assert "Answers are slow" not in (await theirs.get("/members")).text
    shown = (await visitor.get(one)).text
    for words in ("a guess of ours", "It gets better.", "Resolved", OPERATOR_EMAIL):
        assert words in shown
    for wrong, field in (
        ({"title": ""}, "title"),
        ({"severity": "odd"}, "severity"),
        ({"began_at": "x"}, "began_at"),
    ):
        refused = await post(visitor, here, here, **{**given, **wrong})
        assert refused.status_code == 422
        assert f'id="problem-{field}"' in refused.text
    assert (await visitor.get(f"{here}/inc_none")).status_code == 404
    types = [entry.type for entry in await site.account.audit.list(OPERATOR_CHAIN)]
    assert types[:4] == ["incident.closed", "incident.noted", "incident.noted", "incident.opened"]


async def test_maintenance_is_planned_and_cancelled(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    here = "/operator/incidents"
    given = {
        "title": "New disks",
        "severity": "minor",
        "is_public": "on",
        "began_at": "2098-01-01T10:00",
        "planned_until": "2098-01-01T12:00",
        "component:uploads": "on",
    }
    for wrong, field in (
        ({"planned_until": "2097-01-01T10:00"}, "planned_until"),
        ({"component:x": "on"}, ""),
    ):
        refused = await post(visitor, here, here, **{**given, **wrong})
        assert refused.status_code == 422
        assert 'name="component:uploads" checked' in refused.text, "what was entered is kept"
        if field:
            assert f'id="problem-{field}"' in refused.text
        else:
            assert "must be those of the status page" in refused.text
    planned = await post(visitor, here, here, **given)
    assert planned.status_code == 303
    one = planned.headers["location"].removeprefix("/console")
    shown = (await visitor.get(one)).text
    for words in ("Planned", "as planned", "affects Uploads and calibration"):
        assert words in shown, words
    async with site.visitor() as theirs:
        await sign_in(theirs)
        assert "New disks" not in (await theirs.get("/members")).text, "it has not begun"
    assert (await post(visitor, one, f"{one}/close")).status_code == 303
    closed, entry, *_ = await site.account.audit.list(OPERATOR_CHAIN)
    assert (closed.type, entry.type) == ("incident.closed", "maintenance.planned")
    assert (entry.details["components"], entry.details["planned_until"]) == (
        "uploads",
        "2098-01-01T12:00:00+00:00",
    )


async def test_jobs_of_all_tenants_are_cancelled_and_repeated(site: Site, visitor: httpx.AsyncClient) -> None:
    submitted = await site.place.create("pirate")
    job_id = submitted.job_id
    assert job_id is not None
    await operate(site, visitor)
    page = (await visitor.get("/operator/jobs")).text
    assert job_id in page
    assert "data-pending" in page
    here = f"/operator/jobs/{job_id}"
    assert (await post(visitor, "/operator/jobs", f"{here}/retry")).status_code == 409
    assert (await post(visitor, "/operator/jobs", f"{here}/cancel")).status_code == 303
    assert (await post(visitor, "/operator/jobs", f"{here}/retry")).status_code == 409, "it did not fail"
    async with site.place.database.write(EVERY_TENANT) as session:
        error = '{"code": "storage", "message": "the disk was full", "param": null}'
        statement = "UPDATE jobs SET status = 'failed', error = CAST(:error AS jsonb) WHERE id = :id"
        await session.execute(text(statement), {"error": error, "id": job_id})
    failed = (await visitor.get("/operator/jobs?show=failed")).text
    assert "the disk was full" in failed
    assert (await post(visitor, "/operator/jobs?show=failed", f"{here}/retry")).status_code == 303
    (again, *_), _ = await site.place.onboarding.jobs.page(site.tenant_id)
    assert (again.status, again.version, again.adapter_id != "") == (JobStatus.QUEUED, 1, True)
    assert again.id != job_id
    assert (await post(visitor, "/operator/jobs", f"{here}/retry")).status_code == 409, "it has one already"
    for wrong in ("job_none/cancel", "job_none/retry"):
        assert (await post(visitor, "/operator/jobs", f"/operator/jobs/{wrong}")).status_code == 404
    assert (await visitor.get("/operator/jobs?show=odd")).status_code == 404
    entries = await site.account.audit.list(site.tenant_id)
    assert {entry.actor["email"] for entry in entries if entry.type.startswith("calibration_job.c")} >= {
        OPERATOR_EMAIL
    }


async def test_books_are_compared_when_asked_and_shown_row_by_row(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    at = datetime.now(UTC) - timedelta(days=1)
    await write(site.place.database, [request(site.tenant_id, at.timestamp(), usage=Usage(100, 0, 7))])
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE usage_rollup_days SET completion_tokens = 8"))
    await operate(site, visitor)
    here = "/operator/reconciliation"
    days = {"since": at.date().isoformat(), "until": date.today().isoformat()}
    assert (
        await post(visitor, here, f"{here}/run", since="2026-01-02", until="2026-01-01")
    ).status_code == 422
    assert (await post(visitor, here, f"{here}/run", **days)).status_code == 303
    waiting = (await visitor.get(here)).text
    assert "Waiting for a worker" in waiting
    assert "data-pending" in waiting
    async with site.place.database.read(EVERY_TENANT) as session:
        queued = (
            await session.execute(text("SELECT arguments FROM outbox WHERE task = 'billing.reconcile_now'"))
        ).one()
    span = [datetime.fromisoformat(queued[0][name]) for name in ("start", "end")]
    report = await compare(site.place.database, site.redis, None, queued[0]["ticket"], *span)
    assert report is not None
    assert await compare(site.place.database, site.redis, None, queued[0]["ticket"], *span) is None, "once"
    listed = (await visitor.get(here)).text
    assert "Differences" in listed
    assert report.id in listed
    one = (await visitor.get(f"{here}/{report.id}?check=rollups")).text
    assert "The books do not balance" in one
    assert (await site.tenants.find_tenant(site.tenant_id)).name in one
    assert cells(one, "x") == []
    assert "completion_tokens" in html.unescape(one) or "completion tokens" in html.unescape(one)
    csv = await visitor.get(f"{here}/{report.id}/differences.csv")
    assert csv.headers["content-type"].startswith("text/csv")
    assert len(csv.text.splitlines()) == report.num_differences + 1
    assert (await visitor.get(f"{here}/rcn_none")).status_code == 404


async def test_the_margin_is_worked_out_beside_the_page(site: Site, visitor: httpx.AsyncClient) -> None:
    rate = Rate("prc_x", 1_000_000, 1_000_000, 1_000_000)
    event = request(
        site.tenant_id, last_month().timestamp(), usage=Usage(1_000_000, 0, 0), rate=rate, took=3600.25
    )
    await write(site.place.database, [event])
    await operate(site, visitor)
    asked = {"month": f"{last_month():%Y-%m}", "price": "0.25", "gpus": "1"}
    for _ in range(200):
        page = html.unescape((await visitor.get("/operator/margin", params=asked)).text)
        if "data-pending" not in page:
            break
        await asyncio.sleep(0.05)
    # It brought a dollar in and ran for an hour.
    name = (await site.tenants.find_tenant(site.tenant_id)).name
    assert cells(page, name)[1:] == ["1", "3,600", "$1.00", "$0.25", "$0.75"]
    by_adapter = page.partition("Cost per million tokens by adapter")[2]
    assert "Base models" in by_adapter
    file = await visitor.get("/operator/margin/adapters.csv", params=asked)
    assert file.headers["content-type"].startswith("text/csv")
    header, row = file.text.splitlines()
    values = dict(zip(header.split(","), row.split(","), strict=True))
    assert (values["tenant_id"], values["cost_per_million_tokens"]) == (site.tenant_id, "250000")
    assert (await visitor.get("/operator/margin/adapters.csv")).status_code == 200, "the form"
    for wrong in ({"price": "x"}, {"month": "2026-13"}, {"month": "2099-01"}, {"gpus": "-1"}):
        assert (await visitor.get("/operator/margin", params={**asked, **wrong})).status_code == 422


async def test_every_tenants_log_is_read_and_checked(
    site: Site, visitor: httpx.AsyncClient, owner_database: object
) -> None:
    await site.keys.create(site.tenant_id, "robot", OPERATOR)
    other = await site.tenants.create_tenant("birch & sons")
    await operate(site, visitor)
    page = html.unescape((await visitor.get("/operator/audit")).text)
    for words in ("API key created", "birch & sons", "the service", "Login succeeded"):
        assert words in page
    only = html.unescape((await visitor.get(f"/operator/audit?tenant={other.id}")).text)
    assert "API key created" not in only
    assert "birch & sons" in only
    assert (await visitor.get("/operator/audit?since=never")).status_code == 422
    assert "Audit logs verified" in (await visitor.get("/operator/audit/check")).text
    async with owner_database.write(EVERY_TENANT) as session:  # type: ignore[attr-defined]
        await session.execute(text("SET LOCAL session_replication_role = replica"))
        forged = "UPDATE audit_log SET details = '{}' WHERE tenant_id = :tenant AND seq = 1"
        await session.execute(text(forged), {"tenant": other.id})
    broken = html.unescape((await visitor.get("/operator/audit/check")).text)
    assert "audit logs failed verification" in broken
    assert "birch & sons" in broken
