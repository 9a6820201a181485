"""What holds for every page of the console, whichever there are: asking changes nothing, changes need their
token, nothing of a request gets into a page as markup, nothing is kept after signing out, pages are light.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import text

from admin.web.rendering import HERE
from db.session import EVERY_TENANT
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.every_page import (
    OPERATORS,
    PARAMETER,
    SAML_METADATA,
    SAML_START,
    Furnished,
    furnish,
    pages,
    routes,
)
from tests.admin.operators import operate

MAX_TRANSFERRED = 100_000
FOR_EVERYBODY = {"/join", "/forgot", "/reset"}
ON_THE_WAY_IN = {"/sign-in", "/sign-in/code", *FOR_EVERYBODY}
HOSTILE = "<script>alert(7)</script>\"'><img src=x onerror=alert(7)>"
_ASSET = re.compile(r'(?:href|src)="/console(?P<stem>/static/\w+)\.[0-9a-f]{12}(?P<suffix>\.\w+)"')
_IMPORT = re.compile(r'from "\./([^"]+)"|import "\./([^"]+)"')
_TIME = re.compile(r'<time datetime="([^"]+)"(?: title="([^"]+)")?>([^<]+)</time>')
_IN_FULL = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d)?)?")
_WORD = re.compile(r"\w+")
_PARAMETER = re.compile(r'query_params(?:\.get\(|\[)"(\w+)"')
# Which rows there are, and which transaction wrote each.
_CONTENTS = """SELECT query_to_xml(format(
    'SELECT count(*) AS n, coalesce(sum(hashtext(xmin::text || ctid::text)), 0) AS s FROM %I', relname
), false, true, '')::text
FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"""


class Everybody:
    """Asks as a member of the organisation, and as one who runs the service what only they see."""

    def __init__(self, site: Site, member: httpx.AsyncClient, operator: httpx.AsyncClient) -> None:
        self.site, self.member, self.operator = site, member, operator

    def of(self, path: str) -> httpx.AsyncClient:
        return self.operator if path.startswith(OPERATORS) else self.member

    async def get(self, path: str) -> httpx.Response:
        return await self.of(path).get(path)


@pytest.fixture
async def furnished(site: Site) -> Furnished:
    return await furnish(site, lambda kind: kind)


@pytest.fixture
async def everybody(site: Site, visitor: httpx.AsyncClient) -> AsyncIterator[Everybody]:
    await sign_in(visitor)
    async with site.visitor() as operator:
        await operate(site, operator)
        yield Everybody(site, visitor, operator)


def is_page(answer: httpx.Response) -> bool:
    return answer.headers.get("content-type", "").startswith("text/html")


async def contents(site: Site) -> list[str]:
    async with site.place.database.read(EVERY_TENANT) as session:
        return list((await session.execute(text(_CONTENTS))).scalars())


async def test_asking_is_answered_changes_nothing_and_is_light(
    site: Site, furnished: Furnished, everybody: Everybody
) -> None:
    paths = pages(site, furnished)
    before, kept = await contents(site), {*await site.redis.keys()}
    heavy, relative = {}, set()
    for path in paths:
        answer = await everybody.get(path)
        if answer.is_redirect:
            assert path in furnished.leading_elsewhere, f"{path} leads to {answer.headers['location']}"
            continue
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
        assert answer.headers["cache-control"] == "no-store", path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        if is_page(answer):
            relative |= check_times(answer.text)
            size = transferred(answer)
            if size > MAX_TRANSFERRED:
                heavy[path] = size
    assert not heavy
    assert "just now" in relative, "lists say how long ago"
    assert await contents(site) == before
    strange = {key for key in {*await site.redis.keys()} - kept if b":session:" not in key}
    assert not strange, "nor does it leave anything in Redis"


def check_times(page: str) -> set[str]:
    """Returns the relative times of a page; each of them has its full time on hover."""
    relative = set()
    for machine, title, words in _TIME.findall(page):
        if not _IN_FULL.fullmatch(words):
            assert title == f"{machine[:10]} {machine[11:19]} UTC", f"{words} ({machine})"
            relative.add(words)
    return relative


def transferred(page: httpx.Response) -> int:
    """Bytes of a first visit: the page, and all it names and that imports, as small as a proxy makes them."""
    assets = {found["stem"] + found["suffix"] for found in _ASSET.finditer(page.text)}
    assert assets or "<head>" not in page.text, "every page names its styles"
    waiting = list(assets)
    while waiting:
        name = waiting.pop()
        if name.endswith(".js"):
            source = (HERE / name.removeprefix("/")).read_text()
            fresh = {f"/static/{one or other}" for one, other in _IMPORT.findall(source)} - assets
            assets |= fresh
            waiting += fresh
    files = [(HERE / name.removeprefix("/")).read_bytes() for name in assets]
    return sum(len(gzip.compress(content, 6)) for content in (page.content, *files))


async def test_every_change_needs_the_token_of_its_page(
    site: Site, furnished: Furnished, everybody: Everybody
) -> None:
    posted = [path for method, path in routes(site) if method == "POST"]
    assert len(posted) > 40
    assert {method for method, _ in routes(site)} == {"GET", "POST"}
    before = await contents(site)
    stranger = site.visitor()
    tokens = {
        everybody.member: csrf_token(await everybody.get("/keys/new")),
        everybody.operator: csrf_token(await everybody.get("/operator/tenants")),
        stranger: csrf_token(await stranger.get("/sign-in")),
    }
    let_in = []
    for template in posted:
        path = PARAMETER.sub(lambda found: furnished.things.get(found[1], "x"), template)
        asker = stranger if path in ON_THE_WAY_IN else everybody.of(path)
        token = tokens[asker]
        foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example", "x-csrf-token": token}
        for headers, given in (({}, ""), ({}, "guess"), (foreign, token)):
            answer = await post(asker, path, given, headers)
            sent_back = asker is stranger and answer.headers.get("location") == "/console/sign-in"
            if answer.status_code != 403 and not sent_back:
                let_in.append(f"{template} with {given!r}: {answer.status_code}")
    await stranger.aclose()
    assert not let_in
    assert await contents(site) == before


async def post(visitor: httpx.AsyncClient, path: str, token: str, headers: dict[str, str]) -> httpx.Response:
    fields = {"csrf_token": token, "name": "x"}
    answer = await visitor.post(path, data=fields, headers=headers)
    if answer.status_code == 415:  # a form with files
        files = {"weights": ("a.safetensors", b"x")}
        answer = await visitor.post(path, data=fields, files=files, headers=headers)
    return answer


async def test_nothing_of_a_request_is_markup(site: Site, furnished: Furnished, everybody: Everybody) -> None:
    source = "".join(path.read_text() for path in HERE.rglob("*.py"))
    names = {*_PARAMETER.findall(source)} | {"from", "until", "type", "actor", "group", "q"}
    hostile = Furnished({name: quote(HOSTILE, safe="") for name in furnished.things})
    for template in [path for method, path in routes(site) if method == "GET"]:
        path = furnished.path(template)
        whole = await told_as_text(everybody, path, dict.fromkeys(names, HOSTILE))
        if whole.status_code >= 400:  # one of them stood before the others
            for name in names & {*_WORD.findall(whole.text)}:
                await told_as_text(everybody, path, {name: HOSTILE})
        if path != template:
            await told_as_text(everybody, hostile.path(template), {})


async def told_as_text(everybody: Everybody, path: str, parameters: dict[str, str]) -> httpx.Response:
    answer = await everybody.of(path).get(path, params=parameters)
    assert answer.status_code < 500, f"{path} {parameters}: {answer.status_code}"
    assert not is_page(answer) or "<script>alert" not in answer.text, path
    assert not is_page(answer) or "<img src=x" not in answer.text, path
    return answer


async def test_after_signing_out_there_is_nothing_to_see(
    site: Site, furnished: Furnished, everybody: Everybody
) -> None:
    for one, page in ((everybody.member, "/keys"), (everybody.operator, "/operator/tenants")):
        left = await one.post("/sign-out", data={"csrf_token": csrf_token(await one.get(page))})
        assert left.headers["clear-site-data"] == '"storage"'
    seen = []
    for path in pages(site, furnished):
        answer = await everybody.get(path)
        assert answer.headers["cache-control"] == "no-store", path
        if answer.status_code == 200:
            seen.append(path)
        else:
            assert answer.headers["location"] == "/console/sign-in", path
    of_saml = {furnished.path(SAML_START), furnished.path(SAML_METADATA)}
    assert {*seen} == FOR_EVERYBODY | {"/sign-in", "/sign-in/sso"} | of_saml
