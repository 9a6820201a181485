"""Bringing files in through the console: in parts as its script does, and all at once as its form does."""

from __future__ import annotations

import hashlib
import html
import re
from typing import Any

import httpx
import pytest

from adapters.bases import Bases
from adapters.files.uploads import MAX_PART_BYTES
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE
from admin.adapters import upload_routes
from api.app import _body_limits
from api.services import RequestLimits
from tests.admin.conftest import PASSWORD, Site, csrf_token, sign_in
from tests.support.onboarding import SAPLING, samples

PIRATE = SAPLING / "adapters" / "pirate"
XSS = '<img src=x onerror=alert(1)>".safetensors'


class Script:
    """What the upload page's script says, and how."""

    def __init__(self, visitor: httpx.AsyncClient, token: str) -> None:
        self.visitor = visitor
        self.headers = {"accept": "application/json", "x-csrf-token": token}

    async def tell(self, path: str, **body: Any) -> httpx.Response:
        return await self.visitor.post(path, json=body, headers=self.headers)

    async def part(self, upload: str, data: bytes, **headers: str) -> httpx.Response:
        kind = {"content-type": "application/octet-stream"}
        return await self.visitor.post(
            f"/adapters/uploads/{upload}/parts", content=data, headers=self.headers | kind | headers
        )

    async def begin(self, slot: str, filename: str, size: int) -> str:
        begun = await self.tell("/adapters/uploads", slot=slot, filename=filename, size=size)
        assert begun.status_code == 201, begun.text
        assert begun.json()["part_bytes"] == upload_routes.PART_BYTES
        return str(begun.json()["id"])

    async def send(self, slot: str, filename: str, data: bytes, part: int = 100_000) -> httpx.Response:
        upload = await self.begin(slot, filename, len(data))
        ids = []
        for start in range(0, len(data), part):
            kept = await self.part(upload, data[start : start + part])
            assert kept.json()["sha256"] == hashlib.sha256(data[start : start + part]).hexdigest()
            ids.append(kept.json()["id"])
        return await self.tell(f"/adapters/uploads/{upload}/complete", part_ids=ids)

    async def both(self) -> dict[str, str]:
        ids = {}
        for slot, name in (("weights", WEIGHTS_FILE), ("config", CONFIG_FILE)):
            ids[slot] = (await self.send(slot, name, (PIRATE / name).read_bytes())).json()["file_id"]
        return ids


@pytest.fixture
async def script(visitor: httpx.AsyncClient) -> Script:
    await sign_in(visitor)
    return Script(visitor, csrf_token(await visitor.get("/adapters/new")))


def problem(page: str, slot: str) -> str:
    """What the page says beside a field."""
    found = re.search(rf'id="problem-{slot}"[^>]*?( hidden)?>(.*?)</p>', page, re.DOTALL)
    assert found is not None
    assert bool(found[1]) == (not found[2]), "shown if and only if there is something to say"
    return html.unescape(found[2])


async def test_in_parts_from_two_files_to_an_adapter(site: Site, script: Script) -> None:
    ids = await script.both()
    jsonl = (await script.send("calibration", "own.jsonl", samples())).json()["file_id"]
    made = await script.tell(
        "/adapters/submit", name="corsair", calibration=jsonl, dtype="bfloat16", activate=False, **ids
    )
    assert made.status_code == 201, made.text
    location = made.json()["location"]
    page = await script.visitor.get(location.removeprefix("/console"))
    assert "corsair" in page.text
    (job,) = await site.place.column("SELECT parameters FROM jobs")
    assert job["dtype"] == "bfloat16"
    assert job["calibration"]["file_id"] == jsonl
    assert await site.place.column("SELECT activate FROM adapter_versions") == [False]
    (author,) = await site.place.column("SELECT DISTINCT created_by FROM adapters")
    assert author.startswith("usr_")
    # They are on their way only: the adapter has copies.
    assert None not in await site.place.column("SELECT expires_at FROM files")


async def test_an_upload_goes_on_where_it_was(script: Script) -> None:
    data = (PIRATE / WEIGHTS_FILE).read_bytes()
    upload = await script.begin("weights", WEIGHTS_FILE, len(data))
    first = (await script.part(upload, data[:1000])).json()
    found = (await script.visitor.get(f"/adapters/uploads/{upload}", headers=script.headers)).json()
    assert (found["status"], found["parts"]) == ("pending", [first])
    second = (await script.part(upload, data[1000:])).json()
    done = await script.tell(f"/adapters/uploads/{upload}/complete", part_ids=[first["id"], second["id"]])
    assert done.json()["sha256"] == hashlib.sha256(data).hexdigest()
    again = (await script.visitor.get(f"/adapters/uploads/{upload}", headers=script.headers)).json()
    assert (again["status"], again["file_id"]) == ("completed", done.json()["file_id"])


async def test_a_cancelled_upload_takes_no_more(script: Script) -> None:
    upload = await script.begin("weights", WEIGHTS_FILE, 10)
    assert (await script.tell(f"/adapters/uploads/{upload}/cancel")).json() == {"status": "cancelled"}
    refused = await script.part(upload, b"0123456789")
    assert refused.status_code == 409


async def test_what_is_refused_says_beside_what(script: Script) -> None:
    broken = await script.send("weights", WEIGHTS_FILE, b"\x10\0\0\0\0\0\0\0{}garbage")
    assert broken.status_code == 422
    assert "its header claims a length of 16 bytes" in broken.json()["error"]["message"]
    kind = await script.tell("/adapters/uploads", slot="weights", filename="model.bin", size=1)
    assert (kind.status_code, kind.json()["error"]["param"]) == (415, "filename")
    huge = await script.tell("/adapters/uploads", slot="weights", filename=WEIGHTS_FILE, size=2**50)
    assert huge.status_code == 413

    ids = await script.both()
    other = await script.send("config", CONFIG_FILE, (SAPLING / "adapters/sql" / CONFIG_FILE).read_bytes())
    mixed = await script.tell("/adapters/submit", name="corsair", **ids | {"config": other.json()["file_id"]})
    assert (mixed.status_code, mixed.json()["error"]["slot"]) == (422, "weights")
    assert "rank 4, the config says 8" in mixed.json()["error"]["message"]
    unnamed = await script.tell("/adapters/submit", name="Corsair!", **ids)
    assert (unnamed.status_code, unnamed.json()["error"]["slot"]) == (422, "name")
    assert (await script.tell("/adapters/submit", name="corsair", **ids)).status_code == 201
    taken = await script.tell("/adapters/submit", name="corsair", **ids)
    assert (taken.status_code, taken.json()["error"]["slot"]) == (409, "name")
    strange = await script.tell("/adapters/submit", name="other", weights="file_x", config="file_y")
    assert strange.status_code == 404


async def test_of_several_bases_one_is_chosen(
    site: Site, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Base model" not in (await script.visitor.get("/adapters/new")).text
    onboarding = site.place.onboarding
    config = SAPLING / "base" / "config.json"
    monkeypatch.setattr(onboarding.catalogue, "bases", Bases("sapling", "oak"))
    monkeypatch.setattr(onboarding.submission, "_bases", Bases("sapling", "oak"))
    monkeypatch.setattr(onboarding.submission._copies, "base_configs", {"sapling": config, "oak": config})
    form = (await script.visitor.get("/adapters/new")).text
    assert re.findall(r"<option>(sapling|oak)</option>", form) == ["sapling", "oak"]
    ids = await script.both()
    elm = await script.tell("/adapters/submit", name="corsair", base="elm", **ids)
    assert (elm.status_code, elm.json()["error"]["slot"]) == (422, "form")
    for more in ({"base": "oak"}, {}):
        made = await script.tell("/adapters/submit", name="corsair", **ids, **more)
        assert made.status_code == 201, "the same name is free on the other base"
    assert await site.place.column("SELECT base FROM adapters ORDER BY id") == ["oak", "sapling"]
    listed = (await script.visitor.get("/adapters")).text
    assert re.findall(r"<small>(sapling|oak)</small>", listed) == ["sapling", "oak"]
    assert "<code>sapling</code>, <code>oak</code>" in listed


async def test_a_version_of_an_adapter_there_is(site: Site, script: Script) -> None:
    made = await site.place.create("sql", "sql")
    page = (await script.visitor.get(f"/adapters/{made.adapter.id}/versions/new")).text
    assert "New version of sql" in page
    added = await script.tell(f"/adapters/{made.adapter.id}/submit", **await script.both())
    assert added.json()["location"] == f"/console/adapters/{made.adapter.id}"
    assert await site.place.column("SELECT max(version) FROM adapter_versions") == [2]


async def test_bodies_of_the_wrong_form(script: Script) -> None:
    upload = await script.begin("weights", WEIGHTS_FILE, 10)
    assert (await script.part(upload, b"x", **{"content-type": "text/plain"})).status_code == 415
    assert (await script.part(upload, b"")).status_code == 400
    told = await script.visitor.post("/adapters/uploads", content=b"{", headers=script.headers)
    assert told.status_code == 415
    for body in (
        {},
        {"slot": "other", "filename": "a", "size": 1},
        {"slot": "weights", "filename": "", "size": 1},
    ):
        assert (await script.tell("/adapters/uploads", **body)).status_code == 400
    long = await script.tell(
        f"/adapters/uploads/{upload}/complete", part_ids=["p" * 90] * 10_000 + ["x" * 200_000]
    )
    assert long.status_code in (400, 413)


async def test_others_uploads_are_not_there(site: Site, script: Script) -> None:
    theirs = await site.place.uploads.create(
        site.place.tenants[1], None, "adapter", WEIGHTS_FILE, "application/octet-stream", 4, max_bytes=100
    )
    upload = theirs.upload.id
    assert (await script.part(upload, b"data")).status_code == 404
    assert (await script.tell(f"/adapters/uploads/{upload}/complete", part_ids=["part_x"])).status_code == 404
    assert (await script.tell(f"/adapters/uploads/{upload}/cancel")).status_code == 404
    shown = await script.visitor.get(f"/adapters/uploads/{upload}", headers=script.headers)
    assert shown.status_code == 404
    their_files = await site.place.upload("pirate", tenant=1)
    taken = await script.tell("/adapters/submit", name="mine", weights=their_files[0], config=their_files[1])
    assert taken.status_code == 404


async def test_nothing_is_taken_without_the_token(site: Site, script: Script) -> None:
    upload = await script.begin("weights", WEIGHTS_FILE, 4)
    honest = dict(script.headers)
    for headers in (
        {"x-csrf-token": "guess"},
        {"x-csrf-token": ""},
        {"sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example"},
    ):
        script.headers = honest | headers
        assert (await script.part(upload, b"data")).status_code == 403
        assert (await script.tell(f"/adapters/uploads/{upload}/complete", part_ids=["x"])).status_code == 403
        assert (await script.tell(f"/adapters/uploads/{upload}/cancel")).status_code == 403
        begun = await script.tell("/adapters/uploads", slot="config", filename=CONFIG_FILE, size=1)
        assert begun.status_code == 403
        assert (await script.tell("/adapters/submit", weights="a", config="b")).status_code == 403
    assert await site.place.column("SELECT status FROM uploads") == ["pending"]
    assert await site.place.column("SELECT count(*) FROM upload_parts") == [0]


def test_the_edge_lets_files_through_where_they_come_and_nowhere_else() -> None:
    limits = _body_limits(RequestLimits())
    for path, large in (
        ("/console/adapters/uploads/upload_1/parts", True),
        ("/console/adapters/new", True),
        ("/console/adapters/adp_1/versions/new", True),
        ("/console/adapters/uploads", False),
        ("/console/adapters/submit", False),
        ("/console/sign-in", False),
    ):
        limit = limits.of({"method": "POST", "path": path})
        assert (limit.max_bytes >= MAX_PART_BYTES) is large, path


# Without scripts ------------------------------------------------------------------------------------------


async def post(
    visitor: httpx.AsyncClient,
    path: str = "/adapters/new",
    files: dict[str, tuple[str, bytes]] | None = None,
    headers: dict[str, str] | None = None,
    **fields: str,
) -> httpx.Response:
    token = csrf_token(await visitor.get(path))
    sent = pirate() if files is None else files
    return await visitor.post(path, data={"csrf_token": token} | fields, files=sent, headers=headers)


def pirate() -> dict[str, tuple[str, bytes]]:
    return {
        "weights": (WEIGHTS_FILE, (PIRATE / WEIGHTS_FILE).read_bytes()),
        "config": (CONFIG_FILE, (PIRATE / CONFIG_FILE).read_bytes()),
        "calibration": ("", b""),  # as a browser sends a field that was left empty
    }


async def test_the_plain_form_does_it_all(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await post(visitor, name="corsair", activate="on")
    assert made.status_code == 303
    assert made.headers["location"].startswith("/console/adapters/adp_")
    assert await site.place.column("SELECT activate FROM adapter_versions") == [True]
    adapter = made.headers["location"].removeprefix("/console")
    sql = {
        "weights": (WEIGHTS_FILE, (SAPLING / "adapters/sql" / WEIGHTS_FILE).read_bytes()),
        "config": (CONFIG_FILE, (SAPLING / "adapters/sql" / CONFIG_FILE).read_bytes()),
        "calibration": ("own.jsonl", samples()),
    }
    added = await post(visitor, f"{adapter}/versions/new", sql)
    assert added.headers["location"] == f"/console{adapter}"
    assert await site.place.column("SELECT activate FROM adapter_versions ORDER BY version") == [True, False]


async def test_the_plain_form_shows_what_is_wrong_where(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    named = await post(visitor, name="No Name <b>")
    assert named.status_code == 422
    assert "1 to 64" in problem(named.text, "name")
    assert 'value="No Name &lt;b&gt;"' in named.text
    missing = await post(visitor, name="corsair", files=pirate() | {"config": ("", b"")})
    assert problem(missing.text, "config") == "Choose a file."
    broken = await post(
        visitor, name="corsair", files=pirate() | {"weights": (WEIGHTS_FILE, b"PK\x03\x04zip")}
    )
    assert "safetensors" in problem(broken.text, "weights")
    assert not problem(broken.text, "config")
    scripted = await post(visitor, name="corsair", files=pirate() | {"weights": (XSS, b"x" * 20)})
    assert scripted.status_code in (400, 415, 422)
    assert "<img src=x" not in scripted.text
    nonsense = await post(visitor, name="corsair", files=pirate() | {"calibration": ("a.csv", b"a")})
    assert ".jsonl" in problem(nonsense.text, "calibration")
    odd = await post(visitor, name="corsair", dtype="float64")
    assert odd.status_code == 422
    assert "auto, bfloat16, float8_e4m3" in odd.text
    assert await site.place.column("SELECT count(*) FROM adapters") == [0]


async def test_the_plain_form_wants_its_token(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    assert (await visitor.post("/adapters/new", data={"name": "corsair"}, files=pirate())).status_code == 403
    assert (await post(visitor, name="a", headers={"sec-fetch-site": "cross-site"})).status_code == 403
    assert (await visitor.post("/adapters/new", data={"name": "corsair"})).status_code == 415
    odd = {"content-type": "multipart/form-data"}
    assert (await visitor.post("/adapters/new", content=b"--x", headers=odd)).status_code == 400
    assert await site.place.column("SELECT count(*) FROM files") == [0]


async def test_who_only_looks_on_brings_nothing(site: Site, visitor: httpx.AsyncClient) -> None:
    await site.accounts.create(site.tenant_id, "viewer@acme.example", PASSWORD, role="viewer")
    await sign_in(visitor, "viewer@acme.example")
    page = await visitor.get("/adapters")
    assert "/adapters/new" not in page.text
    fields = {"csrf_token": csrf_token(page), "name": "corsair"}
    assert (await visitor.get("/adapters/new")).status_code == 403
    refused = await visitor.post("/adapters/new", data=fields, files=pirate())
    assert refused.status_code == 403
    assert await site.place.column("SELECT id FROM adapters") == []
    assert await site.place.column("SELECT id FROM files") == []


async def test_names_of_files_are_shown_as_text(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    made = await post(
        visitor, name="corsair", files=pirate() | {"weights": (XSS, (PIRATE / WEIGHTS_FILE).read_bytes())}
    )
    assert made.status_code == 303, problem(made.text, "weights")
    page = (await visitor.get(f"{made.headers['location'].removeprefix('/console')}/versions/1")).text
    assert "uploaded as &lt;img src=x" in page
    assert "<img src=x" not in page
