"""Second factors: set up, asked for, used once, lost, taken away, and asked of everybody."""

from __future__ import annotations

import asyncio
import base64
import html
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from admin.settings import ConsoleSettings
from admin.sign_in import lockout
from admin.sign_in.services import SignInServices
from api.assembly.sign_in import open_sign_in
from billing.notifications.settings import NotificationSettings
from cli.datadir import DataDir
from cli.programs import LocalBase, Service
from tenants.actors import OPERATOR
from tenants.errors import WrongCode
from tenants.identities import codes
from tenants.identities.sealing import Sealer
from tenants.models import OPERATOR_TENANT
from tests.admin.conftest import EMAIL, PASSWORD, SECRET, Site, csrf_token, sign_in
from tests.admin.operators import OPERATOR_EMAIL, enter, operate
from tests.admin.test_keys import act, as_role

HERE = "/account/second-factor"
RFC_SECRET = b"12345678901234567890"


@pytest.fixture
def sign_in_services(request: pytest.FixtureRequest) -> SignInServices:
    return SignInServices(operators_second_factor="asked_of_operators" in request.fixturenames)


@pytest.fixture
def asked_of_operators() -> None:
    """As it is unless a setting says otherwise."""


def at_step(secret: str, ahead: int = 1) -> str:
    """The code of the next step, which is good now, and stays so when the step ends meanwhile. That of this
    one is used to set up with.
    """
    raw = base64.b32decode(secret.replace(" ", ""))
    return codes.code_at(raw, codes.step_of(datetime.now(UTC)) + ahead)


async def enrol(visitor: httpx.AsyncClient) -> tuple[str, list[str]]:
    """The secret and the recovery codes of whoever is signed in."""
    shown = await act(visitor, HERE, f"{HERE}/begin")
    assert shown.status_code == 200
    found = re.search(r'id="secret">([A-Z2-7 ]+)<', shown.text)
    assert found is not None
    assert '<svg role="img"' in shown.text
    secret = found[1].replace(" ", "")
    made = await visitor.post(
        f"{HERE}/confirm", data={"csrf_token": csrf_token(shown), "code": at_step(secret, 0)}
    )
    assert made.status_code == 201, made.text
    return secret, re.findall(r"<li>([0-9a-z]{5}-[0-9a-z]{5})</li>", made.text)


async def enter_code(visitor: httpx.AsyncClient, code: str) -> httpx.Response:
    form = await visitor.get("/sign-in/code")
    return await visitor.post("/sign-in/code", data={"csrf_token": csrf_token(form), "code": code})


def test_codes_are_those_of_the_standard() -> None:
    """RFC 6238, appendix B, the last six of its eight digits."""
    for second, code in ((59, "287082"), (1111111109, "081804"), (20000000000, "353130")):
        assert codes.code_at(RFC_SECRET, second // 30) == code


def test_a_clock_may_be_off_by_one_step_and_no_code_is_good_twice() -> None:
    now = datetime.fromtimestamp(1111111109, UTC)
    step = codes.step_of(now)
    around = {ahead: codes.code_at(RFC_SECRET, step + ahead) for ahead in (-2, -1, 0, 1, 2)}
    for ahead in (-1, 0, 1):
        assert codes.matching_step(RFC_SECRET, around[ahead], now, None) == step + ahead
    for ahead in (-2, 2):
        assert codes.matching_step(RFC_SECRET, around[ahead], now, None) is None
    assert codes.matching_step(RFC_SECRET, f" {around[0][:3]} {around[0][3:]} ", now, step - 1) == step
    assert codes.matching_step(RFC_SECRET, around[0], now, step) is None
    for strange in ("", "12345", "1234567", "١٢٣٤٥٦", "abcdef"):
        assert codes.matching_step(RFC_SECRET, strange, now, None) is None


def test_sealed_secrets_open_for_their_own_alone() -> None:
    sealer = Sealer(SECRET, "second factors")
    sealed = sealer.seal(b"secret", "usr_1")
    assert b"secret" not in sealed
    assert sealer.open(sealed, "usr_1") == b"secret"
    changed = bytes([*sealed[:-1], sealed[-1] ^ 1])
    for one, other, whose in (
        (sealer, sealed, "usr_2"),
        (sealer, changed, "usr_1"),
        (Sealer(SECRET, "else"), sealed, "usr_1"),
        (Sealer("t" * 32, "second factors"), sealed, "usr_1"),
    ):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            one.open(other, whose)


async def test_a_code_is_asked_for_once_it_was_confirmed(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    shown = await act(visitor, HERE, f"{HERE}/begin")
    again = await act(visitor, HERE, f"{HERE}/begin")
    secrets = [re.search(r'id="secret">([A-Z2-7 ]+)<', page.text)[1] for page in (shown, again)]  # type: ignore[index]
    assert secrets[0] == secrets[1]
    wrong = await visitor.post(f"{HERE}/confirm", data={"csrf_token": csrf_token(again), "code": "000000"})
    assert wrong.status_code == 422
    assert "Incorrect code. Check your device&#39;s clock" in wrong.text
    assert secrets[0] in wrong.text
    async with site.visitor() as elsewhere:  # nothing is asked for yet
        assert (await sign_in(elsewhere)).headers["location"] == "/console/"
        before = visitor.cookies["rootstock_console"]
        secret, recovery = await enrol(visitor)
        assert len(set(recovery)) == 10
        assert visitor.cookies["rootstock_console"] != before
        assert (await elsewhere.get("/")).status_code == 303  # out everywhere else
    assert (await visitor.get("/")).status_code == 200
    page = (await visitor.get(HERE)).text
    assert secret not in page.replace(" ", "")
    assert not any(code in page for code in recovery)
    async with site.visitor() as anew:
        half = await sign_in(anew)
        assert half.headers["location"] == "/console/sign-in/code"
        assert (await anew.get("/")).headers["location"] == "/console/sign-in"  # not in yet
        assert (await enter_code(anew, "000000")).status_code == 401
        code = at_step(secret)
        assert (await enter_code(anew, code)).headers["location"] == "/console/"
        assert EMAIL in (await anew.get("/")).text
    async with site.visitor() as thief:  # who looked over a shoulder
        await sign_in(thief)
        assert (await enter_code(thief, code)).status_code == 401
    entries = await site.account.audit.list(site.tenant_id)
    assert [entry.type for entry in entries[:2]] == ["login.succeeded", "second_factor.added"]
    assert entries[0].details == {"by": "password, totp"}


async def test_a_recovery_code_lets_in_once(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    _, recovery = await enrol(visitor)
    async with site.visitor() as anew:
        await sign_in(anew)
        assert (await enter_code(anew, recovery[0].upper().replace("-", " "))).status_code == 303
        assert "9 left" in (await anew.get("/")).text
    async with site.visitor() as again:
        await sign_in(again)
        assert (await enter_code(again, recovery[0])).status_code == 401
    kept = str(await site.redis.keys("*")) + str(
        [row async for row in _rows(site, "SELECT row_to_json(f)::text FROM second_factors f")]
    )
    assert not any(code in kept for code in recovery)


async def _rows(site: Site, query: str):  # type: ignore[no-untyped-def]
    from sqlalchemy import text

    async with site.place.database.read(site.tenant_id) as session:
        for row in (await session.execute(text(query))).scalars():
            yield row


async def test_of_two_who_come_with_one_code_at_once_one_gets_in(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    secret, _ = await enrol(visitor)
    (me,) = await site.account.members.list(site.tenant_id)
    code, verify = at_step(secret), site.account.second_factors.verify
    came = await asyncio.gather(
        *(verify(site.tenant_id, me.id, code) for _ in range(4)), return_exceptions=True
    )
    assert sorted(map(type, came), key=str) == [*[WrongCode] * 3, str] or came.count("totp") == 1
    assert sum(isinstance(one, WrongCode) for one in came) == 3


async def test_wrong_codes_lock_and_the_password_does_not_unlock(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    secret, _ = await enrol(visitor)
    async with site.visitor() as thief:
        for _ in range(lockout.MAX_PER_ACCOUNT):
            await sign_in(thief)
            assert (await enter_code(thief, "000000")).status_code == 401
        await sign_in(thief)
        locked = await enter_code(thief, at_step(secret))
        assert locked.status_code == 429
        assert 0 < int(locked.headers["retry-after"]) <= lockout.WINDOW_S


async def test_half_way_in_is_not_in(site: Site, visitor: httpx.AsyncClient) -> None:
    assert (await visitor.get("/sign-in/code")).headers["location"] == "/console/sign-in"
    await sign_in(visitor)
    secret, _ = await enrol(visitor)
    async with site.visitor() as anew:
        await sign_in(anew)
        form = await anew.get("/sign-in/code")
        for token in ("", "guess"):
            data = {"csrf_token": token, "code": at_step(secret)}
            assert (await anew.post("/sign-in/code", data=data)).status_code == 403
        # The password becomes another one while the code is looked for.
        site_account = await site.accounts.authenticate(EMAIL, PASSWORD)
        assert site_account is not None
        await site.account.credentials.change(site_account, PASSWORD, PASSWORD[::-1], OPERATOR)
        data = {"csrf_token": csrf_token(form), "code": at_step(secret)}
        assert (await anew.post("/sign-in/code", data=data)).headers["location"] == "/console/sign-in"
        assert (await anew.get("/")).status_code == 303


async def test_removing_asks_for_the_password(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    await enrol(visitor)
    wrong = await act(visitor, HERE, f"{HERE}/remove", confirm="wrong password")
    assert wrong.status_code == 422
    assert "Incorrect password." in wrong.text
    assert (await act(visitor, HERE, f"{HERE}/remove", confirm=PASSWORD)).status_code == 303
    assert "Two-factor authentication disabled" in (await visitor.get("/account")).text
    async with site.visitor() as anew:
        assert (await sign_in(anew)).headers["location"] == "/console/"


async def test_other_recovery_codes_end_those_of_before(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    secret, recovery = await enrol(visitor)
    made = await act(visitor, HERE, f"{HERE}/recovery", code=at_step(secret))
    assert made.status_code == 201
    other = re.findall(r"<li>([0-9a-z]{5}-[0-9a-z]{5})</li>", made.text)
    assert not {*other} & {*recovery}
    async with site.visitor() as anew:
        await sign_in(anew)
        assert (await enter_code(anew, recovery[1])).status_code == 401
        assert (await enter_code(anew, other[1])).status_code == 303


async def test_an_organisation_asks_everybody_for_one(site: Site, visitor: httpx.AsyncClient) -> None:
    await sign_in(visitor)
    refused = await act(visitor, "/members", "/members/second-factor", required="yes")
    assert refused.status_code == 409
    assert "of your own" in html.unescape(refused.text)
    await enrol(visitor)
    assert (await act(visitor, "/members", "/members/second-factor", required="yes")).status_code == 303
    kept = await act(visitor, HERE, f"{HERE}/remove", confirm=PASSWORD)
    assert kept.status_code == 409
    async with site.visitor() as hers:
        await as_role(site, hers, "developer")
        for path in ("/", "/keys", "/account"):
            expected = 200 if path == "/account" else 303
            assert (await hers.get(path)).status_code == expected
        assert (await hers.get("/keys")).headers["location"] == "/console/account/second-factor"
        asked = await hers.get("/keys", headers={"accept": "application/json"})
        assert asked.status_code == 403
        await enrol(hers)
        assert (await hers.get("/keys")).status_code == 200
    page = (await visitor.get("/members")).text
    assert ">Required</span>" in page


async def test_an_admin_takes_a_lost_one_away_but_not_an_owners(
    site: Site, visitor: httpx.AsyncClient
) -> None:
    (owner,) = await site.account.members.list(site.tenant_id)
    await sign_in(visitor)
    await enrol(visitor)
    async with site.visitor() as hers, site.visitor() as admins:
        await as_role(site, hers, "developer")
        await enrol(hers)
        await as_role(site, admins, "admin")
        her = next(one for one in await site.account.members.list(site.tenant_id) if one.role == "developer")
        assert (await act(admins, "/members", f"/members/{owner.id}/second-factor")).status_code == 403
        taken = await act(admins, "/members", f"/members/{her.id}/second-factor")
        assert taken.status_code == 303
        hers.cookies.clear()
        assert (await sign_in(hers, "developer@acme.example")).headers["location"] == "/console/"
    assert (await site.account.second_factors.users_with_factor(site.tenant_id, [owner.id, her.id])) == {
        owner.id
    }


async def test_operators_have_one_before_anything_else(
    asked_of_operators: None, site: Site, visitor: httpx.AsyncClient
) -> None:
    assert ConsoleSettings().operators_second_factor
    assert SignInServices().operators_second_factor
    await operate(site, visitor)
    for path in ("/operator/tenants", "/operator/plans", "/"):
        assert (await visitor.get(path)).headers["location"] == f"/console{HERE}"
    asked = await visitor.get("/operator/jobs", headers={"accept": "application/json"})
    assert asked.status_code == 403
    page = await visitor.get(HERE)
    assert "requires two-factor authentication for all operators" in page.text
    made = await visitor.post("/operator/plans", data={"csrf_token": csrf_token(page), "name": "gold"})
    assert made.headers["location"] == f"/console{HERE}"
    assert [plan.name for plan in await site.account.plans.list()] == ["standard"]

    secret, _ = await enrol(visitor)
    assert (await visitor.get("/operator/tenants")).status_code == 200
    kept = await act(visitor, HERE, f"{HERE}/remove", confirm=PASSWORD)
    assert kept.status_code == 409
    assert "rootstock operator reset" in kept.text
    async with site.visitor() as anew:
        assert (await sign_in(anew, OPERATOR_EMAIL)).headers["location"] == "/console/sign-in/code"
        assert (await anew.get("/operator/tenants")).headers["location"] == "/console/sign-in"
        assert (await enter_code(anew, at_step(secret))).headers["location"] == "/console/operator/tenants"
        assert (await enter(site, anew)).status_code == 303
        assert (await anew.get("/keys")).status_code == 200
        # Taken away meanwhile: nor in a tenant's console does anything go on without.
        (operator,) = await site.operation.accounts.list()
        await site.account.second_factors.remove_for_member(OPERATOR_TENANT, operator.id, OPERATOR)
        assert (await anew.get("/keys")).headers["location"] == f"/console{HERE}"


async def test_the_setting_reaches_who_asks_and_only_a_demonstration_sets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ROOTSTOCK_CONSOLE_OPERATORS_SECOND_FACTOR"
    monkeypatch.delenv(name, raising=False)
    told = {
        is_demo: Service(
            DataDir(tmp_path), [LocalBase("sapling", tmp_path, "none")], "unix:///nowhere", is_demo=is_demo
        )
        for is_demo in (True, False)
    }
    with told[True].data:
        assert told[True].environment()[name] == "false"
        assert name not in told[False].environment()
        monkeypatch.setenv(name, "true")
        assert told[True].environment()[name] == "true", "what the operator set himself wins"
    for written in ("true", "false"):
        monkeypatch.setenv(name, written)
        async with open_sign_in(ConsoleSettings(), NotificationSettings()) as services:
            assert services.operators_second_factor == (written == "true")


async def test_of_tenants_users_the_operators_setting_asks_nothing(
    asked_of_operators: None, visitor: httpx.AsyncClient
) -> None:
    await sign_in(visitor)
    assert (await visitor.get("/keys")).status_code == 200
    await enrol(visitor)
    assert (await act(visitor, HERE, f"{HERE}/remove", confirm=PASSWORD)).status_code == 303


def test_the_drift_is_one_step() -> None:
    assert timedelta(seconds=codes.STEP_S * codes.DRIFT) == timedelta(seconds=30)
