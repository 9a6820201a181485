"""The key secret is rotated with two of them valid: what the old one made works until that is removed."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import redis.asyncio
from sqlalchemy import text

from db.session import EVERY_TENANT, Database
from tenants.actors import OPERATOR
from tenants.audit.service import OPERATOR_CHAIN, AuditLog
from tenants.errors import InviteInvalid, ResetInvalid, WrongCode
from tenants.identities import codes
from tenants.identities.sealing import RotatingSealer, Sealer
from tenants.identities.second_factors import SecondFactors
from tenants.key_secrets import KeySecrets
from tenants.keys import KeyHasher, generate
from tenants.models import Tenant
from tenants.provisioning.errors import InvalidScimToken
from tenants.repository import TenantDirectory
from tenants.resolver import KeyResolver
from tenants.rotation.repository import HashedUse
from tenants.rotation.sealed_columns import SEALED
from tenants.rotation.service import RotationReport, SecretRotation
from tenants.service import AccountServices, account_services
from tenants.settings import TenantSettings
from tests.support.waiting import eventually
from tests.tenants.conftest import SECRET as OLD
from tests.tenants.conftest import gone, refused

NEW = "the secret that follows it, of enough length"
BEGUN, ROTATED, ENDED = KeySecrets(OLD, NEW), KeySecrets(NEW, OLD), KeySecrets(NEW)
PASSWORD = "correct horse battery"
pytestmark = pytest.mark.usefixtures("cheap_passwords")

Resolvers = Callable[[KeySecrets], KeyResolver]


@pytest.fixture
async def process(database: Database, redis_client: redis.asyncio.Redis) -> AsyncIterator[Resolvers]:
    """Makes what an API process with these secrets resolves keys with."""
    made: list[KeyResolver] = []

    def make(secrets: KeySecrets) -> KeyResolver:
        made.append(KeyResolver(database, redis_client, secrets))
        return made[-1]

    yield make
    for resolver in made:
        await resolver.close()


async def report_of(database: Database, secrets: KeySecrets) -> RotationReport:
    return await SecretRotation(database, secrets, SEALED).report()


def use_of(report: RotationReport, what: str) -> tuple[int, int, int]:
    found: HashedUse = next(use for use in report.hashed if use.what == what)
    return found.num_current, found.num_other, found.num_unknown


async def test_a_key_of_the_old_secret_works_until_its_removal_and_for_good_once_it_was_used(
    accounts: AccountServices, tenant: Tenant, database: Database, process: Resolvers
) -> None:
    used = await accounts.keys.create(tenant.id, "used", OPERATOR)
    idle = await accounts.keys.create(tenant.id, "idle", OPERATOR)
    assert (await process(BEGUN).resolve(used.plaintext)).key_id == used.id, "before the new secret makes any"
    assert use_of(await report_of(database, ROTATED), "API keys") == (0, 2, 0)
    during = process(ROTATED)
    assert (await during.resolve(used.plaintext)).key_id == used.id
    assert (await during.resolve(used.plaintext)).key_id == used.id, "from the cache"
    found = await report_of(database, ROTATED)
    assert use_of(found, "API keys") == (1, 1, 0)
    assert found.keys == [(tenant.id, idle.id, idle.prefix)], "to be replaced by hand"
    after = process(ENDED)
    assert (await after.resolve(used.plaintext)).key_id == used.id
    assert await refused(after, idle.plaintext)
    assert (await process(ROTATED).resolve(idle.plaintext)).key_id == idle.id, "nothing was lost"
    assert await refused(process(KeySecrets(OLD)), used.plaintext), "the old secret alone opens nothing new"


async def test_processes_of_every_stage_of_a_rotation_serve_the_same_key(
    database: Database, redis_client: redis.asyncio.Redis, tenant: Tenant, process: Resolvers
) -> None:
    swapped = account_services(database, redis_client, ROTATED)
    key = await swapped.keys.create(tenant.id, "made by a process that is ahead", OPERATOR)
    behind, ahead = process(BEGUN), process(ROTATED)
    for resolver in (behind, ahead, behind, ahead):
        assert (await resolver.resolve(key.plaintext)).key_id == key.id
    assert await refused(behind, generate("inference").plaintext)


@pytest.mark.parametrize("revoker", [BEGUN, ROTATED])
async def test_a_revocation_reaches_caches_under_either_secret(
    revoker: KeySecrets,
    database: Database,
    redis_client: redis.asyncio.Redis,
    accounts: AccountServices,
    tenant: Tenant,
    process: Resolvers,
) -> None:
    key = await accounts.keys.create(tenant.id, "key", OPERATOR)
    resolvers = [process(BEGUN), process(ROTATED)]
    for resolver in resolvers:
        await resolver.start()
        await eventually(lambda resolver=resolver: resolver.listening)
        await resolver.resolve(key.plaintext)
    await account_services(database, redis_client, revoker).keys.revoke(tenant.id, key.id, OPERATOR)
    for resolver in resolvers:
        assert await gone(resolver, key.plaintext) < 2


async def test_a_key_of_an_earlier_release_says_its_secret_once_it_was_used(
    accounts: AccountServices, tenant: Tenant, database: Database, process: Resolvers
) -> None:
    key = await accounts.keys.create(tenant.id, "key", OPERATOR)
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("UPDATE api_keys SET secret_id = NULL"))
    assert use_of(await report_of(database, KeySecrets(OLD)), "API keys") == (0, 0, 1)
    resolver = process(KeySecrets(OLD))
    await resolver.resolve(key.plaintext)
    await resolver.close()
    assert use_of(await report_of(database, KeySecrets(OLD)), "API keys") == (1, 0, 0)


async def test_scim_tokens_move_to_the_new_secret_when_they_are_used(
    accounts: AccountServices, tenant: Tenant, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    token = await accounts.scim_tokens.create(tenant.id, "Okta", OPERATOR)
    stages = {
        name: account_services(database, redis_client, secrets).scim_tokens
        for name, secrets in (("rotated", ROTATED), ("ended", ENDED))
    }
    with pytest.raises(InvalidScimToken):
        await stages["ended"].authenticate(token.plaintext)
    assert (await stages["rotated"].authenticate(token.plaintext)).id == token.row.id
    assert (await stages["ended"].authenticate(token.plaintext)).id == token.row.id
    assert use_of(await report_of(database, ENDED), "SCIM tokens") == (1, 0, 0)


async def test_invitations_and_resets_work_under_both_secrets(
    accounts: AccountServices, tenant: Tenant, database: Database, redis_client: redis.asyncio.Redis
) -> None:
    ann = await accounts.users.create(tenant.id, "ann@example.com", PASSWORD, role="owner")
    invite = await accounts.invites.create(tenant.id, "bob@example.com", "viewer", OPERATOR)
    reset = await accounts.credentials.create_reset(tenant.id, ann.user_id, OPERATOR)
    found = await report_of(database, ROTATED)
    assert use_of(found, "invitations") == use_of(found, "password reset tokens") == (0, 1, 0)
    ended = account_services(database, redis_client, ENDED)
    with pytest.raises(InviteInvalid):
        await ended.invites.accept(invite.token, PASSWORD)
    with pytest.raises(ResetInvalid):
        await ended.credentials.reset(reset.token, "another long password")
    rotated = account_services(database, redis_client, ROTATED)
    assert (await rotated.invites.accept(invite.token, PASSWORD)).email == "bob@example.com"
    await rotated.credentials.reset(reset.token, "another long password")
    assert use_of(await report_of(database, ROTATED), "invitations") == (0, 0, 0)


async def test_second_factors_are_resealed_and_old_recovery_codes_count_as_waiting(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    ann = await accounts.users.create(tenant.id, "ann@example.com", PASSWORD, role="owner")
    old = SecondFactors(database, OLD)
    secret = base64.b32decode((await old.begin(ann)).secret)

    def code(later: int) -> str:
        return codes.code_at(secret, codes.step_of(datetime.now(UTC)) + later)

    recovery = await old.confirm(ann, code(-1), OPERATOR)
    async with database.write(EVERY_TENANT) as session:  # as the release before sealed it
        sealed = Sealer(OLD, "second factors").seal(secret, ann.user_id)
        await session.execute(text("UPDATE second_factors SET secret = :sealed"), {"sealed": sealed})
    rotated = SecondFactors(database, ROTATED)
    assert await rotated.verify(ann.tenant_id, ann.user_id, recovery[0]) == "recovery code"
    with pytest.raises(WrongCode):
        await rotated.verify(ann.tenant_id, ann.user_id, recovery[0])
    rotation = SecretRotation(database, ROTATED, SEALED)
    assert (await rotation.report()).sealed == {"second factors": 1}
    assert [result.num_resealed for result in await rotation.resealer.run()] == [1]
    assert [result.num_resealed for result in await rotation.resealer.run()] == [0], "once"
    found = await rotation.report()
    assert found.sealed == {"second factors": 0}
    assert use_of(found, "users' recovery codes") == (0, 1, 0)
    ended = SecondFactors(database, ENDED)
    assert await ended.verify(ann.tenant_id, ann.user_id, code(0)) == "totp"
    with pytest.raises(WrongCode):
        await ended.verify(ann.tenant_id, ann.user_id, recovery[1])
    await rotated.renew_recovery(ann, code(1), OPERATOR)
    assert (await rotation.report()).num_waiting == 0


async def test_what_neither_secret_opens_is_named_and_left_as_it_is(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    users = [
        await accounts.users.create(tenant.id, f"{name}@example.com", PASSWORD, role="owner") for name in "ab"
    ]
    await SecondFactors(database, "a secret of long ago, with enough length").begin(users[0])
    await SecondFactors(database, OLD).begin(users[1])
    rotation = SecretRotation(database, ROTATED, SEALED)
    told: list[tuple[str, int]] = []
    (result,) = await rotation.resealer.run(lambda what, num: told.append((what, num)), batch_size=1)
    assert (result.num_resealed, result.num_unreadable) == (1, 1)
    assert result.unreadable == [users[0].user_id]
    assert told[-1] == ("second factors", 1)
    assert (await rotation.report()).sealed == {"second factors": 1}


async def test_a_row_that_changes_while_it_is_resealed_keeps_its_change(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    ann = await accounts.users.create(tenant.id, "ann@example.com", PASSWORD, role="owner")
    await SecondFactors(database, OLD).begin(ann)
    changed = b"changed meanwhile"

    rotation = SecretRotation(database, ROTATED, SEALED)
    (_, _, rows) = rotation.resealer._columns[0]
    async with database.read(EVERY_TENANT) as session:
        (row,) = await rows.due(session, None, 10)
    async with database.write(EVERY_TENANT) as writing:
        await writing.execute(text("UPDATE second_factors SET secret = :secret"), {"secret": changed})
        assert await rows.replace(writing, [rows.parameters(row, b"resealed")]) == 0
    async with database.read(EVERY_TENANT) as session:
        assert (
            bytes((await session.execute(text("SELECT secret FROM second_factors"))).scalar_one()) == changed
        )


async def test_rotations_are_in_the_services_audit_log(database: Database) -> None:
    rotation = SecretRotation(database, ROTATED, SEALED)
    await rotation.record("rotated", "key-secret", {"num_waiting": 0})
    with pytest.raises(ValueError, match="no secret is called 'colour': use one of key-secret, client-key"):
        await rotation.record("rotated", "colour")
    (entry,) = await AuditLog(database).list(OPERATOR_CHAIN)
    assert (entry.type, entry.target_id, entry.details) == (
        "secret.rotated",
        "key-secret",
        {"num_waiting": 0},
    )
    assert await AuditLog(database).verify(OPERATOR_CHAIN) is None


def test_sealed_values_say_which_secret_they_need() -> None:
    old, new = RotatingSealer(OLD, "tests"), RotatingSealer(ROTATED, "tests")
    sealed = old.seal(b"text", "row_1")
    assert Sealer(OLD, "tests").open(sealed, "row_1") == b"text", "as a release does that knows no labels"
    assert RotatingSealer(BEGUN, "tests").seal(b"text", "row_1").startswith(old.label)
    assert new.open(sealed, "row_1") == b"text"
    resealed = new.seal(b"text", "row_1")
    assert resealed.startswith(new.label)
    assert new.label != old.label
    assert RotatingSealer(BEGUN, "tests").open(resealed, "row_1") == b"text", "a process that is behind"
    for sealer, value, whose in (
        (RotatingSealer(ENDED, "tests"), sealed, "row_1"),
        (old, resealed, "row_1"),
        (new, sealed, "row_2"),
        (new, sealed[:-1] + bytes([sealed[-1] ^ 1]), "row_1"),
    ):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            sealer.open(value, whose)
    assert OLD not in repr(new)
    assert OLD not in repr(ROTATED)


def test_settings_take_the_previous_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_TENANTS_KEY_SECRET", NEW)
    assert TenantSettings().key_secrets() == ENDED
    monkeypatch.setenv("ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET", OLD)
    assert TenantSettings().key_secrets() == ROTATED
    for wrong, said in ((NEW, "is the current one"), ("short", "at least 32 items")):
        monkeypatch.setenv("ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET", wrong)
        with pytest.raises(ValueError, match=said):
            TenantSettings()


def test_a_hasher_of_one_secret_looks_for_one_digest() -> None:
    assert KeyHasher(OLD).other_digest("key") is None
    assert KeyHasher(ROTATED).digests("key") == [KeyHasher(NEW).digest("key"), KeyHasher(OLD).digest("key")]
    assert KeySecrets.of(OLD).id != KeySecrets.of(NEW).id


async def test_processes_that_meet_a_key_at_the_same_time_both_accept_it(
    accounts: AccountServices, tenant: Tenant, process: Resolvers, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await accounts.keys.create(tenant.id, "key", OPERATOR)
    one, other = process(ROTATED), process(ROTATED)
    look_up, has_met = TenantDirectory.keys_by_digest, False

    async def meeting(directory: TenantDirectory, digests: Sequence[bytes]) -> Any:
        nonlocal has_met
        found = await look_up(directory, digests)
        if not has_met:
            has_met = True
            await other.resolve(key.plaintext)  # stores it under the new secret meanwhile
        return found

    monkeypatch.setattr(TenantDirectory, "keys_by_digest", meeting)
    assert (await one.resolve(key.plaintext)).key_id == key.id
    assert has_met
