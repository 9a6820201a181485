"""Limits and alerts in the console: what holds and how full it is, setting and removing; and who may."""

from __future__ import annotations

import html
import re
from datetime import timedelta

import httpx
import pytest

from admin.limits.page import amount_written, read_amount
from admin.web.form_errors import FieldError
from billing.notifications.delivering import Deliveries
from billing.notifications.models import Delivery, Notification
from billing.spend.alerts import Threshold
from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tenants.plans import PlanChanges
from tests.admin.conftest import EMAIL, SENDER, Site, csrf_token, sign_in
from tests.admin.test_billing import NOW, business
from tests.admin.test_keys import XSS, act, as_role

SPEND = Metric.SPEND_PER_MONTH


def rows(page: str) -> list[str]:
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    return re.findall(r"<tr>.*?</tr>", body, re.DOTALL)


async def limits_of(site: Site) -> list[Limit]:
    return await site.account.limits.list(site.tenant_id)


async def test_what_is_used_of_each_limit_is_shown(site: Site, visitor: httpx.AsyncClient) -> None:
    plan = PlanChanges(limits={"requests_per_minute": 600, "storage_bytes": 5 * 10**9})
    await site.account.plans.create("team", plan)
    await site.account.plans.set_tenant_plan(site.tenant_id, "team")
    project = await site.account.projects.create(site.tenant_id, f"Support {XSS}", OPERATOR)
    key = await site.keys.create(site.tenant_id, "batch", OPERATOR)
    for limit in (
        Limit("tenant", site.tenant_id, "", SPEND, 10_000_000),
        Limit("project", project.id, "", Metric.TOKENS_PER_DAY, 1_000),
        Limit("key", key.id, "sapling:*", Metric.REQUESTS_PER_MINUTE, 60),
    ):
        await site.account.limits.set(site.tenant_id, OPERATOR, limit)
    await site.place.upload()
    await business(site).use(site.tenant_id, NOW, 9_000_000)
    await sign_in(visitor)
    page = (await visitor.get("/limits")).text
    spend, rate, adapters, storage = rows(page)
    for found, words in (
        (spend, ("$10.00", "$9.00 used", 'value="90"', "near", ">Custom<")),
        (rate, ("600", "0 used", ">Plan<")),
        (adapters, ("100", "0 used")),
        (storage, ("5.0 GB", "kB used", 'value="1"')),
    ):
        assert all(one in found for one in words), (found, words)
    behind = re.search(r'href="/console(/usage\?[^"]+)">\$9\.00 used', spend)
    assert behind is not None
    assert "$9.00" in (await visitor.get(html.unescape(behind[1]))).text
    (of_project,) = rows((await visitor.get("/limits?of=projects")).text)
    assert "Tokens per day" in of_project
    assert "Support &lt;img" in of_project
    (of_key,) = rows((await visitor.get("/limits?of=keys")).text)
    assert f'href="/console/keys/{key.id}">batch' in of_key
    assert "<code>sapling:*</code>" in of_key
    for wrong in ("of=nobody", "page=0", "page=x", "page=9999"):
        assert (await visitor.get(f"/limits?{wrong}")).status_code == 404


async def test_a_page_has_one_button_to_set_a_limit(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    for tab in ("organisation", "projects", "keys"):
        shown = (await visitor.get(f"/limits?of={tab}")).text
        assert shown.count(">Set limit<") == 1, tab
        assert shown.count(">Set spend limit<") == (tab == "organisation")


async def test_a_limit_is_set_changed_and_taken_away(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.account.plans.create("team", PlanChanges(limits={"spend_per_month": 500_000_000}))
    await site.account.plans.set_tenant_plan(site.tenant_id, "team")
    key = await site.keys.create(site.tenant_id, "batch", OPERATOR)
    await sign_in(visitor)
    for spend, beside in (
        ("much", "Enter an amount in US dollars"),
        ("501", "The maximum is $500.00, your plan"),
        ("-1", "Enter an amount"),
    ):
        wrong = await act(visitor, "/limits", "/limits/spend", spend=spend)
        assert wrong.status_code == 422
        assert re.search(rf'id="problem-spend">[^<]*{re.escape(beside)}', wrong.text), spend
        assert f'value="{spend}"' in wrong.text
    assert await limits_of(site) == []
    done = await act(visitor, "/limits", "/limits/spend", spend="$99.50")
    assert done.headers["location"] == "/console/limits"
    assert "Monthly spend limit set to $99.50" in (await visitor.get("/limits")).text
    form = {"for": f"key:{key.id}", "metric": "tokens_per_minute", "model": "sapling:*", "amount": "10,000"}
    done = await act(visitor, "/limits/new", "/limits", **form)
    assert done.headers["location"] == "/console/limits?of=keys"
    assert await limits_of(site) == [
        Limit("tenant", site.tenant_id, "", SPEND, 99_500_000),
        Limit("key", key.id, "sapling:*", Metric.TOKENS_PER_MINUTE, 10_000),
    ]
    for wrong_fields, field, words in (
        ({"amount": "1e3"}, "amount", "Enter a whole number"),
        ({"amount": str(10**15)}, "amount", "The maximum is 100,000,000,000"),
        ({"metric": "prepaid_balance"}, "metric", "Choose a metric"),
        ({"model": "NO/NAME"}, "model", "is not a model name"),
        ({"for": "key:key_none"}, "for", "key_none"),
        (
            {"for": f"key:{key.id}", "metric": "adapters", "model": ""},
            "metric",
            "only be limited for the organization as a whole",
        ),
    ):
        wrong = await act(visitor, "/limits/new", "/limits", **form | wrong_fields)
        assert wrong.status_code in (404, 422)
        assert re.search(rf'id="problem-{field}">[^<]*{re.escape(words)}', wrong.text), (
            wrong_fields,
            wrong.text,
        )
    shown = (await visitor.get("/limits?of=keys")).text
    link = re.search(r'href="/console(/limits/new\?[^"]+)"', shown)
    assert link is not None
    edited = (await visitor.get(html.unescape(link[1]))).text
    assert 'value="10000"' in edited
    assert "<h1>Edit limit</h1>" in edited
    wrong = await act(visitor, "/limits/new", "/limits", **form | {"amount": "1e3", "edit": "1"})
    assert "<h1>Edit limit</h1>" in wrong.text
    assert "<h1>Set limit</h1>" in (await visitor.get("/limits/new")).text
    gone = await act(visitor, "/limits", "/limits/remove", **form)
    assert gone.status_code == 303
    assert len(await limits_of(site)) == 1
    assert (await act(visitor, "/limits", "/limits/remove", **form)).status_code == 404


@pytest.mark.parametrize(
    ("metric", "written", "amount"),
    [
        (SPEND, "250", 250_000_000),
        (SPEND, "$1,000.000001", 1_000_000_001),
        (SPEND, "0.0000001", None),
        (SPEND, "٢٥", None),
        (Metric.STORAGE_BYTES, "20 GB", 20_000_000_000),
        (Metric.STORAGE_BYTES, "1.5kb", 1_500),
        (Metric.STORAGE_BYTES, "2 GiB", 2_147_483_648),
        (Metric.STORAGE_BYTES, "0.001KIB", 1),
        (Metric.STORAGE_BYTES, "7", 7),
        (Metric.STORAGE_BYTES, "1.5", None),
        (Metric.STORAGE_BYTES, "many", None),
        (Metric.REQUESTS_PER_DAY, "1 000", 1_000),
        (Metric.REQUESTS_PER_DAY, "1.5", None),
        (Metric.REQUESTS_PER_DAY, "", None),
    ],
)
def test_amounts_are_read_in_their_units(metric: Metric, written: str, amount: int | None) -> None:
    if amount is None:
        with pytest.raises(FieldError):
            read_amount(metric, written)
        return
    assert read_amount(metric, written) == amount
    assert read_amount(metric, amount_written(metric, amount)) == amount


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (2_147_483_648, "2 GiB"),
        (1_500_000_000, "1.5 GB"),
        (20_000_000_000, "20 GB"),
        (1_536, "1.536 kB"),
        (5 * 2**40 // 4, "1.25 TiB"),
        (2**53 - 1, "9007199254740991 B"),
        (5_000 * 10**12, "5000 TB"),
        (999, "999 B"),
        (0, "0 B"),
    ],
)
def test_a_size_is_written_exactly_in_its_largest_unit(amount: int, written: str) -> None:
    assert amount_written(Metric.STORAGE_BYTES, amount) == written
    assert read_amount(Metric.STORAGE_BYTES, written) == amount


async def test_an_alert_is_set_tested_and_deleted(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert "Get notified before the bill arrives" in (await visitor.get("/limits/alerts")).text
    form = {"kind": "amount", "threshold_amount": "50", "recipients": "ann@acme.example\nbob@acme.example"}
    for wrong_fields, field in (
        ({"threshold_amount": "0"}, "threshold_amount"),
        ({"threshold_amount": "fifty"}, "threshold_amount"),
        ({"kind": "percent", "threshold_percent": "0"}, "threshold_percent"),
        ({"recipients": "nobody"}, "recipients"),
        ({"recipients": "a@b " * 21}, ""),
        ({"subject_prefix": "x" * 61}, "subject_prefix"),
    ):
        wrong = await act(visitor, "/limits/alerts/new", "/limits/alerts", **form | wrong_fields)
        if field:
            assert wrong.status_code == 422, wrong_fields
            assert f'id="problem-{field}"' in wrong.text
    (kept,) = await site.billing.alerts.every(site.tenant_id, NOW)  # one address, twenty-one times
    await site.billing.alerts.delete(site.tenant_id, None, kept[0].id, OPERATOR)
    done = await act(visitor, "/limits/alerts/new", "/limits/alerts", **form)
    path = done.headers["location"].removeprefix("/console")
    await business(site).use(site.tenant_id, NOW, 40_000_000)
    (row,) = rows((await visitor.get("/limits/alerts")).text)
    for words in ("$50.00", "$40.00", 'value="80"', "near", "ann@acme.example, bob@acme.example"):
        assert words in row, words
    sent = await act(visitor, path, f"{path}/test")
    assert sent.status_code == 303
    page = (await visitor.get(path)).text
    assert "Test sent to ann@acme.example, bob@acme.example." in page
    assert page.count("Sending") == 2
    await Deliveries(site.place.database, SENDER).deliver()  # there is no mail server
    page = (await visitor.get(path)).text
    assert page.count("no mail server is set") == 2
    changed = await act(visitor, path, path, kind="percent", threshold_percent="80", recipients="")
    assert changed.status_code == 303
    (row,) = rows((await visitor.get("/limits/alerts")).text)
    assert "80 % of the limit" in row
    assert "No monthly limit set" in row
    alerts, alert_id, later = site.billing.alerts, path.split("/")[-1], NOW + timedelta(days=1)
    assert await alerts.test(site.tenant_id, None, alert_id, OPERATOR, now=later) == [EMAIL]
    assert await alerts.test(site.tenant_id, None, alert_id, OPERATOR, now=later) is None, "once a minute"
    assert await alerts.test(site.tenant_id, None, alert_id, OPERATOR, now=later + timedelta(minutes=1))
    watched = await alerts.watched(site.tenant_id, alert_id, NOW, num_mailed=9)
    told: list[tuple[Delivery, Notification]] = [(one, about) for one, about in watched.mailed]
    assert [one.recipient for one, _ in told] == [EMAIL, EMAIL, "bob@acme.example", "ann@acme.example"]
    assert all(about.data["test"] for _, about in told)
    gone = await act(visitor, path, f"{path}/delete")
    assert gone.headers["location"] == "/console/limits/alerts"
    assert (await visitor.get(path)).status_code == 404


async def test_viewers_see_and_change_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    alert = await site.billing.alerts.create(site.tenant_id, None, OPERATOR, Threshold(50_000_000, None))
    await as_role(site, visitor, "viewer")
    for path in ("/limits", "/limits/alerts", f"/limits/alerts/{alert.id}"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert page.text.count('method="post"') == 1, "signing out"
    token = csrf_token(await visitor.get("/limits"))
    for path in (
        "/limits",
        "/limits/spend",
        "/limits/remove",
        "/limits/alerts",
        f"/limits/alerts/{alert.id}",
    ):
        refused = await visitor.post(path, data={"csrf_token": token, "spend": "1", "threshold_amount": "1"})
        assert refused.status_code == 403, path
    for path in ("/limits/new", "/limits/alerts/new"):
        assert (await visitor.get(path)).status_code == 403
    other = site.place.tenants[1]
    await site.accounts.create(other, "eve@birch.example", "correct horse battery")
    async with site.visitor() as eve:
        await sign_in(eve, "eve@birch.example")
        assert (await eve.get(f"/limits/alerts/{alert.id}")).status_code == 404
        mine = {"for": f"tenant:{site.tenant_id}", "metric": "requests_per_day", "amount": "1"}
        assert (await act(eve, "/limits/new", "/limits", **mine)).status_code == 422
    assert await limits_of(site) == []
