"""`/v1/calibration/jobs` over real rows and objects; what a worker does is done by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from adapters.jobs.errors import JobFailed
from adapters.jobs.lease import Lease
from adapters.jobs.service import fail, succeed
from adapters.object_keys import report_prefix
from tests.api.test_adapters import Site, site
from tests.support.onboarding import samples

__all__ = ["site"]

JOBS = "/v1/calibration/jobs"


async def made(site: Site, name: str = "pirate", **fields: Any) -> tuple[str, str]:
    """An adapter that has just been uploaded, and its job."""
    answer = (await site.create(name, **fields)).json()
    return answer["id"], answer["calibration_job"]


async def done(site: Site, job_id: str, digit: str = "1") -> None:
    """Have the worker's part done, to the end."""
    lease = await site.place.lease(job_id)
    await site.place.pack(lease, digit)
    await site.place.finish(lease)
    async with lease.conclude() as held:
        succeed(held.session, held.job, {"ready": True})


async def refuse(lease: Lease) -> None:
    """As the gate does."""
    async with lease.conclude() as held:
        from adapters.versions import locked_version

        _, version = await locked_version(held.session, held.job)
        fail(held.session, held.job, version, JobFailed("gate_failed", "It is worse than the base."))


async def test_a_job_is_shown_as_the_stock_clients_jobs_are(site: Site) -> None:
    adapter_id, job_id = await made(site)
    shown = (await site.ours.get(f"{JOBS}/{job_id}")).json()
    created = shown.pop("created_at")
    assert isinstance(created, int)
    assert shown.pop("created_by").startswith("key_")
    assert shown == {
        "id": job_id,
        "object": "calibration.job",
        "started_at": None,
        "finished_at": None,
        "estimated_finish": None,
        "status": "queued",
        "model": "sapling:pirate@1",
        "adapter_id": adapter_id,
        "version": 1,
        "calibration_file": None,
        "dtype": "auto",
        "progress": {"phase": None, "share": 0.0, "estimated_finish": None},
        "requested": None,
        "attempts": 0,
        "error": None,
        "result": None,
        "organization_id": site.place.tenants[0],
    }
    await done(site, job_id)
    shown = (await site.ours.get(f"{JOBS}/{job_id}")).json()
    assert (shown["status"], shown["progress"]["share"], shown["result"]) == (
        "succeeded",
        1.0,
        {"ready": True},
    )
    assert shown["finished_at"] >= shown["started_at"] >= created


async def test_jobs_in_pages(site: Site) -> None:
    both = [await made(site, name) for name in ("one", "two", "three")]
    ids = [job_id for _, job_id in both]
    first = (await site.ours.get(JOBS, params={"limit": 2})).json()
    assert [job["id"] for job in first["data"]] == ids[:0:-1]
    assert (first["object"], first["has_more"], first["last_id"]) == ("list", True, ids[1])
    rest = (await site.ours.get(JOBS, params={"limit": 2, "after": first["last_id"]})).json()
    assert [job["model"] for job in rest["data"]] == ["sapling:one@1"]
    assert rest["has_more"] is False
    upwards = (await site.ours.get(JOBS, params={"order": "asc"})).json()
    assert [job["id"] for job in upwards["data"]] == ids
    of_one = (await site.ours.get(JOBS, params={"adapter_id": both[1][0]})).json()
    assert [job["id"] for job in of_one["data"]] == [ids[1]]
    assert (await site.ours.get(JOBS, params={"after": "job_none"})).status_code == 400
    assert (await site.theirs.get(JOBS)).json()["data"] == []


async def test_cancel_pause_and_resume(site: Site) -> None:
    _, job_id = await made(site)
    paused = await site.ours.post(f"{JOBS}/{job_id}/pause")
    assert (paused.status_code, paused.json()["status"]) == (200, "paused")
    resumed = (await site.ours.post(f"{JOBS}/{job_id}/resume")).json()
    assert resumed["status"] == "queued"
    await site.place.lease(job_id)
    asked = (await site.ours.post(f"{JOBS}/{job_id}/pause")).json()
    assert (asked["status"], asked["requested"]) == ("running", "pause")
    asked = (await site.ours.post(f"{JOBS}/{job_id}/cancel")).json()
    assert (asked["status"], asked["requested"]) == ("running", "cancel")
    _, other = await made(site, "other")
    assert (await site.ours.post(f"{JOBS}/{other}/cancel")).json()["status"] == "cancelled"
    refused = await site.ours.post(f"{JOBS}/{other}/resume")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "job_finished")
    shown = (await site.ours.get("/v1/adapters/other")).json()
    assert (shown["state"], "cancelled" in shown["version"]["error"]["message"]) == ("failed", True)


async def test_a_version_in_service_is_measured_again_and_stays_there(site: Site) -> None:
    adapter_id, first = await made(site)
    busy = await site.ours.post(JOBS, json={"model": "sapling:pirate@1"})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "job_unfinished")
    await done(site, first)
    file = await site.place.files.create(
        site.place.tenants[0], None, "calibration", "own.jsonl", samples(), max_bytes=1 << 20
    )
    asked = {"model": "sapling:pirate", "file_id": file.id, "dtype": "bfloat16"}
    answer = await site.ours.post(JOBS, json=asked)
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert (job["status"], job["model"], job["calibration_file"], job["dtype"]) == (
        "queued", "sapling:pirate@1", file.id, "bfloat16",
    )  # fmt: skip
    before = (await site.ours.get("/v1/adapters/pirate")).json()
    assert (before["state"], before["version"]["dtype"]) == ("ready", "bfloat16")
    await refuse(await site.place.lease(job["id"]))
    shown = (await site.ours.get(f"{JOBS}/{job['id']}")).json()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "gate_failed")
    assert (await site.ours.get("/v1/adapters/pirate")).json()["state"] == "ready"
    for model in (adapter_id, "sapling:pirate@1"):
        again = await site.ours.post(JOBS, json={"model": model, "version": 1})
        assert again.status_code == 201
        assert (await site.ours.post(f"{JOBS}/{again.json()['id']}/cancel")).status_code == 200
    assert (await site.ours.get("/v1/adapters/pirate")).json()["state"] == "ready"


async def test_a_version_that_the_gate_refused_is_judged_anew(site: Site) -> None:
    _, first = await made(site)
    lease = await site.place.lease(first)
    await site.place.pack(lease, "2")
    await refuse(lease)
    assert (await site.ours.get("/v1/adapters/pirate")).json()["state"] == "failed"
    second = (await site.ours.post(JOBS, json={"model": "sapling:pirate@1"})).json()
    assert (await site.ours.get("/v1/adapters/pirate")).json()["state"] == "calibrating"
    lease = await site.place.lease(second["id"])
    await site.place.finish(lease)
    assert (await site.ours.get("/v1/adapters/pirate")).json()["state"] == "ready"


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 400, "invalid_value", "model"),
        ({"model": "sapling:nobody"}, 404, "not_found", None),
        ({"model": "sapling"}, 404, "not_found", None),
        ({"model": "no such name!"}, 404, "not_found", None),
        ({"model": "sapling:pirate@7"}, 404, "not_found", None),
        ({"model": "sapling:pirate", "version": 0}, 400, "invalid_value", "version"),
        ({"model": "sapling:pirate@1", "version": 2}, 400, "invalid_value", "version"),
        ({"model": "sapling:pirate", "dtype": "int3"}, 400, "invalid_value", "dtype"),
        ({"model": "sapling:pirate", "file_id": "file_none"}, 404, "not_found", None),
        ({"model": "sapling:pirate", "epochs": 3}, 400, "unsupported_parameter", "epochs"),
    ],
)
async def test_what_is_wrong_is_named(
    site: Site, body: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    _, job_id = await made(site)
    await done(site, job_id)
    answer = await site.ours.post(JOBS, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)


async def test_events_in_pages_and_as_they_happen(site: Site) -> None:
    _, job_id = await made(site)
    following = asyncio.create_task(site.ours.get(f"{JOBS}/{job_id}/events", params={"stream": "true"}))
    await asyncio.sleep(0.5)
    await done(site, job_id)
    lines = (await asyncio.wait_for(following, 30)).text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    told = [json.loads(line.removeprefix("data: ")) for line in lines[:-2] if line.startswith("data: ")]
    events = [one for one in told if one["object"] == "calibration.job.event"]
    assert [event["type"] for event in events] == [
        "job.created", "job.started", "version.inspected", "version.packed", "version.calibrated",
        "version.ready", "version.activated", "job.succeeded",
    ]  # fmt: skip
    states = [one["status"] for one in told if one["object"] == "calibration.job"]
    assert states[0] == "queued"
    assert states[-1] == "succeeded"
    page = (await site.ours.get(f"{JOBS}/{job_id}/events", params={"limit": 3, "order": "asc"})).json()
    assert [event["id"] for event in page["data"]] == [event["id"] for event in events[:3]]
    assert page["has_more"] is True
    rest = {"after": page["last_id"], "order": "asc"}
    rest_page = (await site.ours.get(f"{JOBS}/{job_id}/events", params=rest)).json()
    assert [event["id"] for event in rest_page["data"]] == [event["id"] for event in events[3:]]


async def test_a_report_is_handed_out_as_it_was_kept(site: Site) -> None:
    adapter_id, job_id = await made(site)
    absent = await site.ours.get(f"{JOBS}/{job_id}/report")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "not_found")
    prefix = report_prefix(site.place.tenants[0], adapter_id, job_id)
    kept = {
        "report.json": b'{"object":"calibration.report"}',
        "report.html": b"<p>",
        "sample-nll.svg": b"<svg/>",
    }
    for name, content in kept.items():
        await site.place.store.put(prefix + name, content)
    for path, name, media_type in (
        ("report", "report.json", "application/json"),
        ("report?format=json", "report.json", "application/json"),
        ("report?format=html", "report.html", "text/html; charset=utf-8"),
        ("report.html", "report.html", "text/html; charset=utf-8"),
        ("report/sample-nll.svg", "sample-nll.svg", "image/svg+xml"),
    ):
        answer = await site.ours.get(f"{JOBS}/{job_id}/{path}")
        assert (answer.content, answer.headers["content-type"]) == (kept[name], media_type)
        assert "script" not in answer.headers["content-security-policy"]
        assert (await site.theirs.get(f"{JOBS}/{job_id}/{path}")).status_code == 404
    for path in ("report/..%2freport.svg", "report/none.svg", "report/report.json", "report?format=pdf"):
        assert (await site.ours.get(f"{JOBS}/{job_id}/{path}")).status_code in (400, 404)


async def test_the_document_has_the_bodies(site: Site) -> None:
    document = site.app.openapi()
    body = document["paths"][JOBS]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/CreateCalibrationJobRequest"}
    assert set(document["components"]["schemas"]["CreateCalibrationJobRequest"]["properties"]) == {
        "model", "version", "file_id", "dtype",
    }  # fmt: skip
