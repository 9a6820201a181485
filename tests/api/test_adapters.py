"""`/v1/adapters` over real rows, objects and a real sandbox; only the engine is a stand-in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis.asyncio

from adapters.bases import Bases
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from adapters.resolver import ModelResolver
from api.app import create_app
from api.pools import BasePool, Pools
from api.services import Services
from billing.service import UsageReports
from db.session import Database
from sla.recorder import SlaRecorder
from sla.service import SlaReports
from tenants.actors import OPERATOR
from tenants.key_service import KeyRestrictions, KeyService
from tenants.plans import PlanChanges, PlanService
from tenants.resolver import KeyResolver
from tests.api.fakes import FakeEngine, FakePrices, FakeQuotas
from tests.support.onboarding import SAPLING, SECRET, Scene
from tests.support.waiting import eventually
from tokenization.codec import TextCodec


@dataclass
class Site:
    """The application, a client of each of two tenants, and what is behind it."""

    place: Scene
    ours: httpx.AsyncClient
    theirs: httpx.AsyncClient
    models: ModelResolver
    app: Any

    async def create(self, name: str = "pirate", adapter: str = "pirate", **fields: Any) -> httpx.Response:
        body = {"name": name, "base_model": "sapling", "file_ids": await self.place.upload(adapter), **fields}
        return await self.ours.post("/v1/adapters", json=body)

    async def ready(self, answer: httpx.Response, digit: str) -> None:
        """Have the worker's part done."""
        assert answer.status_code == 201, answer.text
        lease = await self.place.lease(answer.json()["calibration_job"])
        await self.place.pack(lease, digit)
        await self.place.finish(lease)


@pytest.fixture
async def site(
    codec: TextCodec, place: Scene, database: Database, redis_client: redis.asyncio.Redis
) -> AsyncIterator[Site]:
    keys = KeyResolver(database, redis_client, SECRET)
    models = ModelResolver(database, redis_client, Bases("sapling"))
    await keys.start()
    await models.start()
    await eventually(lambda: keys.listening and models.listening)
    app = create_app(
        Services(
            pools=Pools(BasePool("sapling", FakeEngine(codec), codec)),  # type: ignore[arg-type]
            keys=keys,
            models=models,
            usage=UsageReports(database),
            files=place.files,
            uploads=place.uploads,
            quotas=FakeQuotas(),  # type: ignore[arg-type]
            prices=FakePrices(),  # type: ignore[arg-type]
            sla=SlaRecorder(None),  # type: ignore[arg-type]
            sla_reports=SlaReports(database),
            onboarding=place.onboarding,
        )
    )
    made_keys = KeyService(database, redis_client, SECRET)
    made = [(await made_keys.create(tenant, "main", OPERATOR)).plaintext for tenant in place.tenants]
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    ours, theirs = (
        httpx.AsyncClient(
            transport=transport, base_url="http://test", headers={"authorization": f"Bearer {key}"}
        )
        for key in made
    )
    async with ours, theirs:
        yield Site(place, ours, theirs, models, app)
    await keys.close()
    await models.close()


async def test_from_files_to_a_version_in_service(site: Site) -> None:
    answer = await site.create(description="Talks like one.")
    assert answer.status_code == 201
    made = answer.json()
    version = made.pop("version")
    job_id = made.pop("calibration_job")
    assert made | {"id": "", "created_at": 0, "created_by": ""} == {
        "id": "",
        "object": "adapter",
        "created_at": 0,
        "name": "pirate",
        "base_model": "sapling",
        "model": "sapling:pirate",
        "description": "Talks like one.",
        "state": "validating",
        "disabled": False,
        "active_version": None,
        "previous_version": None,
        "created_by": "",
    }
    assert made["id"].startswith("adp_")
    assert (version["object"], version["version"], version["model"]) == (
        "adapter.version",
        1,
        "sapling:pirate@1",
    )
    assert [file["filename"] for file in version["files"]] == [CONFIG_FILE, WEIGHTS_FILE]
    waiting = await site.ours.post("/v1/chat/completions", json=chat("sapling:pirate"))
    assert (waiting.status_code, waiting.json()["error"]["code"]) == (409, "not_ready")
    lease = await site.place.lease(job_id)
    await site.place.pack(lease, "1")
    shown = (await site.ours.get(f"/v1/adapters/{made['id']}")).json()
    assert (shown["state"], shown["version"]["inspection"]) == ("calibrating", {"rank": 8})
    await site.place.finish(lease)
    shown = (await site.ours.get("/v1/adapters/pirate")).json()
    assert (shown["id"], shown["state"], shown["active_version"]) == (made["id"], "ready", 1)
    assert shown["version"]["digest"] == "1b" * 32
    assert (shown["version"]["dtype"], shown["version"]["calibration"]) == ("bfloat16", {"samples": 3})
    await eventually(lambda: answers(site.ours, "sapling:pirate"), seconds=1)
    listed = (await site.ours.get("/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["sapling", "sapling:pirate"]


async def test_announced_before_its_files_with_the_stock_client(site: Site) -> None:
    transport = httpx.ASGITransport(site.app, raise_app_exceptions=False)
    key = site.ours.headers["authorization"].removeprefix("Bearer ")
    async with openai.AsyncOpenAI(
        base_url="http://test/v1",
        api_key=key,
        max_retries=0,
        http_client=httpx.AsyncClient(transport=transport),  # type: ignore[arg-type]
    ) as client:
        files = {name: (SAPLING / "adapters" / "pirate" / name) for name in (WEIGHTS_FILE, CONFIG_FILE)}
        uploads = [
            await client.uploads.create(
                bytes=path.stat().st_size,
                filename=name,
                mime_type="application/octet-stream",
                purpose="adapter",  # type: ignore[arg-type]
            )
            for name, path in files.items()
        ]
        upload_ids = [upload.id for upload in uploads]
        body = {"name": "pirate", "base_model": "sapling", "upload_ids": upload_ids}
        made: Any = await client.post("/adapters", body=body, cast_to=object)
        assert (made["state"], made["version"]["state"], made["version"]["files"]) == (
            "uploading",
            "uploading",
            [],
        )
        for model in ("sapling:pirate", "sapling:pirate@1"):
            with pytest.raises(openai.ConflictError) as waiting:
                await client.chat.completions.create(**chat(model))
            assert waiting.value.code == "not_ready"
        job: Any = await client.get(f"/calibration/jobs/{made['calibration_job']}", cast_to=object)
        assert (job["status"], job["dtype"]) == ("validating_files", "auto")
        again: Any = await client.post(
            "/adapters/pirate/versions", body={"upload_ids": upload_ids}, cast_to=object
        )
        assert (again["created"], again["version"]) == (False, 1)
        for upload, path in zip(uploads, files.values(), strict=True):
            part = await client.uploads.parts.create(upload.id, data=path.read_bytes())
            done = await client.uploads.complete(upload.id, part_ids=[part.id])
            assert done.status == "completed"
        shown: Any = await client.get("/adapters/pirate", cast_to=object)
        assert shown["state"] == "validating"
        assert [file["filename"] for file in shown["version"]["files"]] == [CONFIG_FILE, WEIGHTS_FILE]
        lease = await site.place.lease(made["calibration_job"])
        await site.place.pack(lease, "1")
        await site.place.finish(lease)
        await eventually(lambda: answers(site.ours, "sapling:pirate@1"), seconds=1)


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


async def answers(client: httpx.AsyncClient, model: str) -> bool:
    return (await client.post("/v1/chat/completions", json=chat(model))).status_code == 200


async def test_versions_are_added_activated_rolled_back_and_disabled(site: Site) -> None:
    first = await site.create()
    await site.ready(first, "1")
    path = f"/v1/adapters/{first.json()['id']}"
    second = await site.ours.post(
        f"{path}/versions", json={"file_ids": await site.place.upload("sql"), "activate": False}
    )
    assert (second.status_code, second.json()["version"], second.json()["created"]) == (201, 2, True)
    early = await site.ours.post(f"{path}/versions/2/activate")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "not_ready")
    await site.ready(second, "2")
    assert (await site.ours.get(path)).json()["active_version"] == 1
    again = await site.ours.post(f"{path}/versions", json={"file_ids": await site.place.upload("pirate")})
    assert (again.status_code, again.json()["version"], again.json()["created"]) == (200, 1, False)
    activated = (await site.ours.post(f"{path}/versions/2/activate")).json()
    assert (activated["active_version"], activated["previous_version"]) == (2, 1)
    back = (await site.ours.post(f"{path}/rollback")).json()
    assert (back["active_version"], back["previous_version"]) == (1, 2)
    disabled = (await site.ours.post(f"{path}/versions/2/disable")).json()
    assert (disabled["state"], disabled["active"]) == ("disabled", False)
    refused = await site.ours.post(f"{path}/rollback")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_ready")
    absent = await site.ours.post("/v1/chat/completions", json=chat("sapling:pirate@2"))
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "model_not_found")
    assert (await site.ours.post(f"{path}/versions/2/enable")).json()["state"] == "ready"
    listed = (await site.ours.get(f"{path}/versions", params={"limit": 1})).json()
    assert ([one["version"] for one in listed["data"]], listed["has_more"]) == ([2], True)
    rest = (await site.ours.get(f"{path}/versions", params={"after": listed["last_id"]})).json()
    assert ([one["version"] for one in rest["data"]], rest["has_more"]) == ([1], False)
    assert (await site.ours.get(f"{path}/versions/1")).json()["active"]


async def test_update_and_delete(site: Site) -> None:
    made = (await site.create()).json()
    await site.create("other", "sql")
    path = f"/v1/adapters/{made['id']}"
    changed = await site.ours.post(path, json={"name": "captain", "description": "Ahoy", "disabled": True})
    shown = changed.json()
    assert (shown["name"], shown["description"], shown["state"]) == ("captain", "Ahoy", "disabled")
    taken = await site.ours.post(path, json={"name": "other"})
    assert (taken.status_code, taken.json()["error"]["param"]) == (409, "name")
    for body, param in (
        ({"disabled": "yes"}, "disabled"),
        ({"colour": "red"}, "colour"),
        ({"name": "A b"}, "name"),
        ({"name": ".."}, "name"),
        ({"name": "adp_x"}, "name"),
    ):
        wrong = await site.ours.post(path, json=body)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, param)
    deleted = await site.ours.delete(path)
    assert deleted.json() == {"id": made["id"], "object": "adapter.deleted", "deleted": True}
    for gone in (path, "/v1/adapters/captain"):
        assert (await site.ours.get(gone)).status_code == 404
    assert (await site.ours.delete(path)).status_code == 404
    for odd in ("%00", "adp_", "Pirate", "a" * 300, "%F0%9F%8F%B4", "0"):
        answer = await site.ours.get(f"/v1/adapters/{odd}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert (await site.ours.get("/v1/adapters/other/versions/99999999999999999999")).status_code == 404
    assert (await site.ours.get("/v1/adapters/other/versions/one")).status_code == 400
    assert (await site.ours.get(f"/v1/calibration/jobs/{made['calibration_job']}")).status_code in (200, 404)
    again = await site.create("captain")
    assert again.status_code == 201
    assert again.json()["id"] != made["id"]


async def test_pages_of_adapters(site: Site) -> None:
    names = [f"adapter-{number}" for number in range(5)]
    for name in names:
        await site.create(name)
    first = (await site.ours.get("/v1/adapters", params={"limit": 2})).json()
    assert ([one["name"] for one in first["data"]], first["has_more"]) == (["adapter-4", "adapter-3"], True)
    rest = (await site.ours.get("/v1/adapters", params={"after": first["last_id"]})).json()
    assert ([one["name"] for one in rest["data"]], rest["has_more"]) == (names[2::-1], False)
    oldest = (await site.ours.get("/v1/adapters", params={"order": "asc", "limit": 1})).json()
    assert [one["name"] for one in oldest["data"]] == ["adapter-0"]
    named = (await site.ours.get("/v1/adapters", params={"name": "adapter-3"})).json()
    assert [one["name"] for one in named["data"]] == ["adapter-3"]
    assert (await site.theirs.get("/v1/adapters")).json()["data"] == []
    for query in (
        *({"limit": 0}, {"limit": 101}, {"order": "up"}, {"colour": "red"}),
        *({"after": "\x00"}, {"after": ""}, {"name": "\x00"}, {"name": "A B"}),
    ):
        assert (await site.ours.get("/v1/adapters", params=query)).status_code == 400


async def test_events_in_pages_and_as_they_happen(site: Site) -> None:
    made = await site.create()
    path = f"/v1/adapters/{made.json()['id']}/events"
    page = (await site.ours.get(path, params={"order": "asc"})).json()
    assert [one["type"] for one in page["data"]] == ["adapter.created", "version.created", "job.created"]
    assert {one["object"] for one in page["data"]} == {"adapter.event"}

    async def follow() -> list[str]:
        seen = []
        async with site.ours.stream("GET", path, params={"stream": "true"}) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            async for line in stream.aiter_lines():
                if line.startswith("data: "):
                    seen.append(line.removeprefix("data: "))
        return seen

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.3)
    await site.ready(made, "1")
    seen = await asyncio.wait_for(following, 60)
    assert seen.pop() == "[DONE]"
    assert [json.loads(one)["type"] for one in seen] == [
        "adapter.created",
        "version.created",
        "job.created",
        "job.started",
        "version.inspected",
        "version.packed",
        "version.calibrated",
        "version.ready",
        "version.activated",
    ]
    assert len(await asyncio.wait_for(follow(), 30)) == 10, "what is over is told at once"
    assert site.place.database.checked_out == 0


async def test_what_is_wrong_is_named(site: Site, tmp_path: Path) -> None:
    file_ids = await site.place.upload()
    good = {"name": "x", "base_model": "sapling", "file_ids": file_ids}
    for changes, status, code, param in (
        ({"base_model": "oak"}, 400, "invalid_value", "base_model"),
        ({"name": "Not so"}, 400, "invalid_value", "name"),
        ({"name": "."}, 400, "invalid_value", "name"),
        ({"name": "adp_x"}, 400, "invalid_value", "name"),
        ({"description": "a\x00b"}, 400, "invalid_value", "description"),
        ({"file_ids": ["\x00", file_ids[1]]}, 400, "invalid_value", "file_ids[0]"),
        ({"file_ids": [file_ids[0]]}, 400, "invalid_value", "file_ids"),
        ({"file_ids": [file_ids[0]] * 2}, 400, "invalid_value", "file_ids"),
        ({"file_ids": ["file_absent", file_ids[1]]}, 404, "not_found", None),
        ({"upload_ids": file_ids}, 400, "invalid_value", "file_ids"),
        ({"calibration": {"dtype": "int2"}}, 400, "invalid_value", "calibration.dtype"),
        ({"calibration": {"skip": True}}, 400, "unsupported_parameter", "calibration.skip"),
        ({"calibration": {"file_id": file_ids[0]}}, 400, "invalid_value", "calibration.file_id"),
    ):
        answer = await site.ours.post("/v1/adapters", json=good | changes)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
        assert answer.json()["error"]["param"] == param
    fields = json.loads((SAPLING / "adapters" / "pirate" / CONFIG_FILE).read_text()) | {"r": 3}
    (tmp_path / CONFIG_FILE).write_text(json.dumps(fields))
    (tmp_path / WEIGHTS_FILE).write_bytes((SAPLING / "adapters" / "pirate" / WEIGHTS_FILE).read_bytes())
    refused = await site.ours.post(
        "/v1/adapters", json=good | {"file_ids": await site.place.upload(tmp_path)}
    )
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "adapter_invalid")
    assert refused.json()["error"]["param"]
    assert (await site.ours.get("/v1/adapters")).json()["data"] == []
    assert (await site.ours.post("/v1/adapters", json=good)).status_code == 201, "the files stayed"
    assert (await site.ours.post("/v1/adapters", json=good)).json()["error"]["code"] == "name_taken"


async def test_the_plan_of_the_caller_counts(site: Site) -> None:
    plans = PlanService(site.place.database, site.place.redis)
    await plans.create("tiny", PlanChanges(max_adapters=1))
    await plans.set_tenant_plan(site.place.tenants[0], "tiny")
    assert (await site.create("one")).status_code == 201

    async def refused() -> bool:
        answer = await site.create("two")
        return answer.status_code == 429 and answer.json()["error"]["code"] == "insufficient_quota"

    await eventually(refused, seconds=2)


async def test_scopes(site: Site) -> None:
    keys = KeyService(site.place.database, site.place.redis, SECRET)
    made = await site.create()
    for scope, status in (("adapters.read", 403), ("adapters.write", 200)):
        key = await keys.create(
            site.place.tenants[0], scope, OPERATOR, restrictions=KeyRestrictions(frozenset({scope}))
        )
        headers = {"authorization": f"Bearer {key.plaintext}"}
        path = f"/v1/adapters/{made.json()['id']}"
        answer = await site.ours.post(path, json={"description": "new"}, headers=headers)
        assert answer.status_code == status
        read = await site.ours.get(path, headers=headers)
        assert read.status_code == (200 if status == 403 else 403)
    admin = await keys.create(site.place.tenants[0], "admin", OPERATOR, kind="admin")
    refused = await site.ours.get("/v1/adapters", headers={"authorization": f"Bearer {admin.plaintext}"})
    assert refused.status_code == 403


async def test_the_document_knows_bodies_and_refusals(site: Site) -> None:
    document = site.app.openapi()
    for name in ("CreateAdapterRequest", "CreateVersionRequest", "UpdateAdapterRequest"):
        schema = document["components"]["schemas"][name]
        assert schema["additionalProperties"] is False
    create = document["paths"]["/v1/adapters"]["post"]
    assert {"201", "400", "404", "409", "422", "429"} <= set(create["responses"])


async def test_files_are_imported_from_a_source(site: Site) -> None:
    body = {
        "name": "pirate",
        "base_model": "sapling",
        "source": {"type": "hub", "repository": "acme/pirate", "token": "hf_a-token-of-a-test"},
    }
    answer = await site.ours.post("/v1/adapters", json=body)
    assert answer.status_code == 201, answer.text
    version = answer.json()["version"]
    assert (version["state"], version["files"]) == ("uploading", [])
    assert version["source"] == {
        "type": "hub",
        "endpoint": "https://huggingface.co",
        "repository": "acme/pirate",
        "revision": "main",
        "commit": None,
        "url": None,
        "region": None,
    }
    job = (await site.ours.get(f"/v1/calibration/jobs/{answer.json()['calibration_job']}")).json()
    assert job["status"] == "queued"
    assert "hf_a-token-of-a-test" not in answer.text + json.dumps(job)
    bucket = {"type": "s3", "url": "s3://bucket/pirate"}
    added = await site.ours.post("/v1/adapters/pirate/versions", json={"source": bucket})
    assert added.json()["source"]["url"] == "s3://bucket/pirate"
    assert added.json()["source"]["region"] == "us-east-1"
    for source, param in (
        (
            {"type": "hub", "repository": "acme/pirate", "endpoint": "http://169.254.169.254"},
            "source.endpoint",
        ),
        ({"type": "hub", "repository": "acme/a/b"}, "source.repository"),
        ({"type": "s3", "url": "s3://bucket/a", "region": "everywhere"}, "source.region"),
        ({"type": "s3", "url": "s3://bucket/a", "access_key_id": "AK"}, "source.secret_access_key"),
        ({"type": "ftp", "url": "ftp://host/a"}, "source.type"),
        ({"type": "hub", "repository": "a/b", "url": "s3://bucket/a"}, "source.url"),
    ):
        refused = await site.ours.post("/v1/adapters", json=body | {"name": "other", "source": source})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
    both = body | {"name": "other", "file_ids": ["file_1", "file_2"]}
    assert (await site.ours.post("/v1/adapters", json=both)).json()["error"]["param"] == "file_ids"
