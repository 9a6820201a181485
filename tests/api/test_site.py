"""The landing page at `/`, the documentation below `/docs`, and the API reference."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from admin.web.security import CONTENT_SECURITY_POLICY
from api.site.reference import Reference
from api.site.routes import SiteRoutes
from db.errors import DatabaseUnavailable
from sla.incidents.service import PublicIncident
from tests.api.conftest import World

SCRIPT = "document.body.dataset.seen = 'yes'"
PAGE = (
    f"<!doctype html><title>Home</title><script>{SCRIPT}</script><script src='assets/a.12345678.js'></script>"
)


class Incidents:
    """One that is open, or a database that is away."""

    def __init__(self, told: list[PublicIncident] | None) -> None:
        self._told = told

    async def public(self) -> list[PublicIncident]:
        if self._told is None:
            raise DatabaseUnavailable("away")
        return self._told


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A built site of three files."""
    (tmp_path / "site/guide").mkdir(parents=True)
    (tmp_path / "site/assets").mkdir()
    (tmp_path / "site/index.html").write_text(PAGE)
    (tmp_path / "site/guide/index.html").write_text("<title>Guide</title>" + "words " * 500)
    (tmp_path / "site/assets/a.12345678.js").write_text("1;")
    (tmp_path / "secret.txt").write_text("not of the site")
    return tmp_path / "site"


@asynccontextmanager
async def reading(world: World, site: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI(title="Rootstock", docs_url=None, redoc_url=None)
    app.state.services = world.services
    SiteRoutes(app, world.services, site).install()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://models.example") as client:
        yield client


async def test_the_landing_page_shows_a_request_that_works_here(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers={"authorization": "", "host": "models.example:8443"})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert page.headers["cache-control"] == "no-store"
    command = re.search(r"<pre[^>]*><code>(curl.*?)</code>", page.text, re.DOTALL)
    assert command is not None
    text = command[1].replace("&#34;", '"').replace("&#39;", "'")
    url = re.search(r"curl (\S+)", text)
    body = re.search(r"-d '(.*)'", text)
    assert url is not None
    assert url[1] == "http://models.example:8443/v1/chat/completions"
    assert body is not None
    answer = await client.post("/v1/chat/completions", json=json.loads(body[1]))
    assert answer.status_code == 200, answer.text
    for path in ("/console/", "/docs/reference", "/docs/", "#status"):
        assert f'href="{path}"' in page.text


async def test_a_host_cannot_put_markup_into_the_page(client: httpx.AsyncClient) -> None:
    page = await client.get("/", headers={"host": "a<script>alert(1)</script>"})
    assert "<script>alert" not in page.text
    page = await client.get("/docs/reference", headers={"host": "a<script>alert(1)</script>"})
    assert "<script>alert" not in page.text


async def test_the_landing_page_says_what_is_not_ready(client: httpx.AsyncClient, world: World) -> None:
    assert "Ready to serve requests" in (await client.get("/")).text
    world.engine.ready = False
    page = (await client.get("/")).text
    assert "Ready to serve requests" not in page
    assert "not connected to a serving engine" in page


async def test_the_landing_page_shows_public_incidents(world: World, site: Path) -> None:
    began = datetime(2026, 11, 22, 9, 30, tzinfo=UTC)
    told = [PublicIncident("Slow <first> tokens", "minor", began, "Capacity is being added.")]
    world.services = replace(world.services, incidents=Incidents(told))  # type: ignore[arg-type]
    async with reading(world, site) as client:
        page = (await client.get("/")).text
    assert "Slow &lt;first&gt; tokens" in page
    assert "22 November 2026, 09:30 UTC" in page
    assert "Capacity is being added." in page


async def test_the_landing_page_is_there_while_the_database_is_away(world: World, site: Path) -> None:
    world.services = replace(world.services, incidents=Incidents(None))  # type: ignore[arg-type]
    async with reading(world, site) as client:
        assert (await client.get("/")).status_code == 200


BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize("path", ["/nowhere", "/console.html", "/v1"])
async def test_a_browser_sees_a_page_for_an_unknown_address(client: httpx.AsyncClient, path: str) -> None:
    page = await client.get(path, headers=BROWSER)
    assert page.status_code == 404
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert page.headers["vary"] == "accept", "a cache has it for browsers only"
    for text in ("Page not found", 'href="/console/"', 'href="/docs/"', 'href="/docs/reference"'):
        assert text in page.text
    assert (await client.head(path, headers=BROWSER)).headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/nowhere", {"accept": "*/*"}),
        ("GET", "/nowhere", {"accept": "application/json"}),
        ("POST", "/nowhere", BROWSER),
        ("GET", "/v1/nowhere", BROWSER),
    ],
)
async def test_programs_have_the_error_of_an_unknown_address_as_json(
    client: httpx.AsyncClient, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await client.request(method, path, headers=headers)
    assert answer.status_code == 404
    assert answer.json()["error"] == {
        "message": f"There is no {method} {path}.",
        "type": "invalid_request_error",
        "param": None,
        "code": "not_found",
    }


async def test_pages_of_the_documentation_are_served(world: World, site: Path) -> None:
    async with reading(world, site) as client:
        for path, target in (("/docs", "/docs/"), ("/docs/guide", "/docs/guide/")):
            moved = await client.get(path)
            assert (moved.status_code, moved.headers["location"]) == (308, target)
        assert "<title>Home</title>" in (await client.get("/docs/")).text
        guide = await client.get("/docs/guide/")
        assert guide.headers["content-encoding"] == "gzip"
        assert guide.headers["cache-control"] == "no-cache"
        assert "<title>Guide</title>" in guide.text
        plain = await client.get("/docs/guide/", headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.text == guide.text
        head = await client.head("/docs/guide/")
        assert (head.status_code, head.content) == (200, b"")


async def test_what_has_not_changed_is_not_sent_again(world: World, site: Path) -> None:
    async with reading(world, site) as client:
        first = await client.get("/docs/guide/")
        again = await client.get("/docs/guide/", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        named = await client.get("/docs/assets/a.12345678.js")
        assert named.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize(
    "path", ["/docs/nothing", "/docs/%2e%2e/secret.txt", "/docs/..%2fsecret.txt", "/docs/static/x"]
)
async def test_nothing_else_is_served(world: World, site: Path, path: str) -> None:
    async with reading(world, site) as client:
        response = await client.get(path)
    assert response.status_code == 404
    assert "not of the site" not in response.text


async def test_the_policy_allows_the_scripts_of_the_pages_and_no_others(world: World, site: Path) -> None:
    async with reading(world, site) as client:
        policy = (await client.get("/docs/")).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert rules["script-src"] == f"'self' 'sha256-{digest}'"
    assert rules["default-src"] == "'none'"
    assert rules["frame-ancestors"] == "'none'"
    assert not re.search(r"https?:|\*", policy)


async def test_without_a_built_site_the_page_says_how_to_build_it(world: World, tmp_path: Path) -> None:
    async with reading(world, tmp_path / "nothing") as client:
        page = await client.get("/docs/")
        assert page.status_code == 503
        assert "make docs" in page.text
        assert (await client.get("/docs/static/site.css")).status_code == 200


async def test_the_reference_has_every_operation_of_the_document(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    page = await client.get("/docs/reference", headers={"accept-encoding": "identity"})
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "<script>" not in page.text
    assert " style=" not in page.text
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert f'<article id="{operation["operationId"]}">' in page.text
        assert f"<code>{path}</code>" in page.text
    assert "http://test/v1/chat/completions" in page.text
    meanings = re.findall(r'<th scope="row">\w+</th><td>(.*?)</td>', page.text)
    assert len(meanings) > 5
    assert all(meanings)
    assert "rootstock.invalid" not in page.text
    packed = await client.get("/docs/reference", headers={"host": "other.example"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "http://other.example/v1/chat/completions" in packed.text
    assert len(gzip.compress(page.content)) < 200_000


async def test_examples_of_the_reference_are_taken(client: httpx.AsyncClient) -> None:
    """The bodies that it shows for the engine's two routes are ones that are answered."""
    document = (await client.get("/openapi.json")).json()
    sections = Reference(document, "http://test", "sapling").sections()
    examples = {one.path: one.example for section in sections for one in section.operations}
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = re.search(r"-d '(.*)'", examples[path])
        assert body is not None
        answer = await client.post(path, json=json.loads(body[1]))
        assert answer.status_code == 200, (body[1], answer.text)


def test_fields_of_the_reference_are_those_of_the_schema() -> None:
    node = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
            "kind": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}], "default": "a"},
            "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
            "never": {"type": "null"},
        },
    }
    operation = {
        "operationId": "createNode",
        "summary": "Create a node",
        "tags": ["Nodes"],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}},
        "responses": {"200": {"description": "Made."}},
    }
    document = {
        "paths": {"/nodes/{node_id}": {"put": operation}},
        "components": {"schemas": {"Node": node}},
    }
    ((section,),) = (Reference(document, "https://x", "m").sections(),)
    (made,) = section.operations
    assert made.request is not None
    name, kind, children = made.request.fields
    assert (name.type, name.is_required, name.limits) == ("string", True, "at most 64 characters")
    assert (kind.values, kind.default, kind.is_required) == (("a", "b"), '"a"', False)
    assert (children.type, children.fields) == ("array of object", ())  # it holds itself
    assert made.title == "Create a node"
    assert made.example.startswith('curl -X PUT "https://x/nodes/$NODE_ID"')
    assert '{"name": "NAME"}' in made.example
