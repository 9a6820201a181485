"""Getting in, and everything that must keep others out."""

from __future__ import annotations

import time
from http.cookies import SimpleCookie

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from admin.sign_in import lockout
from admin.web import sessions
from admin.web.sessions import SessionStore
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in

COOKIE = "rootstock_console"


def cookie_of(response: httpx.Response) -> tuple[str, dict[str, str]]:
    """Name and attributes of the one cookie a response sets."""
    (header,) = response.headers.get_list("set-cookie")
    ((name, morsel),) = SimpleCookie(header).items()
    return name, {key: str(value) for key, value in morsel.items() if value} | {"value": morsel.value}


async def test_the_right_password_opens_the_overview(visitor: httpx.AsyncClient) -> None:
    assert (await visitor.get("/")).headers["location"] == "/console/sign-in"
    entered = await sign_in(visitor)
    assert (entered.status_code, entered.headers["location"]) == (303, "/console/")
    page = await visitor.get("/")
    assert page.status_code == 200
    assert EMAIL in page.text
    assert (await visitor.get("/sign-in")).headers["location"] == "/console/"


async def test_signing_in_returns_to_the_page_asked_for(visitor: httpx.AsyncClient) -> None:
    asked = await visitor.get("/usage?range=7d&group=key")
    assert asked.headers["location"] == "/console/sign-in"
    assert "Your session has ended" not in (await visitor.get("/sign-in")).text
    entered = await sign_in(visitor)
    assert entered.headers["location"] == "/console/usage?range=7d&group=key"
    assert (await visitor.get("/usage?range=7d&group=key")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/sla/report.json", "/usage/export", "/operator/tenants", "//evil.example/", "/" + "x" * 3000]
)
async def test_signing_in_leads_to_pages_of_this_user_alone(visitor: httpx.AsyncClient, path: str) -> None:
    await visitor.get(f"http://127.0.0.1:8000/console{path}")
    assert (await sign_in(visitor)).headers["location"] == "/console/"


async def test_an_ended_session_is_said_and_its_page_returned_to(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    for key in await site.redis.keys("*:console:session:*"):
        await site.redis.delete(key)
    assert (await visitor.get("/keys")).headers["location"] == "/console/sign-in"
    assert "Your session has ended. Sign in again." in (await visitor.get("/sign-in")).text
    assert "Your session has ended" not in (await visitor.get("/sign-in")).text, "once"
    assert (await sign_in(visitor)).headers["location"] == "/console/keys"


@pytest.mark.parametrize(
    ("email", "password"),
    [(EMAIL, "wrong password"), ("nobody@acme.example", PASSWORD), (EMAIL, ""), ("", "")],
)
async def test_anything_else_gets_one_answer(visitor: httpx.AsyncClient, email: str, password: str) -> None:
    refused = await sign_in(visitor, email, password)
    assert refused.status_code == 401
    assert "Incorrect email or password" in refused.text
    assert (await visitor.get("/")).status_code == 303


async def test_a_sign_in_changes_the_session_id_and_kills_the_old_one(site: Site) -> None:
    async with site.visitor() as visitor:
        await visitor.get("/sign-in")
        planted = visitor.cookies[COOKIE]
        await sign_in(visitor)
        assert visitor.cookies[COOKIE] != planted
    async with site.visitor() as thief:
        thief.cookies.set(COOKIE, planted)
        assert (await thief.get("/")).status_code == 303


async def test_signing_out_ends_the_session_on_the_server(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    stolen = visitor.cookies[COOKIE]
    page = await visitor.get("/")
    left = await visitor.post("/sign-out", data={"csrf_token": csrf_token(page)})
    assert left.headers["location"] == "/console/sign-in"
    assert COOKIE not in visitor.cookies
    async with site.visitor() as thief:
        thief.cookies.set(COOKIE, stolen)
        assert (await thief.get("/")).status_code == 303


async def test_forms_without_their_token_do_nothing(visitor: httpx.AsyncClient) -> None:
    await visitor.get("/sign-in")
    for token in ("", "guess", "é"):
        refused = await visitor.post(
            "/sign-in", data={"csrf_token": token, "email": EMAIL, "password": PASSWORD}
        )
        assert refused.status_code == 403
    await sign_in(visitor)
    assert (await visitor.post("/sign-out", data={"csrf_token": "guess"})).status_code == 403
    assert (await visitor.get("/")).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}]
)
async def test_forms_of_other_sites_are_refused(visitor: httpx.AsyncClient, headers: dict[str, str]) -> None:
    token = csrf_token(await visitor.get("/sign-in"))
    fields = {"csrf_token": token, "email": EMAIL, "password": PASSWORD}
    assert (await visitor.post("/sign-in", data=fields, headers=headers)).status_code == 403
    assert (await visitor.post("/sign-in", data=fields)).status_code == 303


@pytest.mark.parametrize("path", ["/sign-in", "/sign-in/code", "/sign-out", "/forgot", "/reset", "/join"])
async def test_a_form_that_is_refused_leaves_the_session_alone(
    visitor: httpx.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    before = visitor.cookies[COOKIE]
    monkeypatch.setattr(sessions, "ROTATE_S", 0)  # due to get another id
    foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    for headers in ({}, foreign):
        for token in ("", "guess"):
            fields = {"csrf_token": token, "email": EMAIL, "password": PASSWORD}
            refused = await visitor.post(path, data=fields, headers=headers)
            # Who is signed in is not half-way in, whatever their form.
            assert refused.status_code == (303 if path == "/sign-in/code" and not headers else 403)
            assert "set-cookie" not in refused.headers
    monkeypatch.undo()
    assert visitor.cookies[COOKIE] == before
    assert (await visitor.get("/")).status_code == 200


async def test_a_form_that_had_expired_is_sent_again_as_it_comes_back(visitor: httpx.AsyncClient) -> None:
    await visitor.get("/sign-in")
    before = visitor.cookies[COOKIE]
    refused = await visitor.post("/sign-in", data={"csrf_token": "old", "email": EMAIL, "password": PASSWORD})
    assert refused.status_code == 403
    assert visitor.cookies[COOKIE] == before
    fields = {"csrf_token": csrf_token(refused), "email": EMAIL, "password": PASSWORD}
    assert (await visitor.post("/sign-in", data=fields)).status_code == 303


async def test_guessing_locks_the_account_even_for_the_right_password(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    for _ in range(lockout.MAX_PER_ACCOUNT):
        assert (await sign_in(visitor, password="wrong password")).status_code == 401
    locked = await sign_in(visitor)
    assert locked.status_code == 429
    assert 0 < int(locked.headers["retry-after"]) <= lockout.WINDOW_S
    assert "Try again in 15 minutes" in locked.text
    async for key in site.redis.scan_iter("rootstock:console:failures:*"):
        await site.redis.expire(key, 0)
    assert (await sign_in(visitor)).status_code == 303


async def test_unknown_accounts_lock_like_known_ones(visitor: httpx.AsyncClient) -> None:
    answers = [
        (await sign_in(visitor, "nobody@acme.example", "wrong password")).status_code for _ in range(6)
    ]
    assert answers == [401] * 5 + [429]


async def test_one_address_cannot_try_many_accounts(
    visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockout, "MAX_PER_ADDRESS", 3)
    answers = [
        (await sign_in(visitor, f"user{i}@acme.example", "wrong password")).status_code for i in range(4)
    ]
    assert answers == [401, 401, 401, 429]


async def test_success_forgets_earlier_failures(visitor: httpx.AsyncClient, site: Site) -> None:
    for _ in range(3):
        for _ in range(lockout.MAX_PER_ACCOUNT - 1):
            assert (await sign_in(visitor, password="wrong password")).status_code == 401
        assert (await sign_in(visitor)).status_code == 303
        visitor.cookies.clear()


async def test_a_removed_user_is_out_at_once(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    await site.tenants.set_tenant_disabled(site.tenant_id, True)
    assert (await visitor.get("/")).status_code == 303
    await site.tenants.set_tenant_disabled(site.tenant_id, False)
    assert (await visitor.get("/")).status_code == 303  # the session is gone, not asleep


async def test_cookies_on_loopback_and_over_https(site: Site) -> None:
    async with site.visitor() as plain:
        name, attributes = cookie_of(await plain.get("/sign-in"))
        assert name == COOKIE
        assert attributes["httponly"] == "True"
        assert attributes["samesite"] == "lax"
        assert attributes["path"] == "/console"
        assert "secure" not in attributes
    async with site.visitor("https://rootstock.example") as secured:
        response = await secured.get("/sign-in")
        name, attributes = cookie_of(response)
        assert name == "__Host-rootstock"
        assert attributes["secure"] == attributes["httponly"] == "True"
        assert attributes["path"] == "/"
        assert "domain" not in attributes
        assert response.headers["strict-transport-security"] == "max-age=31536000"
        assert (await sign_in(secured)).status_code == 303
        assert (await secured.get("/")).status_code == 200


async def test_plain_http_from_elsewhere_is_refused(site: Site) -> None:
    async with site.visitor("http://rootstock.example") as exposed:
        for path in ("/", "/sign-in"):
            refused = await exposed.get(path)
            assert refused.status_code == 403
            assert "HTTPS" in refused.text
            assert "set-cookie" not in refused.headers
        assert (
            await exposed.post("/sign-in", data={"email": EMAIL, "password": PASSWORD})
        ).status_code == 403


async def test_every_answer_forbids_scripts_and_frames(visitor: httpx.AsyncClient) -> None:
    for path in ("/sign-in", "/", "/absent", "/static/console.css", "/static/absent.css"):
        headers = (await visitor.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert (await visitor.get("/sign-in")).headers["cache-control"] == "no-store"


async def test_oversized_and_odd_forms(visitor: httpx.AsyncClient) -> None:
    assert (await visitor.post("/sign-in", data={"email": "x" * 9000})).status_code == 413
    assert (await visitor.post("/sign-in", json={"email": EMAIL})).status_code == 415
    odd = {"content-type": "application/x-www-form-urlencoded"}
    assert (await visitor.post("/sign-in", content=b"\xff\xfe=1", headers=odd)).status_code == 400
    many = "&".join(f"f{i}=1" for i in range(50))
    assert (await visitor.post("/sign-in", content=many, headers=odd)).status_code == 400
    assert (await visitor.put("/sign-in")).status_code == 405


async def test_reading_redis_signs_nobody_in(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    kept = [key.decode() async for key in site.redis.scan_iter("*")]
    assert any(key.startswith("rootstock:console:session:") for key in kept)
    assert not any(visitor.cookies[COOKIE] in key for key in kept)


class Clock:
    """Stands in for the wall clock of sessions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        monkeypatch.setattr(sessions.time, "time", lambda: self.now)


async def test_sessions_rotate_and_the_old_id_dies_soon(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    store = SessionStore(site.redis)
    first = await store.sign_in(None, "usr_1", site.tenant_id)
    clock.now += sessions.ROTATE_S + 1
    second = await store.find(first.id)
    assert second is not None
    assert second.fresh
    assert second.id != first.id
    assert second.session.csrf_token == first.session.csrf_token  # forms that are open stay valid
    late = await store.find(first.id)  # a request that was on its way
    assert late is not None
    assert not late.fresh
    left = [await site.redis.ttl(key) async for key in site.redis.scan_iter("rootstock:console:session:*")]
    assert sorted(left) == [sessions.GRACE_S, sessions.IDLE_S]


async def test_the_sign_in_page_too_hands_over_the_rotated_session(
    visitor: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    before = visitor.cookies[COOKIE]
    monkeypatch.setattr(sessions, "ROTATE_S", 0)
    assert (await visitor.get("/sign-in")).headers["location"] == "/console/"
    assert visitor.cookies[COOKIE] != before


async def test_no_session_lives_longer_than_a_day(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    store = SessionStore(site.redis)
    opened = await store.sign_in(None, "usr_1", site.tenant_id)
    for _ in range(sessions.ABSOLUTE_S // sessions.ROTATE_S - 1):
        clock.now += sessions.ROTATE_S
        found = await store.find(opened.id)
        assert found is not None
        opened = found
    clock.now += 2 * sessions.ROTATE_S
    assert await store.find(opened.id) is None


async def test_strange_ids_are_nobody(site: Site) -> None:
    store = SessionStore(site.redis)
    for strange in (None, "", "x", "x" * 5000):
        assert await store.find(strange) is None


async def test_the_mount_prefix_is_not_baked_in(site: Site) -> None:
    inner = site.app.routes[0]
    assert isinstance(inner, Mount)

    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("home")

    app = Starlette(routes=[Route("/", home), Mount("/staff/desk", inner.app)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/staff/desk") as visitor:
        assert (await visitor.get("/")).headers["location"] == "/staff/desk/sign-in"
        assert 'action="/staff/desk/sign-in"' in (await visitor.get("/sign-in")).text


def test_the_session_record_stays_readable_across_releases() -> None:
    stored = {
        "csrf_token": "t",
        "started_at": 1.0,
        "rotated_at": 1.0,
        "user_id": "u",
        "tenant_id": "x",
        "later": 1,
    }
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(stored), type=sessions.Session)
    assert (decoded.user_id, decoded.superseded) == ("u", False)
