from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from adapters.bases import Bases
from adapters.catalogue import AdapterCatalogue
from adapters.errors import (
    AdapterNotFound,
    ModelNotFound,
    ModelNotReady,
    VersionNotFound,
    VersionNotReady,
)
from adapters.resolver import ModelCard, ModelResolver, ResolvedModel
from adapters.service import AdapterChanges, AdapterService, RegisteredVersion
from db.errors import DatabaseUnavailable
from db.session import EVERY_TENANT, Database
from engine.protocol import AdapterRef
from tenants.service import TenantService
from tests.support.statements import Statements
from tests.support.waiting import eventually

BASE_DIGEST = "b" * 64


def ref(digit: str, rank: int = 8) -> AdapterRef:
    return AdapterRef(digit * 64, rank)


@pytest.fixture
def service(database: Database, redis_client: redis.asyncio.Redis) -> AdapterService:
    return AdapterService(database, redis_client, Bases("sapling"))


@pytest.fixture
async def resolver(database: Database, redis_client: redis.asyncio.Redis) -> AsyncIterator[ModelResolver]:
    made = ModelResolver(database, redis_client, Bases("sapling"), base_created=1_700_000_000)
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


@pytest.fixture
async def tenants(database: Database, redis_client: redis.asyncio.Redis) -> tuple[str, str]:
    service = TenantService(database, redis_client)
    ours, theirs = [await service.create_tenant(name) for name in ("ours", "theirs")]
    return ours.id, theirs.id


async def register(
    service: AdapterService, tenant: str, name: str, which: AdapterRef, **options: bool
) -> RegisteredVersion:
    return await service.register_version(tenant, name, which, base_digest=BASE_DIGEST, size=123, **options)


async def set_state(database: Database, version: int, state: str) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(
            text("UPDATE adapter_versions SET state = :state WHERE version = :version"),
            {"state": state, "version": version},
        )


async def test_every_form_of_a_name(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str]
) -> None:
    ours, _ = tenants
    one = await register(service, ours, "pirate", ref("1"))
    two = await register(service, ours, "pirate", ref("2", rank=16))
    assert (one.name, two.name) == ("sapling:pirate@1", "sapling:pirate@2")
    first = ResolvedModel("sapling:pirate@1", ref("1"), one.adapter_id, 1)
    second = ResolvedModel("sapling:pirate@2", ref("2", rank=16), one.adapter_id, 2)
    assert await resolver.resolve(ours, "sapling") == ResolvedModel("sapling")
    assert await resolver.resolve(ours, "sapling:pirate") == second
    assert await resolver.resolve(ours, "sapling:pirate@1") == first
    assert await resolver.resolve(ours, "sapling:pirate@2") == second
    assert await resolver.resolve(ours, one.adapter_id) == second


async def test_what_is_another_tenants_does_not_exist(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str], database: Database
) -> None:
    ours, theirs = tenants
    made = await register(service, theirs, "pirate", ref("1"))
    assert (await resolver.resolve(theirs, "sapling:pirate")).version == 1
    for model in ("sapling:pirate", "sapling:pirate@1", made.adapter_id):
        with Statements(database) as statements, pytest.raises(ModelNotFound) as foreign:
            await resolver.resolve(ours, model)
        assert foreign.value.model == model
        assert len(statements.seen) == 1
    with Statements(database) as statements, pytest.raises(ModelNotFound) as absent:
        await resolver.resolve(ours, "sapling:absent")
    assert len(statements.seen) == 1, "as much work for what nobody has"
    assert str(foreign.value) == str(absent.value).replace("sapling:absent", made.adapter_id)
    catalogue = AdapterCatalogue(database, Bases("sapling"))
    for adapter in ("pirate", made.adapter_id):
        for action in (
            service.activate(ours, adapter, 1),
            service.rollback(ours, adapter),
            service.update(ours, adapter, AdapterChanges(description="mine now")),
            service.set_disabled(ours, adapter, True),
            service.set_version_disabled(ours, adapter, 1, True),
            service.override(ours, adapter, 1, "because"),
            catalogue.get(ours, adapter),
            catalogue.versions(ours, adapter),
            catalogue.version(ours, adapter, 1),
            catalogue.events(ours, adapter),
        ):
            with pytest.raises(AdapterNotFound) as refused:
                await action
            assert refused.value.adapter_id == adapter
    assert [card.id for card in await resolver.list(ours)] == ["sapling"]


async def test_both_tenants_may_use_one_name(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str]
) -> None:
    for tenant, which in zip(tenants, "12", strict=True):
        await register(service, tenant, "pirate", ref(which))
    for tenant, which in zip(tenants, "12", strict=True):
        assert (await resolver.resolve(tenant, "sapling:pirate")).adapter == ref(which)


@pytest.mark.parametrize(
    "model",
    [
        "",
        "oak",
        "oak:pirate",
        "sapling:absent",
        "sapling:pirate@9",
        "Sapling",
        "sapling:",
        "\x00",
        "x" * 9999,
    ],
)
async def test_what_is_not_there_is_never_the_base(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str], model: str
) -> None:
    await register(service, tenants[0], "pirate", ref("1"))
    with pytest.raises(ModelNotFound):
        await resolver.resolve(tenants[0], model)
    with pytest.raises(ModelNotFound):
        await resolver.card(tenants[0], model)


async def test_a_hit_asks_nobody(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str], database: Database
) -> None:
    await register(service, tenants[0], "pirate", ref("1"))
    with Statements(database) as statements:
        await asyncio.gather(*(resolver.resolve(tenants[0], "sapling:pirate") for _ in range(50)))
        await resolver.resolve(tenants[0], "sapling")
    assert len(statements.seen) == 1


async def test_changes_are_heard_within_a_second(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str]
) -> None:
    ours, _ = tenants

    async def serves(version: int | None) -> bool:
        try:
            return (await resolver.resolve(ours, "sapling:pirate")).version == version
        except ModelNotFound:
            return version is None

    assert await serves(None)
    await register(service, ours, "pirate", ref("1"))
    assert await eventually(lambda: serves(1)) < 1
    await register(service, ours, "pirate", ref("2"))
    assert await eventually(lambda: serves(2)) < 1
    await service.activate(ours, "pirate", 1)
    assert await eventually(lambda: serves(1)) < 1
    await service.set_disabled(ours, "pirate", True)
    assert await eventually(lambda: serves(None)) < 1
    await service.set_disabled(ours, "pirate", False)
    assert await eventually(lambda: serves(1)) < 1


async def test_the_same_weights_again_change_no_version(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str], database: Database
) -> None:
    ours, _ = tenants
    first = await register(service, ours, "pirate", ref("1"))
    await register(service, ours, "pirate", ref("2"))
    again = await register(service, ours, "pirate", ref("1"))
    assert (first.created, again.created, again.version) == (True, False, 1)
    _, versions = await AdapterCatalogue(database, Bases("sapling")).versions(ours, "pirate")
    assert [version.version for version in versions] == [1, 2]
    assert (await resolver.resolve(ours, "sapling:pirate")).version == 1, "registering activates"


async def test_a_version_may_wait_for_its_activation(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str]
) -> None:
    ours, _ = tenants
    await register(service, ours, "pirate", ref("1"), activate=False)
    with pytest.raises(ModelNotReady, match="no version is active"):
        await resolver.resolve(ours, "sapling:pirate")
    assert (await resolver.resolve(ours, "sapling:pirate@1")).version == 1
    assert [card.id for card in await resolver.list(ours)] == ["sapling"]


@pytest.mark.parametrize("state", ["validating", "failed"])
async def test_what_is_not_ready_says_so(
    service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str], database: Database, state: str
) -> None:
    ours, _ = tenants
    await register(service, ours, "pirate", ref("1"))
    await register(service, ours, "pirate", ref("2"), activate=False)
    await set_state(database, 2, state)
    for ask in (resolver.resolve, resolver.card):
        with pytest.raises(ModelNotReady) as caught:
            await ask(ours, "sapling:pirate@2")
        assert (caught.value.model, caught.value.state) == ("sapling:pirate@2", state)
    with pytest.raises(VersionNotReady) as refused:
        await service.activate(ours, "pirate", 2)
    assert (refused.value.version, refused.value.state) == (2, state)
    assert (await resolver.resolve(ours, "sapling:pirate")).version == 1


async def test_cards(service: AdapterService, resolver: ModelResolver, tenants: tuple[str, str]) -> None:
    ours, _ = tenants
    await register(service, ours, "zebra", ref("1"))
    made = await register(service, ours, "pirate", ref("2", rank=4))
    base, pirate, zebra = await resolver.list(ours)
    assert base == ModelCard("sapling", "sapling", 1_700_000_000, "rootstock")
    assert (pirate.id, zebra.id) == ("sapling:pirate", "sapling:zebra")
    assert (pirate.rank, pirate.digest, pirate.version, pirate.adapter_id) == (
        4,
        "2" * 64,
        1,
        made.adapter_id,
    )
    assert pirate.owned_by == ours
    assert pirate.created > 1_700_000_000
    assert await resolver.card(ours, "sapling") == base
    assert await resolver.card(ours, "sapling:pirate") == pirate
    assert (await resolver.card(ours, "sapling:pirate@1")).id == "sapling:pirate@1"


async def test_versions_registered_at_once_get_different_numbers(
    service: AdapterService, tenants: tuple[str, str]
) -> None:
    made = await asyncio.gather(
        *(register(service, tenants[0], "pirate", ref(digit)) for digit in "012345678")
    )
    assert sorted(one.version for one in made) == list(range(1, 10))
    assert len({one.adapter_id for one in made}) == 1


async def test_what_is_wrong_with_a_registration_is_named(
    service: AdapterService, tenants: tuple[str, str]
) -> None:
    ours, _ = tenants
    with pytest.raises(ValueError, match="name must be"):
        await register(service, ours, "Pirate!", ref("1"))
    with pytest.raises(ValueError, match=r"ref\.digest"):
        await register(service, ours, "pirate", AdapterRef("short", 8))
    with pytest.raises(ValueError, match=r"ref\.rank"):
        await register(service, ours, "pirate", ref("1", rank=0))
    with pytest.raises(ValueError, match="base_digest"):
        await service.register_version(ours, "pirate", ref("1"), base_digest="B" * 64)
    with pytest.raises(ValueError, match="no tenant"):
        await register(service, "tnt_nobody", "pirate", ref("1"))
    await register(service, ours, "pirate", ref("1"))
    with pytest.raises(VersionNotFound, match="no version 7"):
        await service.activate(ours, "pirate", 7)


async def test_the_schema_keeps_versions_with_their_adapters_tenant(
    service: AdapterService, tenants: tuple[str, str], database: Database
) -> None:
    await register(service, tenants[0], "pirate", ref("1"))
    with pytest.raises(IntegrityError):
        async with database.write(EVERY_TENANT) as session:
            await session.execute(
                text("UPDATE adapter_versions SET tenant_id = :other"), {"other": tenants[1]}
            )


async def test_a_database_that_is_away_is_said_to_be(redis_client: redis.asyncio.Redis) -> None:
    away = Database("postgresql+psycopg://nobody@/nothing?host=/nonexistent")
    resolver = ModelResolver(away, redis_client, Bases("sapling"))
    assert await resolver.resolve("tnt_a", "sapling") == ResolvedModel("sapling"), "the base needs no query"
    with pytest.raises(DatabaseUnavailable):
        await resolver.resolve("tnt_a", "sapling:pirate")
    with pytest.raises(DatabaseUnavailable):
        await resolver.list("tnt_a")
    await away.close()
