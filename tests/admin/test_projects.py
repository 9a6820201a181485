"""Projects made, renamed, archived and peopled in the console; and who may."""

from __future__ import annotations

import html
import re

import httpx

from tenants.actors import OPERATOR
from tenants.limits.kinds import Limit, Metric
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.test_keys import XSS, act, as_role


async def made(site: Site, name: str = "Support") -> str:
    return (await site.account.projects.create(site.tenant_id, name, OPERATOR)).id


async def test_a_project_is_made_renamed_and_archived(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    answer = await act(visitor, "/projects/new", "/projects", name=f"Bots {XSS}")
    assert answer.status_code == 303
    here = answer.headers["location"].removeprefix("/console")
    page = (await visitor.get(here)).text
    assert "was created." in page
    assert "<img src=x" not in page
    project_id = here.rpartition("/")[2]
    await site.keys.create(site.tenant_id, "robot", OPERATOR, project_id=project_id)
    assert re.search(r'data-label="API keys">1<', (await visitor.get("/projects")).text)
    assert (await act(visitor, here, f"{here}/name", name="Helpers")).status_code == 303
    page = (await visitor.get(here)).text
    assert "<h1>Helpers" in page
    assert "robot" in page
    assert (await act(visitor, here, f"{here}/archive")).headers["location"] == "/console/projects"
    listed = (await visitor.get("/projects")).text
    assert here not in listed
    assert "Helpers was archived" in listed
    assert here in (await visitor.get("/projects?show=all")).text
    assert "can't be changed" in (await visitor.get(here)).text
    assert [key async for key in _live_keys(site)] == []
    refused = await act(visitor, "/projects", f"{here}/name", name="Again")
    assert refused.status_code == 409


async def _live_keys(site: Site):  # type: ignore[no-untyped-def]
    for key, *_ in await site.keys.list(site.tenant_id):
        yield key


async def test_what_is_wrong_stands_beside_the_name(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    project_id = await made(site)
    for page, path in (("/projects/new", "/projects"), ("/projects", f"/projects/{project_id}/name")):
        for name, status, message in (
            (" ", 422, "printable"),
            ("Default", 409, "with this name already exists"),
        ):
            refused = await act(visitor, page, path, name=name)
            assert refused.status_code == status
            told = html.unescape(refused.text).partition('id="problem-name">')[2].partition("</p>")[0]
            assert message in told
    (default,) = [one for one in await site.account.projects.list(site.tenant_id) if one.is_default]
    assert "Archive project" not in (await visitor.get(f"/projects/{default.id}")).text
    assert (await act(visitor, "/projects", f"/projects/{default.id}/archive")).status_code == 409


async def test_people_come_into_a_project_and_leave_it(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    project_id = await made(site)
    here = f"/projects/{project_id}"
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="developer")
    added = await act(visitor, here, f"{here}/members", user=her.user_id, role="member")
    assert added.status_code == 303
    key = await site.keys.create(site.tenant_id, "hers", OPERATOR, project_id=project_id, user_id=her.user_id)
    assert "grace@acme.example was added to the project." in (await visitor.get(here)).text
    path = f"{here}/members/{her.user_id}"
    assert (await act(visitor, here, f"{path}/role", role="owner")).status_code == 303
    assert (await act(visitor, here, f"{path}/role", role="king")).status_code == 400
    ((place, _),) = await site.account.members.project_members(site.tenant_id, project_id)
    assert place.role == "owner"
    assert (await act(visitor, here, f"{path}/remove")).status_code == 303
    assert (await site.keys.get(site.tenant_id, key.id))[0].revoked_at is not None
    assert (await act(visitor, here, f"{path}/remove")).status_code == 404


async def test_limits_and_new_keys_are_a_step_away(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    project_id = await made(site)
    limit = Limit("project", project_id, "", Metric.SPEND_PER_MONTH, 25_000_000)
    await site.account.limits.set(site.tenant_id, OPERATOR, limit)
    page = html.unescape((await visitor.get(f"/projects/{project_id}")).text)
    assert "$25.00" in page
    (path,) = re.findall(r'href="/console(/limits/new\?for=[^"]+)"', page)
    assert re.search(rf'value="project:{project_id}" selected', (await visitor.get(path)).text)
    (path,) = re.findall(r'href="/console(/keys/new\?[^"]+)"', page)
    assert re.search(rf'value="{project_id}" selected', (await visitor.get(path)).text)


async def test_roles_see_and_change_what_they_may(site: Site, visitor: httpx.AsyncClient) -> None:
    project_id = await made(site)
    here = f"/projects/{project_id}"
    (owner,) = await site.account.members.list(site.tenant_id)
    await as_role(site, visitor, "billing")
    page = (await visitor.get(here)).text
    assert 'id="members"' in page
    assert 'id="keys"' not in page
    visitor.cookies.clear()
    await as_role(site, visitor, "viewer")
    page = await visitor.get(here)
    assert "Project name" not in page.text
    assert (await visitor.get("/projects/new")).status_code == 403
    token = csrf_token(page)
    paths = ("/projects", f"{here}/name", f"{here}/archive", f"{here}/members")
    for path in (*paths, f"{here}/members/{owner.id}/remove"):
        refused = await visitor.post(path, data={"csrf_token": token, "name": "x", "role": "member"})
        assert refused.status_code == 403
    assert EMAIL not in page.text


async def test_projects_of_others_are_not_there(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    theirs = await site.account.projects.default(site.place.tenants[1])
    assert (await visitor.get(f"/projects/{theirs.id}")).status_code == 404
    for verb in ("name", "archive", "members"):
        fields = {"name": "Mine", "user": "usr_x", "role": "member"}
        assert (await act(visitor, "/projects", f"/projects/{theirs.id}/{verb}", **fields)).status_code == 404
    assert (await visitor.get("/projects?after=tnt_1")).status_code == 404
