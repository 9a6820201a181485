"""Passwords changed, and tokens by which one is chosen anew: for whom, for how long, and once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from tenants import passwords
from tenants.accounts import Membership
from tenants.actors import OPERATOR
from tenants.errors import ResetInvalid, WrongPassword
from tenants.identities.credentials import HANDED_LIFE, RESET_LIFE, Credentials
from tenants.models import Tenant
from tenants.service import AccountServices
from tests.tenants.conftest import SECRET

pytestmark = pytest.mark.usefixtures("cheap_passwords")

OLD, NEW, OTHER = "correct horse battery", "staple correct horse", "battery staple correct"


@pytest.fixture
def credentials(database: Database) -> Credentials:
    return Credentials(database, SECRET)


@pytest.fixture
async def ann(accounts: AccountServices, tenant: Tenant) -> Membership:
    return await accounts.users.create(tenant.id, "ann@example.com", OLD, role="owner")


async def change_row(database: Database, statement: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(statement))


async def sessions_from(database: Database) -> datetime | None:
    async with database.read(EVERY_TENANT) as session:
        found: datetime | None = (await session.execute(text("SELECT sessions_from FROM users"))).scalar_one()
    return found


async def test_a_token_is_good_once_and_ends_the_sessions_of_before(
    credentials: Credentials, ann: Membership, database: Database
) -> None:
    made, spare = await credentials.request_reset(ann.email), await credentials.request_reset(ann.email)
    assert made is not None
    assert spare is not None
    before = datetime.now(UTC)
    await credentials.reset(made.token, NEW)
    await credentials.check(ann, NEW)
    with pytest.raises(WrongPassword):
        await credentials.check(ann, OLD)
    ended = await sessions_from(database)
    assert ended is not None
    assert ended >= before
    for token in (made.token, spare.token, "rs_reset_nonsense", ""):
        with pytest.raises(ResetInvalid):
            await credentials.reset(token, OTHER)


async def test_tokens_live_as_long_as_they_are_told_to(
    credentials: Credentials, ann: Membership, tenant: Tenant, database: Database
) -> None:
    mailed = await credentials.request_reset(ann.email)
    handed = await credentials.create_reset(tenant.id, ann.user_id, OPERATOR)
    assert mailed is not None
    soon = timedelta(seconds=60)
    assert abs(mailed.expires_at - datetime.now(UTC) - RESET_LIFE) < soon
    assert abs(handed.expires_at - datetime.now(UTC) - HANDED_LIFE) < soon
    await change_row(database, "UPDATE password_resets SET expires_at = now() - interval '1 second'")
    for made in (mailed, handed):
        with pytest.raises(ResetInvalid):
            await credentials.reset(made.token, NEW)
    await credentials.check(ann, OLD)


@pytest.mark.parametrize("table", ["users", "tenants"])
async def test_whoever_may_not_sign_in_chooses_no_password_and_is_given_no_token(
    credentials: Credentials, ann: Membership, database: Database, table: str
) -> None:
    made = await credentials.request_reset(ann.email)
    assert made is not None
    await change_row(database, f"UPDATE {table} SET disabled_at = now()")
    with pytest.raises(ResetInvalid):
        await credentials.reset(made.token, NEW)
    assert await credentials.request_reset(ann.email) is None


@pytest.mark.parametrize("email", ["nobody@example.com", "no address", ""])
async def test_nobody_is_given_a_token_for_an_unknown_address(credentials: Credentials, email: str) -> None:
    assert await credentials.request_reset(email) is None


async def test_a_password_that_was_changed_meanwhile_is_not_changed_again_by_the_old_one(
    credentials: Credentials, ann: Membership, monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    hash_password: Callable[[str], str] = passwords.hash_password
    hashed = hash_password(OTHER)
    check = credentials.check

    async def slowly(account: Membership, password: str) -> str:
        found = await check(account, password)
        await change_row(database, f"UPDATE users SET password_hash = '{hashed}'")
        return found

    monkeypatch.setattr(credentials, "check", slowly)
    with pytest.raises(WrongPassword):
        await credentials.change(ann, OLD, NEW, OPERATOR)
    monkeypatch.undo()
    await credentials.check(ann, OTHER)


async def test_a_change_needs_the_password_of_now(credentials: Credentials, ann: Membership) -> None:
    with pytest.raises(WrongPassword):
        await credentials.change(ann, NEW, OTHER, OPERATOR)
    await credentials.change(ann, OLD, NEW, OPERATOR)
    await credentials.check(ann, NEW)


async def test_sessions_are_ended_from_now_on(
    credentials: Credentials, ann: Membership, database: Database
) -> None:
    assert await sessions_from(database) is None
    before = datetime.now(UTC)
    await credentials.end_sessions(ann)
    ended = await sessions_from(database)
    assert ended is not None
    assert ended >= before
