"""What keys may be used for, their rotation, and who may make which. Their resolving: `test_service`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from db.errors import UnknownCursor
from db.session import Database
from tenants.actors import OPERATOR, Actor
from tenants.errors import (
    AddressNotAllowed,
    InvalidApiKey,
    KeyNotActive,
    KeyNotFound,
    ProjectArchived,
    ProjectNotFound,
    RightsNotHeld,
    ServiceAccountNotFound,
    UserNotFound,
)
from tenants.key_service import KeyChanges, KeyRestrictions
from tenants.limits.kinds import Limit, Metric
from tenants.limits.repository import LimitRepository
from tenants.models import Tenant
from tenants.quotas.plan import bucket_key
from tenants.resolver import KeyResolver
from tenants.service import AccountServices
from tests.support.waiting import eventually
from tests.tenants.conftest import gone, refused

pytestmark = pytest.mark.usefixtures("cheap_passwords")

HOUR = timedelta(hours=1)


async def test_a_key_carries_its_project_owner_models_and_networks(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    user = await accounts.users.create(tenant.id, "ann@example.com", "correct horse")
    restrictions = KeyRestrictions(
        scopes=frozenset({"model.request"}),
        models=frozenset({"base:*", "base:one@2"}),
        networks=("10.0.0.0/8", "2001:db8::/32", "192.0.2.7"),
        origins=("https://App.example:443", "http://localhost:3000"),
    )
    made = await accounts.keys.create(
        tenant.id, "web", OPERATOR, project_id=project.id, user_id=user.user_id, restrictions=restrictions
    )
    caller = await resolver.resolve(made.plaintext, "10.1.2.3")
    assert (caller.project_id, caller.user_id) == (project.id, user.user_id)
    assert caller.models == restrictions.models
    assert [str(network) for network in caller.networks] == ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]
    assert caller.origins == {"https://app.example", "http://localhost:3000"}
    assert caller.may_use("base:one")
    assert not caller.may_use("base")
    shown, owner, account = await accounts.keys.get(tenant.id, made.id)
    assert (shown.id, owner.email if owner else None, account) == (made.id, "ann@example.com", None)


async def test_keys_go_to_the_default_project_and_admin_keys_to_none(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    default = await accounts.projects.default(tenant.id)
    inference = await accounts.keys.create(tenant.id, "a", OPERATOR)
    admin = await accounts.keys.create(tenant.id, "b", OPERATOR, kind="admin")
    assert (await resolver.resolve(inference.plaintext)).project_id == default.id
    assert (await resolver.resolve(admin.plaintext)).project_id is None
    with pytest.raises(ValueError, match="kind"):
        await accounts.keys.create(tenant.id, "c", OPERATOR, kind="admin", project_id=default.id)


async def test_a_key_works_from_its_networks_only(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    key = await accounts.keys.create(
        tenant.id, "ci", OPERATOR, restrictions=KeyRestrictions(networks=("192.0.2.0/24",))
    )
    for address in ("192.0.2.1", "::ffff:192.0.2.255"):
        assert (await resolver.resolve(key.plaintext, address)).key_id == key.id
    for elsewhere in ("192.0.3.1", "2001:db8::1", None):
        with pytest.raises(AddressNotAllowed, match=elsewhere or "unknown address"):
            await resolver.resolve(key.plaintext, elsewhere)
    await accounts.keys.update(tenant.id, key.id, KeyChanges(networks=()), OPERATOR)

    async def let_in() -> bool:
        return not await refused(resolver, key.plaintext, "192.0.3.1")

    assert await eventually(let_in) < 5
    assert not await refused(resolver, key.plaintext)


async def test_changes_are_heard_and_what_is_not_named_stays(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    ends = datetime.now(UTC) + HOUR
    restrictions = KeyRestrictions(models=frozenset({"base"}), expires_at=ends)
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR, restrictions=restrictions)
    assert (await resolver.resolve(key.plaintext)).models == {"base"}
    changes = KeyChanges(name="robot", models=frozenset({"base:one"}), scopes=frozenset({"models.read"}))
    shown, _, _ = await accounts.keys.update(tenant.id, key.id, changes, OPERATOR)
    assert (shown.name, shown.expires_at) == ("robot", ends)

    async def heard() -> bool:
        caller = await resolver.resolve(key.plaintext)
        return caller.models == {"base:one"} and caller.scopes == {"models.read"}

    assert await eventually(heard) < 5
    shown, _, _ = await accounts.keys.update(tenant.id, key.id, KeyChanges(expires_at=None), OPERATOR)
    assert (shown.name, shown.expires_at) == ("robot", None)


async def test_a_rotated_key_works_on_until_its_grace_ends(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    restrictions = KeyRestrictions(frozenset({"model.request"}), frozenset({"base"}), ("0.0.0.0/0",))
    old = await accounts.keys.create(
        tenant.id, "ci", OPERATOR, project_id=project.id, restrictions=restrictions
    )
    before = await resolver.resolve(old.plaintext, "192.0.2.1")
    new = await accounts.keys.rotate(tenant.id, old.id, OPERATOR, grace=timedelta(seconds=2))
    after = await resolver.resolve(new.plaintext, "192.0.2.1")
    assert replace(after, key_id=old.id) == before, "the same but for its id"
    assert (await resolver.resolve(old.plaintext, "192.0.2.1")).key_id == old.id, "in its grace"
    shown, _, _ = await accounts.keys.get(tenant.id, old.id)
    assert shown.replaced_by == new.id
    assert shown.rotated_at is not None
    await gone(resolver, old.plaintext)
    assert (await resolver.resolve(new.plaintext, "192.0.2.1")).key_id == new.id


async def test_a_rotated_keys_limits_go_on_with_the_new_one(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant, database: Database
) -> None:
    old, bystander = [await accounts.keys.create(tenant.id, name, OPERATOR) for name in ("old", "other")]
    async with database.write(tenant.id) as session:
        limits = LimitRepository(session, tenant.id)
        await limits.set(Limit("key", old.id, "", Metric.REQUESTS_PER_MINUTE, 7))
        await limits.set(Limit("key", bystander.id, "", Metric.REQUESTS_PER_MINUTE, 9))
        await limits.set(Limit("tenant", tenant.id, "base", Metric.TOKENS_PER_MINUTE, 100))
    new = await accounts.keys.rotate(tenant.id, old.id, OPERATOR)
    held = (await resolver.resolve(new.plaintext)).limits
    assert [(one.scope, one.scope_id, one.amount) for one in held if one.scope == "key"] == [
        ("key", new.id, 7)
    ]
    assert any(one.model == "base" for one in held)
    assert (
        Limit("key", old.id, "", Metric.REQUESTS_PER_MINUTE, 7)
        in (await resolver.resolve(old.plaintext)).limits
    )
    newest = await accounts.keys.rotate(tenant.id, new.id, OPERATOR)
    for key in (old, new, newest):
        [own] = [one for one in (await resolver.resolve(key.plaintext)).limits if one.scope == "key"]
        assert own.counted_id == old.id, "a new key is no new budget"
        assert bucket_key(tenant.id, own).endswith(f":{old.id}:".encode())


async def test_a_rotation_without_grace_ends_the_old_key_at_once(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant
) -> None:
    old = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    await resolver.resolve(old.plaintext)
    new = await accounts.keys.rotate(tenant.id, old.id, OPERATOR, grace=timedelta(0))
    assert await gone(resolver, old.plaintext) < 5
    assert not await refused(resolver, new.plaintext)


async def test_a_rotation_gives_the_new_key_the_life_the_old_one_had(
    accounts: AccountServices, tenant: Tenant
) -> None:
    restrictions = KeyRestrictions(expires_at=datetime.now(UTC) + 2 * HOUR)
    old = await accounts.keys.create(tenant.id, "ci", OPERATOR, restrictions=restrictions)
    new = await accounts.keys.rotate(tenant.id, old.id, OPERATOR, grace=timedelta(days=1))
    shown, _, _ = await accounts.keys.get(tenant.id, old.id)
    assert shown.expires_at == restrictions.expires_at, "a grace does not lengthen a life"
    assert new.expires_at is not None
    assert timedelta(0) <= new.expires_at - restrictions.expires_at < HOUR  # type: ignore[operator]


async def test_what_has_ended_is_not_rotated_nor_changed(
    accounts: AccountServices, tenant: Tenant, database: Database
) -> None:
    keys = accounts.keys
    revoked, rotated, expired = [await keys.create(tenant.id, name, OPERATOR) for name in "abc"]
    await keys.revoke(tenant.id, revoked.id, OPERATOR)
    await keys.rotate(tenant.id, rotated.id, OPERATOR)
    async with database.write(tenant.id) as session:
        await session.execute(
            text("UPDATE api_keys SET expires_at = now() - interval '1 s' WHERE id = :id"), {"id": expired.id}
        )
    for key, state in ((revoked, "revoked"), (rotated, "rotated"), (expired, "expired")):
        with pytest.raises(KeyNotActive, match=state):
            await keys.rotate(tenant.id, key.id, OPERATOR)
    with pytest.raises(KeyNotActive, match="revoked"):
        await keys.update(tenant.id, revoked.id, KeyChanges(name="x"), OPERATOR)
    with pytest.raises(KeyNotActive, match="grace"):
        await keys.update(tenant.id, rotated.id, KeyChanges(expires_at=None), OPERATOR)
    for grace in (timedelta(seconds=-1), timedelta(days=31)):
        with pytest.raises(ValueError, match="grace"):
            await keys.rotate(tenant.id, expired.id, OPERATOR, grace=grace)
    # An expired key may be given a longer life.
    later = KeyChanges(expires_at=datetime.now(UTC) + HOUR)
    assert (await keys.update(tenant.id, expired.id, later, OPERATOR))[0].expires_at == later.expires_at


async def test_two_who_rotate_a_key_at_once_make_one(accounts: AccountServices, tenant: Tenant) -> None:
    old = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    made = await asyncio.gather(
        *(accounts.keys.rotate(tenant.id, old.id, OPERATOR) for _ in range(4)), return_exceptions=True
    )
    assert [isinstance(one, KeyNotActive) for one in made].count(False) == 1
    assert len(await accounts.keys.list(tenant.id)) == 2


SENSELESS = [
    KeyRestrictions(scopes=frozenset({"Everything!"})),
    KeyRestrictions(models=frozenset({"base:one@0"})),
    KeyRestrictions(models=frozenset({"*"})),
    KeyRestrictions(models=frozenset({"base:"})),
    KeyRestrictions(models=frozenset(f"base:{n}" for n in range(257))),
    KeyRestrictions(networks=("10.0.0.1/8",)),
    KeyRestrictions(origins=("https://app.example/",)),
    KeyRestrictions(expires_at=datetime(2099, 1, 1)),
    KeyRestrictions(expires_at=datetime(2020, 1, 1, tzinfo=UTC)),
]


async def test_terms_that_make_no_sense_are_named(accounts: AccountServices, tenant: Tenant) -> None:
    key = await accounts.keys.create(tenant.id, "ci", OPERATOR)
    for restrictions in SENSELESS:
        fields = ("scopes", "models", "networks", "origins", "expires_at")
        given = {name: getattr(restrictions, name) for name in fields}
        [field] = [name for name, value in given.items() if value]
        with pytest.raises(ValueError, match=f"^{field}"):
            await accounts.keys.create(tenant.id, "ci", OPERATOR, restrictions=restrictions)
        with pytest.raises(ValueError, match=f"^{field}"):
            await accounts.keys.update(tenant.id, key.id, KeyChanges(**{field: given[field]}), OPERATOR)


async def test_nobody_passes_on_rights_they_do_not_hold(accounts: AccountServices, tenant: Tenant) -> None:
    """A key that may write keys could otherwise make one that may do everything."""
    keys = accounts.keys
    keeper = Actor(
        "api_key", "key_1", scopes=frozenset({"organization.keys.write", "organization.keys.read"})
    )
    less = KeyRestrictions(frozenset({"organization.keys.read"}))
    made = await keys.create(tenant.id, "less", keeper, kind="admin", restrictions=less)
    for restrictions in (KeyRestrictions(), KeyRestrictions(frozenset({"organization.members.write"}))):
        with pytest.raises(RightsNotHeld, match="scopes"):
            await keys.create(tenant.id, "more", keeper, kind="admin", restrictions=restrictions)
        with pytest.raises(RightsNotHeld, match="scopes"):
            await keys.update(tenant.id, made.id, KeyChanges(scopes=restrictions.scopes), keeper)
    whole = await keys.create(tenant.id, "whole", OPERATOR, kind="admin")
    with pytest.raises(RightsNotHeld):
        await keys.rotate(tenant.id, whole.id, keeper)
    await keys.rotate(tenant.id, made.id, keeper)
    await keys.create(tenant.id, "models", keeper)  # asking models is no right over the account


async def test_nobody_but_owners_gets_a_key_that_acts_for_somebody_else(
    accounts: AccountServices, tenant: Tenant
) -> None:
    """With an owner's key, or one of nobody, an admin could make themselves an owner."""
    keys = accounts.keys
    ann = await accounts.users.create(tenant.id, "ann@example.com", "correct horse")
    bob = await accounts.users.create(tenant.id, "bob@example.com", "correct horse", role="admin")
    restrictions = KeyRestrictions(frozenset({"organization.members.write"}))
    anns = await keys.create(tenant.id, "a", ann.actor(), kind="admin", restrictions=restrictions)
    unowned = await keys.create(tenant.id, "u", OPERATOR, kind="admin", restrictions=restrictions)
    bobs = await keys.create(tenant.id, "b", bob.actor(), kind="admin", restrictions=restrictions)
    assert (anns.row.user_id, unowned.row.user_id, bobs.row.user_id) == (ann.user_id, None, bob.user_id)
    with_key = Actor("api_key", bobs.id, scopes=restrictions.scopes, user_id=bob.user_id)
    for actor in (bob.actor(), with_key):
        for key in (anns, unowned):
            with pytest.raises(RightsNotHeld, match="user_id"):
                await keys.rotate(tenant.id, key.id, actor)
        with pytest.raises(RightsNotHeld, match="user_id"):
            await keys.create(
                tenant.id, "x", actor, kind="admin", user_id=ann.user_id, restrictions=restrictions
            )
    made_with_it = await keys.create(tenant.id, "y", with_key, kind="admin", restrictions=restrictions)
    assert made_with_it.row.user_id == bob.user_id, "whatever makes it, it is Bob's"
    await keys.rotate(tenant.id, bobs.id, with_key)
    await keys.rotate(tenant.id, unowned.id, ann.actor())
    for_bob = await keys.create(tenant.id, "z", ann.actor(), kind="admin", user_id=bob.user_id)
    assert for_bob.row.user_id == bob.user_id


async def test_a_key_is_made_for_what_is_there(
    accounts: AccountServices, tenant: Tenant, other: Tenant
) -> None:
    theirs = await accounts.projects.default(other.id)
    closed = await accounts.projects.create(tenant.id, "old", OPERATOR)
    await accounts.projects.archive(tenant.id, closed.id, OPERATOR)
    stranger = await accounts.users.create(other.id, "bob@example.com", "correct horse")
    account = await accounts.service_accounts.create(other.id, theirs.id, "bot", OPERATOR)
    mine = await accounts.projects.create(tenant.id, "new", OPERATOR)
    own = await accounts.service_accounts.create(tenant.id, mine.id, "bot", OPERATOR)
    default = await accounts.projects.default(tenant.id)
    for error, options in (
        (ProjectNotFound, {"project_id": theirs.id}),
        (ProjectNotFound, {"project_id": "proj_\x00"}),
        (ProjectArchived, {"project_id": closed.id}),
        (UserNotFound, {"user_id": stranger.user_id}),
        (ServiceAccountNotFound, {"service_account_id": account.id}),
        (ServiceAccountNotFound, {"service_account_id": own.id, "project_id": default.id}),
    ):
        with pytest.raises(error):
            await accounts.keys.create(tenant.id, "ci", OPERATOR, **options)
    made = await accounts.keys.create(tenant.id, "ci", OPERATOR, service_account_id=own.id)
    assert made.row.project_id == mine.id


async def test_another_kind_or_project_is_another_key(accounts: AccountServices, tenant: Tenant) -> None:
    admin = await accounts.keys.create(tenant.id, "a", OPERATOR, kind="admin")
    elsewhere = await accounts.projects.create(tenant.id, "web", OPERATOR)
    key = await accounts.keys.create(tenant.id, "b", OPERATOR)
    for options, found in (({"kind": "inference"}, admin), ({"project_id": elsewhere.id}, key)):
        with pytest.raises(KeyNotFound):
            await accounts.keys.update(tenant.id, found.id, KeyChanges(name="x"), OPERATOR, **options)
        with pytest.raises(KeyNotFound):
            await accounts.keys.rotate(tenant.id, found.id, OPERATOR, **options)
        with pytest.raises(KeyNotFound):
            await accounts.keys.revoke(tenant.id, found.id, OPERATOR, **options)
    with pytest.raises(KeyNotFound):
        await accounts.keys.get(tenant.id, admin.id, kind="inference")


async def test_lists_are_paged_and_filtered(accounts: AccountServices, tenant: Tenant) -> None:
    project = await accounts.projects.create(tenant.id, "web", OPERATOR)
    made = [(await accounts.keys.create(tenant.id, str(n), OPERATOR)).id for n in range(3)]
    made += [(await accounts.keys.create(tenant.id, "w", OPERATOR, project_id=project.id)).id]
    admin = (await accounts.keys.create(tenant.id, "a", OPERATOR, kind="admin")).id
    await accounts.keys.revoke(tenant.id, made[1], OPERATOR)

    async def ids(**options: object) -> list[str]:
        return [row[0].id for row in await accounts.keys.list(tenant.id, **options)]  # type: ignore[arg-type]

    assert await ids() == [admin, made[3], made[2], made[0]]
    assert await ids(newest_first=False, with_revoked=True, limit=3) == made[:3]
    assert await ids(newest_first=False, after=made[2]) == [made[3], admin]
    assert await ids(kind="inference", project_id=project.id) == [made[3]]
    assert await ids(kind="admin") == [admin]
    for absent in ("key_none", "no id\x00", project.id):
        with pytest.raises(UnknownCursor):
            await ids(after=absent)


async def test_a_disabled_tenants_keys_and_no_others_are_looked_up_again(
    accounts: AccountServices, resolver: KeyResolver, tenant: Tenant, other: Tenant
) -> None:
    ours = await accounts.keys.create(tenant.id, "a", OPERATOR)
    theirs = await accounts.keys.create(other.id, "b", OPERATOR)
    for key in (ours, theirs):
        await resolver.resolve(key.plaintext)
    await accounts.tenants.set_tenant_disabled(tenant.id, True)
    assert await gone(resolver, ours.plaintext) < 5
    kept = list(resolver._cache._present)
    assert [group for group, _ in kept] == [accounts.keys._hasher.digest(theirs.plaintext).hex()]
    with pytest.raises(InvalidApiKey):
        await resolver.resolve(ours.plaintext)
