from __future__ import annotations

import argon2
import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from tenants import passwords
from tenants.accounts import UserAccounts
from tenants.audit.service import AuditLog
from tenants.errors import NameTaken, TenantNotFound
from tenants.service import TenantService

PASSWORD = "correct horse battery"


@pytest.fixture
def service(database: Database, redis_client: redis.asyncio.Redis) -> TenantService:
    return TenantService(database, redis_client)


@pytest.fixture
def accounts(database: Database, cheap_passwords: None) -> UserAccounts:
    return UserAccounts(database)


async def test_a_user_signs_in_with_the_right_password_only(
    accounts: UserAccounts, service: TenantService
) -> None:
    tenant = await service.create_tenant("acme")
    made = await accounts.create(tenant.id, "Ann@Example.com", PASSWORD)
    assert (made.email, made.role, made.tenant_name) == ("ann@example.com", "owner", "acme")
    assert await accounts.authenticate("ANN@example.com", PASSWORD) == made
    assert await accounts.authenticate("ann@example.com", PASSWORD + "!") is None
    assert await accounts.authenticate("bob@example.com", PASSWORD) is None
    assert await accounts.authenticate("\x00", PASSWORD) is None
    assert await accounts.find(made.user_id, tenant.id) == made


async def test_the_password_is_stored_as_argon2id(
    accounts: UserAccounts, service: TenantService, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    await accounts.create(tenant.id, "ann@example.com", PASSWORD)
    async with database.read(EVERY_TENANT) as session:
        stored = (await session.execute(text("SELECT row_to_json(u)::text FROM users u"))).scalar_one()
    assert "$argon2id$" in stored
    assert PASSWORD not in stored


async def test_an_absent_user_costs_a_verification_all_the_same(
    accounts: UserAccounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str | None] = []
    real = passwords.verify_password

    def note(password_hash: str | None, password: str) -> bool:
        verified.append(password_hash)
        return real(password_hash, password)

    monkeypatch.setattr(passwords, "verify_password", note)
    assert await accounts.authenticate("nobody@example.com", "no user has this password") is None
    assert verified == [None]


def test_the_hash_of_nobody_costs_what_the_hashes_of_today_do() -> None:
    assert argon2.PasswordHasher().check_needs_rehash(passwords._ABSENT) is False
    assert argon2.PasswordHasher().verify(passwords._ABSENT, "no user has this password")
    assert not passwords.verify_password(None, "no user has this password")


async def test_hashes_of_another_day_are_renewed_at_sign_in(
    accounts: UserAccounts, service: TenantService, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    await accounts.create(tenant.id, "ann@example.com", PASSWORD)
    weak = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(PASSWORD)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE users SET password_hash = :weak"), {"weak": weak})
    assert await accounts.authenticate("ann@example.com", PASSWORD) is not None
    async with database.read(EVERY_TENANT) as session:
        stored = (await session.execute(text("SELECT password_hash FROM users"))).scalar_one()
    assert stored != weak
    assert await accounts.authenticate("ann@example.com", PASSWORD) is not None


async def test_disabled_users_and_tenants_are_shut_out(
    accounts: UserAccounts, service: TenantService, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    made = await accounts.create(tenant.id, "ann@example.com", PASSWORD)
    await service.set_tenant_disabled(tenant.id, True)
    assert await accounts.authenticate("ann@example.com", PASSWORD) is None
    assert await accounts.find(made.user_id, tenant.id) is None
    await service.set_tenant_disabled(tenant.id, False)
    assert await accounts.find(made.user_id, tenant.id) == made
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE users SET disabled_at = now()"))
    assert await accounts.authenticate("ann@example.com", PASSWORD) is None
    assert await accounts.find(made.user_id, tenant.id) is None


async def test_a_user_is_found_in_its_own_tenant_only(accounts: UserAccounts, service: TenantService) -> None:
    ours, theirs = [await service.create_tenant(name) for name in ("ours", "theirs")]
    made = await accounts.create(theirs.id, "ann@example.com", PASSWORD)
    assert await accounts.find(made.user_id, ours.id) is None


async def test_what_is_wrong_with_a_new_user_is_named(accounts: UserAccounts, service: TenantService) -> None:
    tenant = await service.create_tenant("acme")
    await accounts.create(tenant.id, "ann@example.com", PASSWORD)
    with pytest.raises(NameTaken, match=r"ann@example\.com"):
        await accounts.create(tenant.id, "ANN@example.com", PASSWORD)
    with pytest.raises(TenantNotFound):
        await accounts.create("tnt_nobody", "bob@example.com", PASSWORD)
    with pytest.raises(ValueError, match="email"):
        await accounts.create(tenant.id, "not an address", PASSWORD)
    with pytest.raises(ValueError, match="role"):
        await accounts.create(tenant.id, "bob@example.com", PASSWORD, role="root")  # type: ignore[arg-type]
    for password in ("short", "x" * 1025):
        with pytest.raises(ValueError, match="password"):
            await accounts.create(tenant.id, "bob@example.com", password)


async def test_who_signed_in_is_in_the_log_and_who_did_not_is_not(
    accounts: UserAccounts, service: TenantService, database: Database
) -> None:
    tenant = await service.create_tenant("acme")
    made = await accounts.create(tenant.id, "ann@example.com", PASSWORD)
    log = AuditLog(database)
    before = len(await log.list(tenant.id))
    assert await accounts.authenticate("ann@example.com", PASSWORD[::-1]) is None
    assert await accounts.authenticate("ann@example.com", PASSWORD) == made
    assert len(await log.list(tenant.id)) == before
    await accounts.record_sign_in(made, "password", address="192.0.2.1", request_id="req_1")
    entry, *_ = await log.list(tenant.id)
    assert (entry.type, entry.target_id) == ("login.succeeded", made.user_id)
    assert (entry.actor["email"], entry.actor["address"]) == ("ann@example.com", "192.0.2.1")
