"""Importing an adapter through the console."""

from __future__ import annotations

import html

import httpx
from sqlalchemy import select

from adapters.jobs.models import IMPORT, Job
from adapters.models import AdapterVersion
from db.session import EVERY_TENANT, Database
from tests.admin.conftest import csrf_token, sign_in

TOKEN = "hf_a-token-of-a-test"


async def test_a_form_imports_an_adapter_and_shows_where_from(
    database: Database, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    page = await visitor.get("/adapters/import")
    assert 'href="/console/adapters/import?type=s3"' in page.text
    fields = {
        "csrf_token": csrf_token(page),
        "type": "hub",
        "name": "pirate",
        "repository": "acme/pirate",
        "revision": "v1",
        "token": TOKEN,
        "activate": "on",
    }
    refused = await visitor.post("/adapters/import", data=fields | {"repository": "../x"})
    assert refused.status_code == 422
    assert ">It must be 'name' or 'owner/name', not '../x'" in html.unescape(refused.text)
    assert TOKEN not in refused.text, "a secret is not shown again"
    refused = await visitor.post("/adapters/import", data=fields | {"endpoint": "https://hub.example"})
    assert "the operator allows: https://huggingface.co" in refused.text
    refused = await visitor.post("/adapters/import", data=fields | {"name": "Not so"})
    assert "Use 1 to 64 lowercase letters" in refused.text
    sent = await visitor.post("/adapters/import", data=fields)
    assert sent.status_code == 303, sent.text
    async with database.read(EVERY_TENANT) as session:
        job = (await session.execute(select(Job))).scalar_one()
        version = (await session.execute(select(AdapterVersion))).scalar_one()
    assert job.parameters[IMPORT]["source"]["repository"] == "acme/pirate"
    assert (version.state, version.activate) == ("uploading", True)
    assert TOKEN not in str(job.parameters)
    shown = await visitor.get(f"/adapters/{version.adapter_id}")
    assert ">Import<" in shown.text.replace(" ", "").replace("\n", "")
    shown = await visitor.get(f"/adapters/{version.adapter_id}/versions/1")
    for text in ("acme/pirate", "v1", "https://huggingface.co"):
        assert text in shown.text
    new = await visitor.get(f"/adapters/{version.adapter_id}/versions/new")
    assert f"/console/adapters/{version.adapter_id}/versions/import" in new.text


async def test_a_version_is_imported_from_s3(database: Database, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    page = await visitor.get("/adapters/import?type=s3")
    fields = {
        "csrf_token": csrf_token(page),
        "type": "s3",
        "name": "pirate",
        "url": "s3://bucket/pirate",
        "region": "eu-central-1",
        "access_key_id": "AKIA-OF-A-TEST",
    }
    refused = await visitor.post("/adapters/import", data=fields)
    assert ">Give both parts of the key" in refused.text
    assert "AKIA-OF-A-TEST" not in refused.text
    made = await visitor.post("/adapters/import", data=fields | {"secret_access_key": "a-secret"})
    adapter = made.headers["location"].removeprefix("/console")
    page = await visitor.get(f"{adapter}/versions/import?type=s3")
    again = {name: value for name, value in fields.items() if name not in ("name", "access_key_id")}
    added = await visitor.post(f"{adapter}/versions/import", data=again | {"csrf_token": csrf_token(page)})
    assert added.headers["location"] == f"/console{adapter}"
    async with database.read(EVERY_TENANT) as session:
        versions = list((await session.execute(select(AdapterVersion))).scalars())
    assert [version.origin["url"] for version in versions if version.origin] == ["s3://bucket/pirate"] * 2
    assert not any(version.activate for version in versions)
