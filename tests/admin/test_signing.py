"""Signed adapters in the console: an organization's keys and its rule, and the signature of a version."""

from __future__ import annotations

import httpx
import msgspec
from playwright.async_api import expect
from sqlalchemy import text

from admin.operator.engines.report import EngineReport
from engine.gauges import EngineView, RefusedAdapter
from engine.signing import bundle
from engine.signing.keys import SigningKey, TrustedKeys
from tenants.actors import OPERATOR
from tests.admin.browsing import Visit
from tests.admin.conftest import Site, csrf_token, sign_in
from tests.admin.test_keys import as_role
from tests.support.onboarding import SIGNING_KEY

PATH = "/settings/signing"
EMPTY_VIEW = {
    "stats": {"type": "stats", "engine_id": "engine-7", "incarnation": "1"},
    **dict.fromkeys(("taken_at", "started_at", "step_p50", "step_p99"), 0.0),
    **dict.fromkeys(("max_batch_tokens", "block_size", "blocks_cached", "num_shares"), 0),
    **{name: [] for name in ("prefill_tokens", "decode_rows", "oldest_wait", "seconds", "slots", "shares")},
    "memory": {},
}


async def submit(visitor: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    token = csrf_token(await visitor.get(PATH))
    return await visitor.post(f"{PATH}{path}", data={"csrf_token": token, **fields})


async def signed_version(site: Site) -> str:
    """The path of a version that serves and is signed."""
    made = await site.place.create("pirate")
    await site.place.make_ready(made, "5")
    await site.place.sign()
    return f"/adapters/{made.adapter.id}/versions/1"


async def refuse(site: Site, problem: str) -> None:
    async with site.place.database.write(site.tenant_id) as session:
        statement = text("UPDATE adapter_versions SET signature_problem = :problem")
        await session.execute(statement, {"problem": problem})


async def test_an_owner_manages_keys_and_the_rule(site: Site, visitor: httpx.AsyncClient) -> None:
    keys, pem = site.account.signing_keys, SigningKey.make().public.pem
    await sign_in(visitor)
    page = (await visitor.get(PATH)).text
    assert "No keys yet." in page
    assert SIGNING_KEY.public.id[:16] in page
    assert "/.well-known/adapter-signing-key.pem" in page
    wrong = await submit(visitor, "/keys", name="release", public_key="x")
    assert (wrong.status_code, "not a public key in PEM" in wrong.text) == (422, True)
    assert (await submit(visitor, "/keys", name="release", public_key=pem)).status_code == 303
    (key,) = await keys.list(site.tenant_id)
    assert "release" in (await visitor.get(PATH)).text
    assert (await submit(visitor, "", signed_adapters_only="yes")).status_code == 303
    assert await keys.accepts_signed_only(site.tenant_id)
    assert (await submit(visitor, "", signed_adapters_only="perhaps")).status_code == 400
    assert (await submit(visitor, f"/keys/{key.id}/remove")).status_code == 303
    assert await keys.list(site.tenant_id) == []


async def test_others_only_see_them(site: Site, visitor: httpx.AsyncClient) -> None:
    await as_role(site, visitor, "admin")
    assert "Only owners can add and remove keys." in (await visitor.get(PATH)).text
    for path, fields in (("", {"signed_adapters_only": "yes"}), ("/keys", {"name": "a", "public_key": "b"})):
        assert (await submit(visitor, path, **fields)).status_code == 403
    assert not await site.account.signing_keys.accepts_signed_only(site.tenant_id)


async def test_a_version_shows_its_signature_and_why_it_is_refused(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    path = await signed_version(site)
    await sign_in(visitor)
    page = (await visitor.get(path)).text
    assert "Download model.sig" in page
    assert "not what was signed" not in page
    downloaded = await visitor.get(f"{path}/model.sig")
    bundle.verify_own(downloaded.content, TrustedKeys([SIGNING_KEY.public]))
    await refuse(site, "base.json: its SHA-256 is 1, the signature says 2")
    page = (await visitor.get(path)).text
    assert "Refused: not what was signed" in page
    assert "base.json: its SHA-256 is 1, the signature says 2" in page


async def test_an_engines_refusal_is_shown_on_the_version_that_it_refused(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    path = await signed_version(site)
    refused = [RefusedAdapter("5b" * 32, "signature: base.json"), RefusedAdapter("0" * 64, "of another")]
    view = msgspec.convert({**EMPTY_VIEW, "type": "view"}, EngineView)
    view = msgspec.structs.replace(view, refused_adapters=refused)
    site.engines.reports = [EngineReport(key="engine-7", state="serving", reported_at=0, since=0, view=view)]
    await sign_in(visitor)
    page = (await visitor.get(path)).text
    assert "Engine engine-7: signature: base.json" in page
    assert "of another" not in page


async def test_the_pages_are_accessible_in_light_and_dark(site: Site, seen: Visit) -> None:
    version = await signed_version(site)
    pem = SigningKey.make().public.pem
    await site.account.signing_keys.add(site.tenant_id, "Release pipeline", pem, OPERATOR)
    await look(seen, "settings", PATH, "Signed adapters")
    await look(seen, "version", version, "Version 1")
    await refuse(site, "source/adapter_config.json: the stored file is missing")
    await look(seen, "refused", version, "Version 1")


async def look(seen: Visit, name: str, path: str, heading: str) -> None:
    await seen.go(path)
    await expect(seen.page.locator("h1")).to_contain_text(heading)
    assert not await seen.looked_at(f"signing-{name}")
