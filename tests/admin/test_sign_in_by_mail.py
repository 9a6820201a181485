"""Invitations and forgotten passwords by mail, through a real mail server; and by hand where none is."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest

from admin.mail import ConsoleMail
from admin.sign_in import lockout
from admin.sign_in.services import SignInServices
from billing.notifications.mailing import Mailer
from tenants.actors import OPERATOR
from tenants.audit.service import OPERATOR_CHAIN, AuditFilter
from tenants.identities import credentials
from tests.admin.conftest import EMAIL, PASSWORD, Site, csrf_token, sign_in
from tests.admin.operators import OPERATOR_EMAIL, operate
from tests.admin.test_keys import XSS, act, as_role
from tests.admin.test_sign_in_second_factor import at_step, enrol, enter_code
from tests.billing.notifications.test_mailing import Mailbox, mail_server
from tests.support.waiting import eventually

URL = "https://rootstock.example"
OTHER = "another horse, another battery"


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


@pytest.fixture
async def sign_in_services(request: pytest.FixtureRequest, box: Mailbox) -> AsyncIterator[SignInServices]:
    """With mail, unless a test asks for `by_hand` before."""
    if "by_hand" in request.fixturenames:
        yield SignInServices()
        return
    async with mail_server(box) as port:
        mailer = Mailer("127.0.0.1", port, sender="Rootstock <console@rootstock.example>", security="none")
        yield SignInServices(URL, ConsoleMail(mailer, f"{URL}/console"))


@pytest.fixture
def by_hand() -> None:
    """No mail is sent."""


def texts(box: Mailbox) -> list[tuple[str, str, str]]:
    """Recipient, subject and plain text of each."""
    return [
        (to, str(mail["Subject"]), mail.get_body(("plain",)).get_content())  # type: ignore[union-attr]
        for to, mail in box.mail
    ]


def token_in(text: str, page: str) -> str:
    (token,) = re.findall(rf"{re.escape(URL)}/console/{page}#(rs_[a-z]+_[0-9A-Za-z]+)", text)
    return str(token)


async def forgot(visitor: httpx.AsyncClient, email: str) -> httpx.Response:
    return await act(visitor, "/forgot", "/forgot", email=email)


async def reset(visitor: httpx.AsyncClient, token: str, **fields: str) -> httpx.Response:
    return await act(
        visitor, "/reset", "/reset", **({"token": token, "password": OTHER, "again": OTHER} | fields)
    )


async def mailed(box: Mailbox, visitor: httpx.AsyncClient) -> str:
    """The token that a mail brings to whoever asks for it."""
    before = len(box.mail)
    assert (await forgot(visitor, EMAIL)).status_code == 200
    await eventually(lambda: len(box.mail) > before)
    return token_in(texts(box)[-1][2], "reset")


async def test_a_forgotten_password_is_chosen_anew(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox
) -> None:
    async with site.visitor() as elsewhere:
        await sign_in(elsewhere)
        token = await mailed(box, visitor)
        done = await reset(visitor, token)
        assert done.headers["location"] == "/console/sign-in"
        assert "Password changed. Sign in with your new password." in (await visitor.get("/sign-in")).text
        assert "changed" not in (await visitor.get("/sign-in")).text  # told once
        assert (await elsewhere.get("/")).status_code == 303  # every session is over
    assert (await sign_in(visitor, password=PASSWORD)).status_code == 401
    assert (await sign_in(visitor, password=OTHER)).status_code == 303
    async with site.visitor() as again:
        used = await reset(again, token, password=PASSWORD, again=PASSWORD)
        assert used.status_code == 422
        assert "invalid or has expired" in used.text
    ((to, subject, _),) = texts(box)
    assert (to, subject) == (EMAIL, "Reset your password")


async def test_an_operators_password_too_and_a_second_factor_after_it(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox
) -> None:
    await operate(site, visitor)
    await enrol(visitor)
    async with site.visitor() as anew:
        assert (await forgot(anew, OPERATOR_EMAIL)).status_code == 200
        await eventually(lambda: bool(box.mail))
        ((to, _, words),) = texts(box)
        assert to == OPERATOR_EMAIL
        assert (await reset(anew, token_in(words, "reset"))).status_code == 303
        assert (await visitor.get("/operator/tenants")).status_code == 303  # every session is over
        assert (await sign_in(anew, OPERATOR_EMAIL)).status_code == 401
        assert (await sign_in(anew, OPERATOR_EMAIL, OTHER)).headers["location"] == "/console/sign-in/code"
    (entry, *_) = await site.account.audit.list(OPERATOR_CHAIN, AuditFilter(types=["password.changed"]))
    assert (entry.actor["email"], entry.details) == (OPERATOR_EMAIL, {"by": "token"})


async def test_an_operator_who_is_no_more_is_mailed_nothing(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox
) -> None:
    for email in (OPERATOR_EMAIL, "other@service.example"):
        await site.operation.accounts.add(email, PASSWORD)
    await site.operation.accounts.remove(OPERATOR_EMAIL)
    assert (await forgot(visitor, OPERATOR_EMAIL)).status_code == 200
    assert (await forgot(visitor, EMAIL)).status_code == 200
    await eventually(lambda: bool(box.mail))
    assert [to for to, *_ in texts(box)] == [EMAIL]


async def test_nobody_learns_which_addresses_are_known(visitor: httpx.AsyncClient, box: Mailbox) -> None:
    answers = {}
    for email in (EMAIL, "nobody@acme.example", "not an address"):
        answer = await forgot(visitor, email)
        words = html.unescape(answer.text).replace(email, "")
        answers[email] = (answer.status_code, re.sub(r'value="[^"]{43}"', "", words))
    assert len({*answers.values()}) == 1
    await eventually(lambda: bool(box.mail))
    assert [to for to, *_ in texts(box)] == [EMAIL]


async def test_mail_is_not_sent_without_end(visitor: httpx.AsyncClient, box: Mailbox) -> None:
    for email in (EMAIL, "nobody@acme.example"):
        answers = [(await forgot(visitor, email)).status_code for _ in range(lockout.MAX_PER_ACCOUNT + 1)]
        assert answers == [200] * lockout.MAX_PER_ACCOUNT + [429]
    await eventually(lambda: len(box.mail) == lockout.MAX_PER_ACCOUNT)
    # It keeps nobody from signing in.
    assert (await sign_in(visitor)).status_code == 303


async def test_a_link_is_good_for_its_time_and_its_form(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await mailed(box, visitor)
    for fields, message in (
        ({"again": "something else"}, "don't match"),
        ({"password": "short", "again": "short"}, "must have 10 to"),
        ({"token": "rs_reset_guess"}, "invalid or has expired"),
        ({"token": token[:-1] + ("0" if token[-1] != "0" else "1")}, "invalid or has expired"),
    ):
        refused = await reset(visitor, fields.pop("token", token), **fields)
        assert refused.status_code == 422
        assert message in html.unescape(refused.text)
        assert OTHER not in refused.text
    await visitor.get("/reset")
    guessed = {"csrf_token": "guess", "token": token, "password": OTHER, "again": OTHER}
    assert (await visitor.post("/reset", data=guessed)).status_code == 403
    monkeypatch.setattr(credentials, "RESET_LIFE", timedelta(seconds=-1))
    late = await mailed(box, visitor)
    assert (await reset(visitor, late)).status_code == 422
    assert (await reset(visitor, token)).status_code == 303
    # One that is used ends the others.
    assert await site.accounts.authenticate(EMAIL, OTHER) is not None


async def test_a_reset_does_not_pass_by_the_second_factor(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox
) -> None:
    await sign_in(visitor)
    secret, _ = await enrol(visitor)
    async with site.visitor() as anew:
        assert (await reset(anew, await mailed(box, anew))).status_code == 303
        assert (await sign_in(anew, password=OTHER)).headers["location"] == "/console/sign-in/code"
        assert (await enter_code(anew, at_step(secret))).headers["location"] == "/console/"


async def test_links_lead_to_the_address_that_was_set(
    site: Site, visitor: httpx.AsyncClient, box: Mailbox
) -> None:
    form = await visitor.get("/forgot")
    lured = {"host": "evil.example", "x-forwarded-host": "evil.example", "origin": "http://evil.example"}
    data = {"csrf_token": csrf_token(form), "email": EMAIL}
    await visitor.post("/forgot", data=data, headers={"x-forwarded-host": "evil.example"})
    assert (await visitor.post("/forgot", data=data, headers=lured)).status_code == 403
    await eventually(lambda: bool(box.mail))
    assert "evil" not in texts(box)[0][2]


async def test_an_invitation_is_mailed(site: Site, visitor: httpx.AsyncClient, box: Mailbox) -> None:
    await site.account.members.update(
        site.tenant_id, (await site.account.members.list(site.tenant_id))[0].id, OPERATOR, name=f"Ada {XSS}"
    )
    await sign_in(visitor)
    assert "email them a single-use link" in (await visitor.get("/members/invite")).text
    sent = await act(visitor, "/members/invite", "/members/invite", email="grace@acme.example", role="viewer")
    assert sent.headers["location"] == "/console/members"
    assert "Invitation sent to grace@acme.example" in (await visitor.get("/members")).text
    ((to, subject, text),) = texts(box)
    assert (to, subject) == ("grace@acme.example", "You're invited to join ours")
    rich = box.mail[0][1].get_body(("html",)).get_content()  # type: ignore[union-attr]
    assert "<img" not in rich
    async with site.visitor() as guest:
        token = token_in(text, "join")
        given = {"token": token, "name": "Grace", "password": PASSWORD, "again": PASSWORD}
        assert (await act(guest, "/join", "/join", **given)).status_code == 303


async def test_a_mail_that_is_refused_leaves_the_link(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    form = "/members/invite"
    made = await act(visitor, form, form, email="nobody@acme.example", role="viewer")
    assert made.status_code == 201
    assert "The email couldn't be sent" in made.text
    assert f'value="{URL}/console/join#rs_invite_' in made.text
    her = await site.accounts.create(site.tenant_id, "later@acme.example", PASSWORD, role="viewer")
    handed = await act(visitor, "/members", f"/members/{her.user_id}/password")
    assert handed.status_code == 201
    assert f'value="{URL}/console/reset#rs_reset_' in handed.text


async def test_without_mail_an_admin_passes_a_link_on(
    by_hand: None, site: Site, visitor: httpx.AsyncClient
) -> None:
    asked = await visitor.get("/forgot")
    assert "Ask an admin of your organization" in asked.text
    token = csrf_token(await visitor.get("/sign-in"))
    assert (await visitor.post("/forgot", data={"csrf_token": token, "email": EMAIL})).status_code == 404
    (owner,) = await site.account.members.list(site.tenant_id)
    her = await site.accounts.create(site.tenant_id, "grace@acme.example", PASSWORD, role="developer")
    async with site.visitor() as admins:
        await as_role(site, admins, "admin")
        made = await act(admins, "/members", f"/members/{her.user_id}/password")
        assert made.status_code == 201
        (link,) = re.findall(r'id="link" value="([^"]+)"', made.text)
        # An admin who could make one for an owner would be one.
        assert (await act(admins, "/members", f"/members/{owner.id}/password")).status_code == 403
        assert "Create reset link" not in (await admins.get(f"/members/{owner.id}")).text
        far = await site.accounts.create(site.place.tenants[1], "far@birch.example", PASSWORD)
        assert (await act(admins, "/members", f"/members/{far.user_id}/password")).status_code == 404
    assert (await reset(visitor, link)).status_code == 303
    assert await site.accounts.authenticate("grace@acme.example", OTHER) is not None
    types = [entry.type for entry in await site.account.audit.list(site.tenant_id)]
    assert types[:2] == ["password.changed", "password.reset_made"]
