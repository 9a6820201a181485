"""From a proof to a session: what the browser came with ends, and a second factor is asked for."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from starlette.requests import Request
from starlette.responses import Response

from admin.sign_in.completion import SignInCompletion
from admin.web.sessions import OpenSession, SessionStore
from tenants.accounts import Membership

PROVED_AT = time.time() - 60


class Site:
    def __init__(self, client: redis.asyncio.Redis) -> None:
        self.sessions = SessionStore(client)
        self.noted: list[tuple[str, str, str]] = []
        console: Any = SimpleNamespace(
            sessions=self.sessions,
            redirect=lambda request, path: Response(status_code=303, headers={"location": path}),
        )
        services: Any = SimpleNamespace(accounts=SimpleNamespace(record_sign_in=self._note))
        self.completion = SignInCompletion(console, services)

    async def _note(self, account: Membership, by: str, *, address: str, request_id: str | None) -> None:
        self.noted.append((account.user_id, by, address))

    async def enter(self, opened: OpenSession | None, **account: bool) -> tuple[str, OpenSession]:
        """Where it leads, and the session that the browser has then."""
        headers = [(b"user-agent", b"Browser"), (b"host", b"test")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/",
            "headers": headers,
            "client": ("192.0.2.7", 9),
        }
        scope |= {"scheme": "https", "server": ("test", 443), "query_string": b""}
        who = Membership("usr_1", "ann@acme.example", "owner", "tnt_1", "Acme", **account)
        response = await self.completion.complete(
            Request(scope), opened, who, "password", PROVED_AT, message="Hello."
        )
        cookie = response.headers["set-cookie"].partition("=")[2].partition(";")[0]
        found = await self.sessions.peek(cookie)
        assert found is not None
        return response.headers["location"], found


@pytest.fixture
def site(redis_client: redis.asyncio.Redis) -> Site:
    return Site(redis_client)


@pytest.mark.parametrize("has_second_factor", [False, True])
async def test_the_session_that_the_browser_came_with_ends(site: Site, has_second_factor: bool) -> None:
    """Anonymous, or somebody else's."""
    for old in (await site.sessions.begin(), await site.sessions.sign_in(None, "usr_2", "tnt_1")):
        _, found = await site.enter(old, has_second_factor=has_second_factor)
        assert found.id != old.id
        assert await site.sessions.peek(old.id) is None


async def test_a_proof_opens_a_session_that_counts_from_when_the_proving_began(site: Site) -> None:
    location, found = await site.enter(None)
    assert location == "/"
    session = found.session
    assert (session.user_id, session.tenant_id, session.role) == ("usr_1", "tnt_1", "owner")
    assert (session.started_at, session.address, session.agent) == (PROVED_AT, "192.0.2.7", "Browser")
    assert session.flash == "Hello."
    assert site.noted == [("usr_1", "password", "192.0.2.7")]


async def test_whoever_has_a_second_factor_is_asked_for_it_first(site: Site) -> None:
    location, found = await site.enter(None, has_second_factor=True)
    assert location == "/sign-in/code"
    assert found.session.user_id is None
    assert found.session.pending is not None
    assert (found.session.pending.user_id, found.session.pending.proved_at) == ("usr_1", PROVED_AT)
    assert site.noted == [], "not in yet"


@pytest.mark.parametrize("has_second_factor", [False, True])
async def test_the_page_asked_for_outlasts_the_second_factor(site: Site, has_second_factor: bool) -> None:
    before = await site.sessions.begin(next_path="/keys?show=all")
    location, found = await site.enter(before, has_second_factor=has_second_factor)
    if has_second_factor:
        assert (location, found.session.next_path) == ("/sign-in/code", "/keys?show=all")
        location, found = await site.enter(found)
    assert (location, found.session.next_path) == ("/keys?show=all", "")
