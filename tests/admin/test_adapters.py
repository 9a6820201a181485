"""The pages of adapters, and what can be done on them: over the true services, without a worker."""

from __future__ import annotations

import asyncio
import html
import json
import re

import httpx
import msgspec
import pytest
from sqlalchemy import text

from adapters.jobs.errors import JobFailed
from adapters.jobs.service import fail
from adapters.models import VersionState
from adapters.versions import locked_version
from admin.operator.engines.report import EngineReport
from db.base import new_id
from db.session import EVERY_TENANT
from engine.gauges import DraftCounts
from tenants.audit.service import AuditLog
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.reports import finish_with_report, report_of
from tests.admin.test_operator_engines import report, view, words_of
from tests.support.onboarding import Scene

XSS = "<img src=x onerror=alert(1)>\"'"


async def act(visitor: httpx.AsyncClient, page: str, path: str, **fields: str) -> httpx.Response:
    """Send a form as a page's button does."""
    token = csrf_token(await visitor.get(page))
    return await visitor.post(path, data={"csrf_token": token, **fields})


async def two_ready_versions(place: Scene) -> str:
    made = await place.create("pirate")
    await place.make_ready(made, "1")
    await place.make_ready(await place.add(made.adapter.id, "sql"), "2")
    return made.adapter.id


async def test_an_empty_list_teaches(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    answer = await visitor.get("/adapters")
    page = answer.text
    # The length of a page that shows something of the request must tell nothing of its token.
    assert "content-encoding" not in answer.headers
    assert "Upload your first adapter" in page
    assert 'href="/console/adapters/new"' in page
    shown = html.unescape(page)
    assert "curl http://127.0.0.1:8000/v1/adapters" in shown
    assert 'OpenAI(base_url="http://127.0.0.1:8000/v1"' in shown


async def test_the_list_says_how_each_is(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    ready = await site.place.create("quiet")
    await site.place.make_ready(ready, "1")
    await site.place.add(ready.adapter.id, "sql")
    await site.place.create("coming", "sql")
    await site.place.create("secret", tenant=1)
    page = (await visitor.get("/adapters")).text
    quiet = row_of(page, "quiet")
    assert "Ready" in quiet
    assert "version 1" in quiet
    assert "bf16" in quiet
    assert "100 B" in quiet
    assert "version 2: waiting for a worker" in quiet
    assert "The job is queued." in quiet
    assert "Validating" in row_of(page, "coming")
    assert "secret" not in page
    assert "data-pending" in page


def row_of(page: str, name: str) -> str:
    found = re.search(rf"<tr>\s*<th scope=\"row\"><a[^>]*>{name}</a>.*?</tr>", page, re.DOTALL)
    assert found is not None
    return found[0]


async def test_the_list_has_pages(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.adapters.page.PAGE", 2)
    await sign_in(visitor)
    for name in ("a", "b", "c"):
        await site.place.create(name)
    first = (await visitor.get("/adapters")).text
    assert ">c</a>" in first
    assert ">a</a>" not in first
    older = re.search(r'href="/console(/adapters\?after=adp_[0-9a-z]+)"', first)
    assert older is not None
    second = (await visitor.get(older[1])).text
    assert ">a</a>" in second
    assert "Newest" in second
    assert (await visitor.get("/adapters?after='")).status_code == 404


async def test_progress_pause_resume_and_cancel(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    here, job = f"/adapters/{made.adapter.id}", made.job_id
    page = (await visitor.get(here)).text
    assert "Version 1: Waiting for a worker" in page
    assert '<meta http-equiv="refresh"' in page
    assert (await act(visitor, here, f"{here}/jobs/{job}/pause")).headers["location"] == f"/console{here}"
    assert "Version 1: Paused" in (await visitor.get(f"{here}/live")).text
    await act(visitor, here, f"{here}/jobs/{job}/resume")
    assert "Version 1: Waiting for a worker" in (await visitor.get(f"{here}/live")).text

    assert job is not None
    lease = await site.place.lease(job)
    await site.place.pack(lease, "1")
    await commit_progress(site)
    page = (await visitor.get(f"{here}/live")).text
    assert "Version 1: Calibrating" in page
    assert '<progress max="100" value="42"' in page
    assert "about 30 seconds left" in page
    assert page.count('class="done"') == 2

    assert (await act(visitor, here, f"{here}/jobs/{job}/cancel")).status_code == 303
    assert "Version 1: Cancelling" in (await visitor.get(here)).text
    assert (await act(visitor, here, f"{here}/jobs/{job}/burn")).status_code == 404


async def commit_progress(site: Site) -> None:
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(
            text(
                "UPDATE jobs SET phase = 'calibrating', progress = 0.42,"
                " estimated_finish_at = now() + interval '30 s'"
            )
        )


async def test_activate_roll_back_disable_and_enable(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    page = (await visitor.get(here)).text
    assert "serving version 2" in page
    assert "Roll back to version 1?" in page
    await act(visitor, here, f"{here}/rollback")
    assert "serving version 1" in (await visitor.get(here)).text
    await act(visitor, here, f"{here}/versions/2/activate")
    assert "serving version 2" in (await visitor.get(here)).text
    await act(visitor, here, f"{here}/disable")
    page = (await visitor.get(here)).text
    assert '<span class="badge off">Disabled</span>' in page
    await act(visitor, here, f"{here}/enable")
    assert '<span class="badge good">Ready</span>' in (await visitor.get(here)).text
    version = f"{here}/versions/1"
    await act(visitor, version, f"{version}/disable")
    refused = await act(visitor, here, f"{version}/activate")
    assert refused.status_code == 409
    assert "not ready: disabled" in refused.text
    await act(visitor, version, f"{version}/enable")
    assert (await act(visitor, here, f"{version}/activate")).status_code == 303
    entries = await AuditLog(site.place.database).list(site.tenant_id, limit=7)
    assert [entry.type for entry in entries] == [
        "adapter.activated",
        "adapter_version.enabled",
        "adapter_version.disabled",
        "adapter.updated",
        "adapter.updated",
        "adapter.activated",
        "adapter.rolled_back",
    ]
    assert {(entry.actor["type"], entry.actor["email"]) for entry in entries} == {("user", EMAIL)}


async def measured(site: Site, adapter: str, **gains: float | None) -> None:
    """As calibration leaves it: `v1=0.5`."""
    async with site.place.database.write(EVERY_TENANT) as session:
        for version, gain in gains.items():
            found = json.dumps({"gain": gain, "samples": "tenant", "num_samples": 20})
            await session.execute(
                text(
                    "UPDATE adapter_versions SET calibration = CAST(:found AS jsonb)"
                    " WHERE adapter_id = :adapter AND version = :version"
                ),
                {"found": found, "adapter": adapter, "version": int(version.removeprefix("v"))},
            )


async def test_a_regression_is_activated_only_if_that_is_confirmed(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    await act(visitor, here, f"{here}/versions/2/activate")
    await measured(site, adapter, v1=0.38, v2=0.5)
    for path in (here, f"{here}/versions/1"):
        page = (await visitor.get(path)).text
        assert "Activate version 1 although it measured worse?" in page
        assert "gains 0.120 nats per token less over the base model than version 2" in page
        assert 'name="accept_regression" value="2"' in page
    refused = await act(visitor, here, f"{here}/versions/1/activate")
    assert refused.headers["location"] == f"/console{here}/versions/1"
    page = (await visitor.get(f"{here}/versions/1")).text
    assert "Not activated: version 1 measured worse than version 2." in page
    assert "Worse than the active version" in page
    assert (await visitor.get(here)).text.count("serving version 2") == 1

    await act(visitor, here, f"{here}/versions/1/activate", accept_regression="2")
    assert "serving version 1" in (await visitor.get(here)).text
    assert "measured worse" not in (await visitor.get(here)).text, "version 2 is better than version 1"


async def test_a_rollback_to_a_worse_version_asks(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    for version in (1, 2):
        await act(visitor, here, f"{here}/versions/{version}/activate")
    assert "Roll back to version 1?" in (await visitor.get(here)).text
    await measured(site, adapter, v1=0.38, v2=0.5)
    page = (await visitor.get(here)).text
    question = page[page.index('id="rollback"') :].partition("</form>")[0]
    assert "Roll back to version 1 although it measured worse?" in question
    assert "gains 0.120 nats per token less over the base model than version 2" in question
    assert 'name="accept_regression" value="2"' in question
    refused = await act(visitor, here, f"{here}/rollback")
    assert refused.headers["location"] == f"/console{here}/versions/1"
    assert "serving version 2" in (await visitor.get(here)).text
    await act(visitor, here, f"{here}/rollback", accept_regression="2")
    assert "serving version 1" in (await visitor.get(here)).text
    await act(visitor, here, f"{here}/rollback")
    assert "serving version 2" in (await visitor.get(here)).text, "which is better"


@pytest.mark.parametrize(("new", "old"), [(0.5, 0.5), (0.4996, 0.5), (None, 0.5), (0.1, None)])
async def test_what_is_no_regression_is_activated_as_ever(
    site: Site, visitor: httpx.AsyncClient, new: float | None, old: float | None
) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    await act(visitor, here, f"{here}/versions/2/activate")
    await measured(site, adapter, v1=new, v2=old)
    assert "measured worse" not in (await visitor.get(here)).text
    await act(visitor, here, f"{here}/versions/1/activate")
    assert "serving version 1" in (await visitor.get(here)).text


async def test_only_admins_delete_and_only_by_name(site: Site, visitor: httpx.AsyncClient) -> None:
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    await site.accounts.create(site.tenant_id, "dev@acme.example", PASSWORD, role="developer")
    async with site.visitor() as developer:
        await sign_in(developer, "dev@acme.example")
        assert "Delete adapter" not in (await developer.get(here)).text
        refused = await act(developer, here, f"{here}/delete", name="pirate")
        assert refused.status_code == 403
        assert (await act(developer, here, f"{here}/rollback")).status_code == 303
    await sign_in(visitor)
    assert (await act(visitor, here, f"{here}/delete", name="pirat")).status_code == 400
    assert (await visitor.get(here)).status_code == 200
    gone = await act(visitor, here, f"{here}/delete", name="pirate")
    assert gone.headers["location"] == "/console/adapters"
    assert (await visitor.get(here)).status_code == 404


async def test_a_refusal_is_shown_with_what_is_at_fault(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    async with site.place.database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE adapter_versions SET state = 'failed', error = :error, error_field = :field"),
            {"error": f"rank 4, the config says 8 {XSS}", "field": f"model.layers.0{XSS}"},
        )
    page = (await visitor.get(f"/adapters/{made.adapter.id}")).text
    assert "Version 1 failed" in page
    assert "rank 4, the config says 8" in page
    assert "model.layers.0&lt;img" in page
    assert "<img src=x" not in page
    version = (await visitor.get(f"/adapters/{made.adapter.id}/versions/1")).text
    assert "Why it failed" in version
    assert "<img src=x" not in version


async def test_a_report_on_default_samples_claims_no_improvement(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    report = report_of(made)
    report = msgspec.structs.replace(report, data=msgspec.structs.replace(report.data, origin="general"))
    await finish_with_report(site.place, made, report)
    page = (await visitor.get(f"/adapters/{made.adapter.id}/versions/1")).text
    assert "Stays close to the base model" in page
    assert "Improves on the base model" not in page


async def test_a_version_shows_its_report(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    report = report_of(made, reason=f"bf16, the only one available {XSS}")
    await finish_with_report(site.place, made, report)
    here = f"/adapters/{made.adapter.id}/versions/1"
    page = (await visitor.get(here)).text
    assert "Passed all checks" in page
    assert "Improves on the base model" in page
    assert "On your samples the adapter is 0.500 nats per token better" in page
    assert "bf16, the only one available &lt;img" in page
    assert page.partition("<main")[2].count("<svg") == 4
    assert "Cost of quantizing, sample by sample" in page
    assert "<style" not in page
    assert '<th scope="row">17</th>' in page  # the line of a sample, in the table beside the chart
    assert "model.layers.0.self_attn.q_proj" in page
    assert "too long, cut" in page
    assert (await visitor.get(here)).headers["content-encoding"] == "gzip"
    document = await visitor.get(f"{here}/report.json")
    assert document.content == report.to_json()
    assert document.headers["content-disposition"] == 'attachment; filename="calibration-1.json"'


async def test_a_version_without_a_report_says_so(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    here = f"/adapters/{made.adapter.id}/versions/1"
    assert "View progress" in (await visitor.get(here)).text
    assert (await visitor.get(f"{here}/report.json")).status_code == 404
    for number in ("2", "0", "x", "9" * 12):
        assert (await visitor.get(f"/adapters/{made.adapter.id}/versions/{number}")).status_code == 404


async def test_others_adapters_are_not_there(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    theirs = await site.place.create("pirate", tenant=1)
    ours = await site.place.create("pirate")
    adapter, job = theirs.adapter.id, theirs.job_id
    here, page = f"/adapters/{adapter}", f"/adapters/{ours.adapter.id}"
    for path in (
        here,
        f"{here}/live",
        f"{here}/versions/1",
        f"{here}/versions/1/report.json",
        f"{here}/versions/new",
    ):
        refused = await visitor.get(path)
        assert refused.status_code == 404, path
        assert "Page not found" in refused.text
    for path in (
        f"{here}/rollback",
        f"{here}/disable",
        f"{here}/enable",
        f"{here}/delete",
        f"{here}/versions/1/activate",
        f"{here}/versions/1/disable",
        f"{page}/jobs/{job}/cancel",
    ):
        assert (await act(visitor, page, path, name="pirate")).status_code == 404, path
    states = await site.place.column("SELECT state FROM adapter_versions")
    assert states == [VersionState.VALIDATING] * 2
    assert (await visitor.get(f"/adapters/{new_id('adp')}")).status_code == 404


async def test_nothing_changes_without_the_token(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    token = csrf_token(await visitor.get(here))
    paths = [f"{here}/{verb}" for verb in ("rollback", "disable", "enable", "delete", "versions/1/activate")]
    for path in paths:
        for fields in ({}, {"csrf_token": "guess"}):
            assert (await visitor.post(path, data={"name": "pirate", **fields})).status_code == 403
        foreign = await visitor.post(
            path, data={"csrf_token": token, "name": "pirate"}, headers={"sec-fetch-site": "cross-site"}
        )
        assert foreign.status_code == 403
        assert (await visitor.get(path)).status_code in (404, 405)
    shown = await site.place.onboarding.catalogue.get(site.tenant_id, adapter)
    assert (shown.adapter.active_version, shown.adapter.disabled_at) == (2, None)


async def test_signed_out_visitors_see_and_change_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    adapter = await two_ready_versions(site.place)
    for path in ("/adapters", "/adapters/new", f"/adapters/{adapter}", f"/adapters/{adapter}/versions/1"):
        assert (await visitor.get(path)).headers["location"] == "/console/sign-in"
    sent = await visitor.post(f"/adapters/{adapter}/disable", data={"csrf_token": ""})
    assert sent.headers["location"] == "/console/sign-in"
    scripted = await visitor.post(
        "/adapters/uploads", json={}, headers={"accept": "application/json", "x-csrf-token": "x"}
    )
    assert scripted.status_code == 401
    assert "signed out" in scripted.json()["error"]["message"]


async def test_pages_are_never_kept_and_carry_nothing_inline(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    await finish_with_report(site.place, made, report_of(made))
    here = f"/adapters/{made.adapter.id}"
    for path in (
        "/adapters",
        "/adapters/new",
        here,
        f"{here}/live",
        f"{here}/versions/1",
        f"{here}/versions/new",
    ):
        answer = await visitor.get(path)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "no-store"
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", answer.text)
        for tag in re.findall(r"<script[^>]*>[^<]*", answer.text):
            assert re.fullmatch(r'<script type="module" src="/console/static/\w+\.[0-9a-f]{12}\.js">', tag)


async def test_scripts_are_served_as_such(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = (await visitor.get("/adapters/new")).text
    found = re.search(r'src="/console(/static/upload\.[0-9a-f]{12}\.js)"', page)
    assert found is not None
    named = await visitor.get(found[1])
    assert "javascript" in named.headers["content-type"]
    assert named.headers["cache-control"] == "public, max-age=31536000, immutable"
    # What a script imports it names without the hash: it is asked for again after an update.
    for name in re.findall(r'from "\./(\w+\.js)"', named.text):
        beside = await visitor.get(f"/static/{name}")
        assert beside.status_code == 200
        assert beside.headers["cache-control"] == "no-cache"
        revalidated = {"if-none-match": beside.headers["etag"]}
        assert (await visitor.get(f"/static/{name}", headers=revalidated)).status_code == 304


async def test_it_is_to_serve_as_soon_as_it_is_ready_unless_unticked(visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert re.search(r'name="activate" checked', (await visitor.get("/adapters/new")).text)


async def test_a_paused_version_and_a_cancelled_one_are_called_so(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    here, job = f"/adapters/{made.adapter.id}", made.job_id
    await act(visitor, here, f"{here}/jobs/{job}/pause")
    assert (await visitor.get(here)).text.count('<span class="badge off">Paused</span>') == 2
    assert "Paused" in row_of((await visitor.get("/adapters")).text, "pirate")
    await act(visitor, here, f"{here}/jobs/{job}/cancel")
    page = (await visitor.get(here)).text
    assert "Version 1 was cancelled" in page
    assert "Upload the files again" in page
    assert "data-pending" not in page


async def test_the_words_of_a_failure_are_shown_once(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await site.place.create("pirate")
    assert made.job_id is not None
    lease = await site.place.lease(made.job_id)
    async with lease.write() as held:
        _, version = await locked_version(held.session, held.job)
        fail(held.session, held.job, version, JobFailed("adapter_invalid", "Rank 4 it is not.", "r"))
    page = (await visitor.get(f"/adapters/{made.adapter.id}")).text
    events = page[page.index('id="events"') :]
    assert events.count("Rank 4 it is not.") == 1
    assert "Cause: <code>r</code>" in page


async def test_events_have_pages(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admin.adapters.page.EVENTS", 2)
    await sign_in(visitor)
    made = await site.place.create("pirate")
    first = (await visitor.get(f"/adapters/{made.adapter.id}")).text
    assert "pirate created." not in first
    older = re.search(r'href="/console(/adapters/\w+\?before=\w+)"', first)
    assert older is not None
    assert "pirate created." in (await visitor.get(older[1])).text
    assert (await visitor.get(f"/adapters/{made.adapter.id}?before=<b>")).status_code == 404


async def test_a_refusal_too_hands_over_the_rotated_session(
    visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    monkeypatch.setattr("admin.web.sessions.ROTATE_S", 0)
    before = dict(visitor.cookies)
    assert (await visitor.get("/adapters/nobody")).status_code == 404
    assert dict(visitor.cookies) != before
    assert (await visitor.get("/adapters")).status_code == 200


async def test_those_who_may_only_look_change_nothing(site: Site) -> None:
    adapter = await two_ready_versions(site.place)
    here = f"/adapters/{adapter}"
    await site.accounts.create(site.tenant_id, "eye@acme.example", PASSWORD, role="viewer")
    async with site.visitor() as viewer:
        await sign_in(viewer, "eye@acme.example")
        assert (await viewer.get(here)).status_code == 200
        for action in ("rollback", "disable"):
            refused = await act(viewer, here, f"{here}/{action}")
            assert (refused.status_code, "viewer" in refused.text) == (403, True)
        token = csrf_token(await viewer.get(here))
        begun = await viewer.post("/adapters/uploads", json={}, headers={"x-csrf-token": token})
        assert begun.status_code == 403


async def test_acceptance_of_drafts_is_the_tenants_own_over_engines_and_versions(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    page = f"/adapters/{adapter}"
    assert "Speculation" not in (await visitor.get(page)).text, "nothing was drafted"
    mine, other = site.place.tenants
    one, two = "1b" * 32, "2b" * 32
    site.engines.reports = [
        report(view=view(drafts=[DraftCounts(mine, one, 100, 70), DraftCounts(other, one, 1000, 0, 100)])),
        report(view=view(drafts=[DraftCounts(mine, two, 300, 100), DraftCounts(mine, "c" * 64, 7, 7)])),
        report(view=None),
    ]
    shown = words_of((await visitor.get(page)).text)
    assert "42.50 % of drafted tokens accepted (170 of 400 since the engines started)" in shown
    assert "gained per step" not in shown, "no engine counted the tenant's steps"


async def test_tokens_gained_per_step_are_the_tenants_own(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    mine, other = site.place.tenants
    one = "1b" * 32
    site.engines.reports = [
        report(view=view(drafts=[DraftCounts(mine, one, 90, 60, 40)])),
        report(view=view(drafts=[DraftCounts(mine, one, 90, 40, 40), DraftCounts(other, one, 9, 9, 1)])),
        report(view=view(drafts=[DraftCounts(mine, one, 100, 100)])),
    ]
    shown = words_of((await visitor.get(f"/adapters/{adapter}")).text)
    assert "1.25 tokens gained per step with drafts (2.25 instead of one)" in shown


async def test_the_page_does_not_wait_for_engines(
    site: Site, visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging:
        async def look(self) -> list[EngineReport]:
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr("admin.adapters.page.ENGINE_PATIENCE", 0.01)
    await sign_in(visitor)
    adapter = await two_ready_versions(site.place)
    site.engines.true = Hanging()
    answer = await visitor.get(f"/adapters/{adapter}")
    assert answer.status_code == 200
    assert "Speculation" not in answer.text
