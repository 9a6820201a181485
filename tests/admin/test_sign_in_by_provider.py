"""Signing in, joining and connecting by an OpenID provider that is really asked, and everything that it, or
somebody else, could say wrongly.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pydantic import ValidationError

from admin.settings import ConsoleSettings, ProviderSettings
from admin.sign_in.oidc import provider as providers
from admin.sign_in.oidc.provider import Provider
from admin.sign_in.services import SignInServices
from tenants.actors import OPERATOR
from tenants.external_identity import ExternalIdentity
from tests.admin.conftest import EMAIL, PASSWORD, Site, sign_in
from tests.admin.test_keys import act
from tests.admin.test_sign_in_second_factor import at_step, enrol, enter_code
from tests.support.openid_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    OpenIdProvider,
    new_key,
    signed_by_another,
    signed_by_client_secret,
    signed_with_public_key,
    unsigned,
)
from tests.support.serving import served


@pytest.fixture
async def double() -> AsyncIterator[OpenIdProvider]:
    made = OpenIdProvider()
    async with served(made.app) as origin:
        made.issuer = origin
        yield made


@pytest.fixture
async def sign_in_services(double: OpenIdProvider) -> AsyncIterator[SignInServices]:
    settings = ProviderSettings(
        name="acme", title="Acme", issuer=double.issuer, client_id=CLIENT_ID, client_secret=CLIENT_SECRET
    )
    provider = Provider(settings)
    yield SignInServices(providers=(provider,))
    await provider.close()


async def led(page: httpx.Response) -> str:
    """Where the provider sends a browser that followed the page there: the path here, with its query."""
    assert page.status_code == 200, page.text
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.text)
    assert found is not None
    async with httpx.AsyncClient() as browser:
        back = await browser.get(html.unescape(found[1]))
    assert back.status_code == 302
    parts = urlsplit(back.headers["location"])
    assert parts.path == "/console/sign-in/from/acme"
    return f"{parts.path.removeprefix('/console')}?{parts.query}"


async def with_acme(visitor: httpx.AsyncClient) -> httpx.Response:
    """Sign in with the provider."""
    begun = await act(visitor, "/sign-in", "/sign-in/with", provider="acme")
    return await visitor.get(await led(begun))


async def connect(visitor: httpx.AsyncClient) -> httpx.Response:
    begun = await act(visitor, "/account", "/account/connect", provider="acme", confirm=PASSWORD)
    return await visitor.get(await led(begun))


async def test_who_connected_it_signs_in_with_it(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    nobody = await with_acme(visitor)
    assert nobody.status_code == 403
    assert "No account is connected" in nobody.text
    await sign_in(visitor)
    refused = await act(visitor, "/account", "/account/connect", provider="acme", confirm="wrong password")
    assert refused.status_code == 422
    before = visitor.cookies["rootstock_console"]
    assert (await connect(visitor)).headers["location"] == "/console/account"
    assert visitor.cookies["rootstock_console"] != before
    page = (await visitor.get("/account")).text
    assert "Acme connected." in page
    assert double.email in page
    async with site.visitor() as anew:
        await anew.get("/sign-in")
        planted = anew.cookies["rootstock_console"]
        assert (await with_acme(anew)).headers["location"] == "/console/"
        assert anew.cookies["rootstock_console"] != planted
        assert EMAIL in (await anew.get("/")).text
    (entry, *_) = await site.account.audit.list(site.tenant_id)
    assert (entry.type, entry.details) == ("login.succeeded", {"by": "acme"})
    (path,) = re.findall(r'action="/console(/account/identities/[^"]+/remove)"', page)
    assert (await act(visitor, "/account", path)).status_code == 303
    async with site.visitor() as anew:
        assert (await with_acme(anew)).status_code == 403


async def test_the_same_address_is_not_the_same_person(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    double.email = EMAIL  # verified, and an owner's
    assert (await with_acme(visitor)).status_code == 403
    assert (await visitor.get("/")).status_code == 303
    (me,) = await site.account.members.list(site.tenant_id)
    account = await site.accounts.find(me.id, site.tenant_id)
    assert account is not None
    assert await site.account.identities.list(account) == []


async def test_one_identity_is_one_users(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    await sign_in(visitor)
    await connect(visitor)
    assert (await connect(visitor)).status_code == 303  # again: nothing changes
    far = await site.accounts.create(site.place.tenants[1], "far@birch.example", PASSWORD)
    async with site.visitor() as hers:
        await sign_in(hers, "far@birch.example")
        taken = await connect(hers)
        assert taken.status_code == 409
        assert "is already connected to another user" in taken.text
    # Whoever leaves takes it along: the next may connect it.
    await site.accounts.create(site.tenant_id, "second@acme.example", PASSWORD)
    (me, *_) = await site.account.members.list(site.tenant_id, newest_first=False)
    await site.account.members.remove(site.tenant_id, me.id, OPERATOR)
    async with site.visitor() as hers:
        await sign_in(hers, "far@birch.example")
        assert (await connect(hers)).status_code == 303
        found = await site.account.identities.find(ExternalIdentity(double.issuer, double.subject))
        assert found is not None
        assert found.user_id == far.user_id


async def invited(site: Site, visitor: httpx.AsyncClient, email: str) -> httpx.Response:
    made = await site.account.invites.create(site.tenant_id, email, "developer", OPERATOR)
    begun = await act(visitor, "/join", "/join/with", provider="acme", token=f"https://x/join#{made.token}")
    return await visitor.get(await led(begun))


async def test_an_invitation_is_accepted_without_a_password(site: Site, visitor: httpx.AsyncClient) -> None:
    assert (await invited(site, visitor, "Grace@acme.example")).headers["location"] == "/console/"
    assert "Welcome to ours. Your role is developer." in (await visitor.get("/")).text
    for password in ("", "no user has this password"):
        async with site.visitor() as anew:
            assert (await sign_in(anew, "grace@acme.example", password)).status_code == 401
    page = (await visitor.get("/account")).text
    (path,) = re.findall(r'action="/console(/account/identities/[^"]+/remove)"', page)
    kept = await act(visitor, "/account", path)
    assert kept.status_code == 409
    assert "set a password first" in kept.text
    async with site.visitor() as anew:
        assert (await with_acme(anew)).headers["location"] == "/console/"


@pytest.mark.parametrize(("email", "verified"), [("eve@acme.example", True), ("grace@acme.example", False)])
async def test_an_invitation_is_for_an_address_that_is_theirs(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider, email: str, verified: bool
) -> None:
    double.email, double.email_verified = email, verified
    assert (await invited(site, visitor, "grace@acme.example")).status_code == 403
    assert len(await site.account.members.list(site.tenant_id)) == 1
    (invite,) = await site.account.invites.list(site.tenant_id)
    assert invite.accepted_at is None


async def test_a_made_up_or_used_invitation_is_refused(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    made_up = await act(visitor, "/join", "/join/with", provider="acme", token="rs_invite_guess")
    assert made_up.status_code == 422
    made = await site.account.invites.create(site.tenant_id, double.email, "viewer", OPERATOR)
    begun = await act(visitor, "/join", "/join/with", provider="acme", token=made.token)
    kept = [await site.redis.get(key) async for key in site.redis.scan_iter("rootstock:console:oidc:*")]
    assert len(kept) == 1
    assert made.token.encode() not in kept[0]
    await site.account.invites.delete(site.tenant_id, made.invite.id, OPERATOR)
    assert (await visitor.get(await led(begun))).status_code == 422


async def test_a_second_factor_is_asked_for_all_the_same(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    await connect(visitor)
    secret, _ = await enrol(visitor)
    async with site.visitor() as anew:
        assert (await with_acme(anew)).headers["location"] == "/console/sign-in/code"
        assert (await anew.get("/")).status_code == 303
        assert (await enter_code(anew, at_step(secret))).headers["location"] == "/console/"


Change = Callable[[dict[str, Any]], dict[str, Any]]


def without(name: str) -> Change:
    return lambda claims: {key: value for key, value in claims.items() if key != name}


WRONG: dict[str, Change] = {
    "nonce": lambda claims: claims | {"nonce": "another"},
    "no nonce": without("nonce"),
    "issuer": lambda claims: claims | {"iss": "https://evil.example"},
    "audience": lambda claims: claims | {"aud": "another"},
    "audiences, another party": lambda claims: claims | {"aud": [CLIENT_ID, "other"], "azp": "other"},
    "audiences, no party": lambda claims: claims | {"aud": [CLIENT_ID, "other"]},
    "no audience": without("aud"),
    "expired": lambda claims: claims | {"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200},
    "no end": without("exp"),
    "of tomorrow": lambda claims: claims | {"iat": int(time.time()) + 86400},
    "not yet": lambda claims: claims | {"nbf": int(time.time()) + 86400},
    "nobody": without("sub"),
    "an empty name": lambda claims: claims | {"sub": ""},
    "a number for a name": lambda claims: claims | {"sub": 7},
}


async def test_tokens_that_prove_nothing_are_refused(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    await sign_in(visitor)
    await connect(visitor)
    async with site.visitor() as thief:
        for what, change in WRONG.items():
            double.change = change
            refused = await with_acme(thief)
            assert refused.status_code == 403, what
            assert "Sign-in with Acme failed" in refused.text, what
        double.change = lambda claims: claims
        for sign in (unsigned, signed_by_client_secret, signed_with_public_key, signed_by_another):
            double.sign = sign
            assert (await with_acme(thief)).status_code == 403, sign
        double.sign = lambda provider, claims: "not a token"
        assert (await with_acme(thief)).status_code == 403
        double.sign = None
        double.answer = {"iss": "https://evil.example"}
        assert (await with_acme(thief)).status_code == 403
        double.answer = {"error": "access_denied"}
        assert "was cancelled or denied" in (await with_acme(thief)).text
        assert (await thief.get("/")).status_code == 303
        double.answer = {}
        assert (await with_acme(thief)).status_code == 303  # the double itself is not what refuses


async def test_an_answer_is_good_once_and_in_its_own_browser(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    await sign_in(visitor)
    await connect(visitor)
    async with site.visitor() as anew, site.visitor() as thief:
        answer = await led(await act(anew, "/sign-in", "/sign-in/with", provider="acme"))
        await thief.get("/sign-in")
        assert (await thief.get(answer)).status_code == 400  # and it is spent
        assert (await anew.get(answer)).status_code == 400
        answer = await led(await act(anew, "/sign-in", "/sign-in/with", provider="acme"))
        assert (await anew.get(answer)).status_code == 303
        assert (await anew.get(answer)).status_code == 400
        for made_up in ("?code=x", "?code=x&state=", f"?code=x&state={'y' * 43}", f"?state={'y' * 9000}"):
            assert (await thief.get(f"/sign-in/from/acme{made_up}")).status_code == 400
        assert (await thief.get("/sign-in/from/else?state=x&code=y")).status_code == 404
        # Signing in does not connect: whoever lures a victim into an answer of their own gets nothing.
        bait = await led(await act(thief, "/sign-in", "/sign-in/with", provider="acme"))
        assert (await visitor.get(bait)).status_code == 400


async def test_beginning_needs_a_form_of_ours(site: Site, visitor: httpx.AsyncClient) -> None:
    await visitor.get("/sign-in")
    for path in ("/sign-in/with", "/join/with"):
        refused = await visitor.post(path, data={"csrf_token": "guess", "provider": "acme"})
        assert refused.status_code == 403
        assert (await visitor.get(path)).status_code == 405
    assert (await act(visitor, "/sign-in", "/sign-in/with", provider="else")).status_code == 404


async def test_keys_are_looked_up_again_when_they_change(
    site: Site, visitor: httpx.AsyncClient, double: OpenIdProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sign_in(visitor)
    await connect(visitor)
    async with site.visitor() as anew:
        double.key = new_key("two")
        assert (await with_acme(anew)).status_code == 403  # asked a moment ago: not again at once
        asked = double.asked.count("keys")
        assert asked == 1
        monkeypatch.setattr(providers, "ASK_AGAIN_S", 0.0)
        assert (await with_acme(anew)).status_code == 303
        assert double.asked.count("keys") == 2


async def test_a_provider_that_is_away_is_said_to_be(
    visitor: httpx.AsyncClient, double: OpenIdProvider
) -> None:
    double.is_down = True
    away = await act(visitor, "/sign-in", "/sign-in/with", provider="acme")
    assert away.status_code == 503
    assert "Acme isn&#39;t responding" in away.text
    double.is_down = False
    issuer, double.issuer = double.issuer, "https://evil.example"
    assert (await act(visitor, "/sign-in", "/sign-in/with", provider="acme")).status_code == 503
    double.issuer = issuer
    assert (await act(visitor, "/sign-in", "/sign-in/with", provider="acme")).status_code == 200


def test_settings_that_would_not_be_safe_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"name": "acme", "title": "Acme", "issuer": "https://id.example", "client_id": "x"}
    assert ProviderSettings(**good).client_secret.get_secret_value() == ""  # type: ignore[arg-type]
    for wrong in (
        {"issuer": "http://id.example"},
        {"issuer": "https://id.example?x=1"},
        {"name": "A/b"},
        {"client_id": ""},
        {"scopes": "email"},
    ):
        with pytest.raises(ValidationError):
            ProviderSettings(**(good | wrong))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="two of them"):
        ConsoleSettings(providers=(ProviderSettings(**good), ProviderSettings(**good)))  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="https"):
        ConsoleSettings(url="http://rootstock.example")
    monkeypatch.setenv("ROOTSTOCK_CONSOLE_PROVIDERS", f"[{str(good).replace(chr(39), chr(34))}]")
    monkeypatch.setenv("ROOTSTOCK_CONSOLE_URL", "https://rootstock.example/")
    read = ConsoleSettings()
    assert (read.url, read.providers[0].title) == ("https://rootstock.example", "Acme")
