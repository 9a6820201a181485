"""Plans as operators make, look at and change them, and put tenants on them."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from admin.operator.plans import form_values
from admin.operator.plans.fields import MAX_FIELDS
from billing.months import begin, month_of
from billing.rates import Rate
from engine.protocol import PriorityClass, Usage
from sla.repository import SlaRepository
from tenants.audit.service import OPERATOR_CHAIN
from tenants.plans import STANDARD, PlanChanges
from tests.admin.conftest import Site, csrf_token
from tests.admin.operators import OPERATOR_EMAIL, operate, post
from tests.support.booked import request, write

HERE = "/operator/plans"
XSS = "\"'><img src=x onerror=alert(1)>"
GOLD = {
    "monthly_fee": "25",
    "included_usage": "10.50",
    "max_adapters": "500",
    "limits_requests_per_minute": "6000",
    "limits_spend_per_month": "1,000",
    "limits_storage_bytes": "20 GB",
    "priority_allowed": "on",
    "priority_contracted_tokens_per_minute": "100000",
    "priority_availability_ppm": "99.95",
    "priority_credits": "99.95: 10\nbelow 99 %: 25 %",
    "flex_price_percent": "40",
    "gate_min_top1": "0.9",
}


def fields_of(page: httpx.Response) -> dict[str, str]:
    """What a browser would send of a page's form as it stands."""
    found = {}
    form = page.text.rpartition("<form")[2]
    for tag in re.findall(r"<input[^>]+>", form):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if attributes.get("type") != "checkbox" or " checked" in tag:
            found[attributes["name"]] = html.unescape(attributes.get("value", ""))
    for name, text in re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>([^<]*)</textarea>', form):
        found[name] = html.unescape(text)
    return found


def rows(page: httpx.Response) -> dict[str, tuple[str, str]]:
    """What would change: label, and before and after."""
    table = page.text.partition('id="differences"')[2].partition("</table>")[0]
    cells = re.findall(
        r'<th scope="row">(.*?)<small>.*?<td[^>]*>(.*?)</td>\s*<td[^>]*>(.*?)</td>', table, re.S
    )
    return {html.unescape(label): (html.unescape(one), html.unescape(other)) for label, one, other in cells}


async def look(visitor: httpx.AsyncClient, path: str, changes: dict[str, str]) -> httpx.Response:
    """Preview changes to a plan's form."""
    return await visitor.get(f"{path}/edit", params=fields_of(await visitor.get(f"{path}/edit")) | changes)


async def confirm(visitor: httpx.AsyncClient, path: str, looked_at: httpx.Response) -> httpx.Response:
    """The form beneath a preview."""
    whole = looked_at.text.partition('class="confirm"')[2].partition("</form>")[0]
    form = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', whole)
    }
    assert form["seen"]
    return await visitor.post(path, data=form)


def test_the_fields_hold_every_value_of_a_plan() -> None:
    written = form_values.written(STANDARD)
    values, problems = form_values.read_values(written)
    assert not problems
    assert form_values.differing(STANDARD, values) == []
    assert form_values.changes(STANDARD, values) == PlanChanges()
    assert len(written) + 3 < MAX_FIELDS


@pytest.mark.parametrize(
    ("field", "written", "told"),
    [
        ("monthly_fee", "-1", "US dollars"),
        ("max_adapters", "", "whole number"),
        ("max_adapters", "100001", "from 0 to 100,000"),
        ("max_file_bytes", "much", "500 MB"),
        ("limits_requests_per_minute", "many", "whole number"),
        ("limits_requests_per_minute", "9999999999999", "Enter a value from 0"),
        ("flex_price_percent", "10001", "from 0 % to 10,000 %"),
        ("flex_ttft_target_ms", "0", "from 1 ms"),
        ("flex_availability_ppm", "101", "to 100 %"),
        ("flex_output_rate_ppm", "99.99999", "percentage such as"),
        ("flex_credits", "99.9", "each line"),
        ("flex_credits", "99: 10\n99.9: 20", "must have a lower percentage"),
        ("flex_credits", "101: 10", "at most 100."),
        ("gate_min_top1", "2", "from 0 to 1"),
        ("gate_max_loss", "nan", "a number"),
    ],
)
def test_what_is_wrong_is_told_beside_its_field(field: str, written: str, told: str) -> None:
    _, problems = form_values.read_values(form_values.written(STANDARD) | {field: written})
    assert list(problems) == [field]
    assert told in problems[field]


async def test_a_plan_is_made(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor)
    assert "One plan for all tenants" in (await visitor.get(HERE)).text
    blank = await visitor.get(f"{HERE}/new")
    given = fields_of(blank) | GOLD | {"name": "gold"}
    for wrong, field in (
        ({"name": f"Gold {XSS}"}, "name"),
        ({"name": "standard"}, "name"),
        ({"monthly_fee": XSS, "flex_credits": XSS}, "flex_credits"),
    ):
        refused = await visitor.post(HERE, data=given | wrong)
        assert refused.status_code in (409, 422)
        assert f'id="problem-{field}"' in refused.text
        assert "<img src=x" not in refused.text
    assert len(await site.account.plans.list()) == 1
    made = await visitor.post(HERE, data=given)
    assert made.status_code == 303
    plan = await site.account.plans.find("gold")
    assert (plan.monthly_fee, plan.included_usage, plan.max_adapters) == (25_000_000, 10_500_000, 500)
    assert plan.limits == {
        "requests_per_minute": 6000,
        "spend_per_month": 1_000_000_000,
        "storage_bytes": 20_000_000_000,
    }
    priority = plan.terms[PriorityClass.PRIORITY]
    assert (priority.allowed, priority.contracted_tokens_per_minute) == (True, 100_000)
    assert (priority.availability_ppm, priority.credits) == (999_500, ((999_500, 10), (990_000, 25)))
    assert plan.terms[PriorityClass.FLEX].price_percent == 40
    assert plan.terms[PriorityClass.DEFAULT] == STANDARD.terms[PriorityClass.DEFAULT]
    assert plan.gate == {"min_top1": 0.9}
    (entry, *_) = await site.account.audit.list(OPERATOR_CHAIN)
    assert (entry.type, entry.target_id, entry.actor["email"]) == ("plan.created", plan.id, OPERATOR_EMAIL)
    shown = html.unescape((await visitor.get(f"{HERE}/{plan.id}")).text).replace("\u00a0", " ")
    for words in ("$25.00", "20 GB", "10 % below 99.95 %, 25 % below 99 %", "No tenants"):
        assert words in shown
    like = fields_of(await visitor.get(f"{HERE}/new?like={plan.id}"))
    assert like["priority_credits"] == "99.95: 10\n99: 25"
    assert like["priority_allowed"] == "on"
    assert (like["max_file_bytes"], like["limits_storage_bytes"]) == ("2 GiB", "20 GB")
    assert (await visitor.get(f"{HERE}/new?like=plan_none")).status_code == 404


async def test_a_change_is_looked_at_before_it_is_made(site: Site, visitor: httpx.AsyncClient) -> None:
    plan = await site.account.plans.create("gold", PlanChanges(limits={"requests_per_day": 10}))
    await site.account.plans.set_tenant_plan(site.tenant_id, "gold")
    began = datetime.now(UTC)
    await operate(site, visitor)
    here = f"{HERE}/{plan.id}"
    wanted = {
        "limits_requests_per_day": "",
        "flex_allowed": "",
        "flex_availability_ppm": "99.5",
        "monthly_fee": "7",
    }
    looked_at = await look(visitor, here, wanted)
    assert rows(looked_at) == {
        "Monthly fee": ("$0.00", "$7.00"),
        "Requests per day": ("10", "No limit"),
        "Available": ("Yes", "No"),
        "Availability": ("none", "99.5 %"),
    }
    assert "Changes for 1 tenant" in looked_at.text
    assert await site.account.plans.find("gold") == plan, "looking at it keeps nothing"
    same = await look(visitor, here, {"monthly_fee": "0"})
    assert "No changes: the plan already has these values" in same.text
    refused = await look(visitor, here, {"monthly_fee": XSS, "default_credits": XSS})
    assert refused.status_code == 422
    assert 'id="problem-default_credits"' in refused.text
    assert "<img src=x" not in refused.text

    done = await confirm(visitor, here, looked_at)
    assert done.headers["location"] == f"/console{here}"
    assert "Plan gold updated for 1 tenant." in (await visitor.get(here)).text
    changed = await site.account.plans.find("gold")
    assert (changed.monthly_fee, dict(changed.limits)) == (7_000_000, {})
    assert not changed.terms[PriorityClass.FLEX].allowed
    (entry, *_) = await site.account.audit.list(OPERATOR_CHAIN)
    assert (entry.type, entry.target_id, entry.actor["email"]) == ("plan.updated", plan.id, OPERATOR_EMAIL)
    assert await site.account.audit.verify(OPERATOR_CHAIN) is None
    # What was promised until then stays what that time is judged by.
    async with site.place.database.read(site.tenant_id) as session:
        end = datetime.now(UTC) + timedelta(seconds=1)
        before, after = await SlaRepository(session, site.tenant_id).terms_between(began, end)
    assert before.terms == {}
    assert after.terms == {"flex": {"allowed": False, "availability_ppm": 995_000}}
    assert before.end == after.start
    # Twice the same form: the plan is another one than was looked at.
    assert (await confirm(visitor, here, looked_at)).status_code == 409


async def test_a_change_of_costs_is_tried_on_the_last_month(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.operation.prices.add(input=1_000_000, cached_input=1_000_000, output=1_000_000)
    before = begin(month_of(begin(month_of(datetime.now(UTC))) - timedelta(days=1))) + timedelta(days=3)
    used = {"usage": Usage(2_000_000, 0, 0), "rate": Rate("prc_1", 1_000_000, 1_000_000, 1_000_000)}
    event = request(site.tenant_id, before.timestamp(), tier="flex", **used)  # type: ignore[arg-type]
    await write(site.place.database, [event])
    plan = await site.account.plans.create("gold")
    await site.account.plans.set_tenant_plan(site.tenant_id, "gold")
    await operate(site, visitor)
    here = f"{HERE}/{plan.id}"
    looked_at = await look(visitor, here, {"flex_price_percent": "25", "monthly_fee": "3"})
    told = re.sub(r"<[^>]+>", " ", looked_at.text.partition('id="effect"')[2].partition("</table>")[0])
    name = (await site.tenants.find_tenant(site.tenant_id)).name
    # 2 M tokens at a half, and at a quarter with the fee.
    assert f"Effect on {before:%B %Y}" in told
    assert told.split()[-5:] == [name, "1", "$1.00", "$3.50", "+$2.50"]
    assert 'id="effect"' not in (await look(visitor, here, {"max_adapters": "7"})).text


async def test_a_change_of_another_plan_than_was_seen_is_shown_again(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    plan = await site.account.plans.create("gold")
    await operate(site, visitor)
    here = f"{HERE}/{plan.id}"
    looked_at = await look(visitor, here, {"max_adapters": "7"})
    await site.account.plans.set("gold", PlanChanges(max_adapters=50, pinned_adapters=2))
    again = await confirm(visitor, here, looked_at)
    assert again.status_code == 409
    assert "Another operator changed this plan" in again.text
    assert rows(again) == {"Adapters": ("50", "7"), "Adapters kept loaded": ("2", "0")}
    assert (await site.account.plans.find("gold")).max_adapters == 50
    assert (await confirm(visitor, here, again)).status_code == 303
    assert (await site.account.plans.find("gold")).max_adapters == 7


async def test_another_plan_for_a_tenant_is_looked_at_first(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.account.plans.create(
        "gold", PlanChanges(max_adapters=500, terms={"priority": {"allowed": True}})
    )
    await operate(site, visitor)
    here = f"/operator/tenants/{site.tenant_id}"
    looked_at = await visitor.get(f"{here}/plan?plan=gold")
    assert rows(looked_at) == {"Adapters": ("100", "500"), "Available": ("No", "Yes")}
    assert (await site.account.plans.of_tenant(site.tenant_id)).name == "standard"
    assert "is already on this plan" in (await visitor.get(f"{here}/plan?plan=standard")).text
    assert (await visitor.get(f"{here}/plan?plan=none")).status_code == 404
    assert (await visitor.get("/operator/tenants/tnt_none/plan?plan=gold")).status_code == 404
    token = csrf_token(looked_at)
    assert (await visitor.post(f"{here}/plan", data={"csrf_token": token, "plan": "gold"})).status_code == 303
    listed = (await visitor.get(HERE)).text
    assert '<a href="/console/operator/tenants?plan=gold">1</a>' in listed


async def test_who_looks_on_changes_no_plan(site: Site, visitor: httpx.AsyncClient) -> None:
    await operate(site, visitor, looks_on=True)
    for path in (HERE, f"{HERE}/plan_standard"):
        page = await visitor.get(path)
        assert page.status_code == 200
        assert "Create plan" not in page.text
        assert "/edit" not in page.text
    looked_at = await look(visitor, f"{HERE}/plan_standard", {"max_adapters": "7"})
    assert rows(looked_at) == {"Adapters": ("100", "7")}
    assert 'class="confirm"' not in looked_at.text
    for path in (HERE, f"{HERE}/plan_standard"):
        assert (await post(visitor, HERE, path, name="gold", **GOLD)).status_code == 403
    for path in (f"{HERE}/plan_none", f"{HERE}/plan_none/edit", f"{HERE}/%00"):
        assert (await visitor.get(path)).status_code == 404
        assert site.place.database.checked_out == 0
