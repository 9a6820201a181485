"""A version on its way: fenced, repeatable, activated unless a newer one was; and what may be done to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from adapters.bases import Bases
from adapters.errors import NoPreviousVersion, VersionNotFound, VersionNotReady
from adapters.jobs.errors import JobFailed, LeaseLost, VersionDeleted
from adapters.jobs.lease import claim
from adapters.jobs.service import fail
from adapters.models import VersionState
from adapters.resolver import ModelResolver
from adapters.service import AdapterChanges
from adapters.submission import SubmittedVersion
from adapters.versions import finish_ready, locked_version, note_calibrated
from db.session import EVERY_TENANT
from engine.protocol import AdapterRef
from tenants.errors import NameTaken
from tenants.plans import PlanChanges, PlanService
from tests.support.onboarding import Scene
from tests.support.waiting import eventually


@pytest.fixture
async def resolver(place: Scene) -> AsyncIterator[ModelResolver]:
    made = ModelResolver(place.database, place.redis, Bases("sapling"))
    await made.start()
    await eventually(lambda: made.listening)
    yield made
    await made.close()


async def test_steps_done_twice_say_the_same_once(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    lease = await place.lease(made.job_id)
    for _ in range(2):
        await place.pack(lease, "1")
    assert await place.column("SELECT state FROM adapter_versions") == ["calibrating"]
    for _ in range(2):
        await place.finish(lease)
    assert await place.column("SELECT type FROM adapter_events WHERE type LIKE 'version.%' ORDER BY id") == [
        "version.created",
        "version.inspected",
        "version.packed",
        "version.calibrated",
        "version.ready",
        "version.activated",
    ]
    shown = await place.onboarding.catalogue.get(place.tenants[0], "pirate")
    assert shown.version is not None
    assert (shown.version.digest, shown.version.rank, shown.version.size) == ("1b" * 32, 8, 100)
    assert shown.version.artifacts["float8_e4m3"]["digest"] == "1f" * 32


async def test_whoever_lost_the_lease_changes_nothing(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    old = await place.lease(made.job_id)
    async with place.database.write(EVERY_TENANT) as session:
        from sqlalchemy import text

        await session.execute(text("UPDATE jobs SET lease_until = now() - interval '1 second'"))
    new = await claim(place.database, made.job_id, "another worker", asyncio.Event())
    assert new is not None
    with pytest.raises(LeaseLost):
        await place.pack(old, "9")
    await place.pack(new, "1")
    with pytest.raises(LeaseLost):
        await place.finish(old, "float8_e4m3")
    assert await place.column("SELECT state FROM adapter_versions") == ["calibrating"]
    await place.finish(new)
    assert await place.column("SELECT digest FROM adapter_versions") == ["1b" * 32]


async def test_an_older_version_that_is_ready_later_does_not_take_over(place: Scene) -> None:
    first = await place.create("pirate", "pirate")
    second = await place.add(first.adapter.id, "sql")
    await place.make_ready(second, "2")
    await place.make_ready(first, "1")
    shown = await place.onboarding.catalogue.get(place.tenants[0], "pirate")
    assert (shown.adapter.active_version, shown.adapter.previous_version) == (2, None)
    assert await place.column("SELECT state FROM adapter_versions ORDER BY version") == ["ready", "ready"]


@pytest.mark.parametrize(
    ("gain", "num_samples", "active"),
    [(0.4, 20, 1), (0.4, 10, 1), (0.4996, 20, 2), (0.6, 20, 2), (None, 0, 2)],
)
async def test_a_version_that_measured_worse_waits_for_consent(
    place: Scene, gain: float | None, num_samples: int, active: int
) -> None:
    announcer = place.onboarding.submission._announcer

    async def finish(made: SubmittedVersion, digit: str, calibration: dict[str, Any]) -> None:
        lease = await place.lease(made.job_id or "")
        await place.pack(lease, digit)
        async with lease.write() as held:
            await note_calibrated(held.session, held.job, calibration, "bfloat16")
            await finish_ready(held.session, held.job, announcer)

    first = await place.create("pirate", "pirate")
    await finish(first, "1", {"gain": 0.5, "samples": "tenant", "num_samples": 20})
    second = await place.add(first.adapter.id, "sql")
    await finish(second, "2", {"gain": gain, "samples": "tenant", "num_samples": num_samples})
    assert await place.column("SELECT state FROM adapter_versions") == ["ready", "ready"]
    assert await place.column("SELECT active_version FROM adapters") == [active]
    told = "SELECT message FROM adapter_events WHERE type = 'version.not_activated'"
    messages = await place.column(told)
    assert len(messages) == (active == 1)
    if active == 2:
        return
    assert "gains 0.100 nats per token less over the base model than version 1" in messages[0]
    assert ("different samples" in messages[0]) == (num_samples != 20)
    await place.add(first.adapter.id, "sql")  # the upload repeated, by a client that retries
    assert await place.column("SELECT active_version FROM adapters") == [1]
    await place.onboarding.adapters.activate(place.tenants[0], "pirate", 2)
    assert await place.column("SELECT active_version FROM adapters") == [2]


async def test_a_version_in_service_keeps_its_weights_when_it_is_measured_again(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    lease = await place.lease(made.job_id)
    await place.pack(lease, "1")
    await place.finish(lease)
    async with lease.write() as held:
        await note_calibrated(held.session, held.job, {"samples": 99}, "float8_e4m3")
        await finish_ready(held.session, held.job, place.onboarding.submission._announcer)
    shown = await place.onboarding.catalogue.get(place.tenants[0], "pirate")
    assert shown.version is not None
    assert (shown.version.dtype, shown.version.digest) == ("bfloat16", "1b" * 32)
    assert shown.version.calibration == {"samples": 99}


async def test_an_operator_lets_pass_what_the_gate_refused_and_nothing_else(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    override = place.onboarding.adapters.override
    ours = place.tenants[0]
    lease = await place.lease(made.job_id)
    await place.pack(lease, "1")
    async with lease.conclude() as held:
        _, version = await locked_version(held.session, held.job)
        await note_calibrated(held.session, held.job, {"gap": 1.0}, "bfloat16")
        fail(held.session, held.job, version, JobFailed("gate_failed", "too far from the reference"))
    with pytest.raises(ValueError, match="reason"):
        await override(ours, "pirate", 1, "  ")
    shown = await override(ours, "pirate", 1, "the tenant knows")
    assert shown.version is not None
    assert (shown.version.state, shown.version.override_reason) == (VersionState.READY, "the tenant knows")
    assert (shown.version.error, shown.adapter.active_version) == (None, 1)
    assert "version.overridden" in await place.column("SELECT type FROM adapter_events")
    broken = await place.add(made.adapter.id, "sql")
    lease = await place.lease(broken.job_id or "")
    async with lease.conclude() as held:
        _, version = await locked_version(held.session, held.job)
        fail(held.session, held.job, version, JobFailed("adapter_invalid", "not finite", "a tensor"))
    with pytest.raises(VersionNotReady):
        await override(ours, "pirate", 2, "please")


async def test_rollback_and_back(place: Scene, resolver: ModelResolver) -> None:
    ours = place.tenants[0]
    made = await place.create("pirate", "pirate")
    await place.make_ready(made, "1")
    with pytest.raises(NoPreviousVersion):
        await place.onboarding.adapters.rollback(ours, "pirate")
    await place.make_ready(await place.add(made.adapter.id, "sql"), "2")
    for digit in "121":
        shown = await place.onboarding.adapters.rollback(ours, made.adapter.id)
        assert shown.version is not None
        assert shown.version.digest == (digit + "b") * 32

        async def serves(digest: str = (digit + "b") * 32) -> bool:
            found = await resolver.resolve(ours, "sapling:pirate")
            return found.adapter == AdapterRef(digest, 8)

        assert await eventually(serves) < 1
    with pytest.raises(VersionNotFound):
        await place.onboarding.adapters.activate(ours, "pirate", 2**40)


async def test_activations_at_once_leave_one_active_and_one_to_go_back_to(place: Scene) -> None:
    ours = place.tenants[0]
    made = await place.create("pirate", "pirate")
    await place.make_ready(made, "1")
    for name, digit in (("sql", "2"), ("to-json", "3")):
        await place.make_ready(await place.add(made.adapter.id, name, activate=False), digit)
    await asyncio.gather(
        *(place.onboarding.adapters.activate(ours, "pirate", version) for version in (1, 2, 3) * 4)
    )
    shown = await place.onboarding.catalogue.get(ours, "pirate")
    assert shown.adapter.active_version in (1, 2, 3)
    assert shown.adapter.previous_version in {1, 2, 3} - {shown.adapter.active_version}


async def test_renaming_frees_the_name_and_takes_none_that_is_taken(
    place: Scene, resolver: ModelResolver
) -> None:
    ours = place.tenants[0]
    made = await place.create("pirate")
    ref = await place.make_ready(made, "1")
    await place.create("other", "sql")
    update = place.onboarding.adapters.update
    with pytest.raises(NameTaken):
        await update(ours, "pirate", AdapterChanges(name="other"))
    with pytest.raises(ValueError, match="name must be"):
        await update(ours, "pirate", AdapterChanges(name="Not so"))
    for text in ("a\x00b", "x" * 2001):
        with pytest.raises(ValueError, match="description must have at most 2000"):
            await update(ours, "pirate", AdapterChanges(description=text))
    await update(ours, "pirate", AdapterChanges(name="captain"))

    async def serves() -> bool:
        return (await resolver.resolve(ours, "sapling:captain")).adapter == ref

    assert await eventually(serves) < 1
    assert (await place.create("pirate", "to-json")).created


# Pins ----------------------------------------------------------------------------------------------------


async def on_plan(place: Scene, pinned: int, tenant: int = 0) -> None:
    plans = PlanService(place.database, place.redis)
    name = f"pins-{pinned}-{tenant}"
    await plans.create(name, PlanChanges(pinned_adapters=pinned))
    await plans.set_tenant_plan(place.tenants[tenant], name)


async def test_the_engine_is_told_to_load_and_to_pin_as_the_plan_has_room(place: Scene) -> None:
    await on_plan(place, 1)
    place.engine.take()
    first = await place.create("first", "pirate")
    await place.make_ready(first, "1")
    assert place.engine.take() == [("1b" * 32, None), ("1b" * 32, True)]
    second = await place.create("second", "sql")
    await place.make_ready(second, "2")
    assert place.engine.take() == [("2b" * 32, None), ("1b" * 32, True)], "no room for another pin"
    await place.make_ready(await place.add(first.adapter.id, "to-json"), "3")
    assert place.engine.take() == [("1b" * 32, False), ("3b" * 32, None), ("3b" * 32, True)]
    adapters, ours = place.onboarding.adapters, place.tenants[0]
    await adapters.set_disabled(ours, "first", True)
    assert place.engine.take() == [("3b" * 32, False), ("2b" * 32, True)], "the next in line has the pin"
    await adapters.set_disabled(ours, "first", False)
    assert place.engine.take()[-1] == ("3b" * 32, True)
    await adapters.set_version_disabled(ours, "first", 2, True)
    assert place.engine.take()[0] == ("3b" * 32, False)
    await adapters.set_version_disabled(ours, "first", 2, False)
    place.engine.take()
    await place.onboarding.deletion.delete(ours, "first")
    told = place.engine.take()
    assert ("3b" * 32, False) in told
    assert told[-1] == ("2b" * 32, True)


async def test_weights_that_another_tenant_serves_stay_pinned(place: Scene) -> None:
    await on_plan(place, 1, 0)
    await on_plan(place, 1, 1)
    for tenant in (0, 1):
        await place.make_ready(await place.create("same", tenant=tenant), "1")
    place.engine.take()
    await place.onboarding.deletion.delete(place.tenants[0], "same")
    assert ("1b" * 32, False) not in place.engine.take()
    await place.onboarding.deletion.delete(place.tenants[1], "same")
    assert ("1b" * 32, False) in place.engine.take()


async def test_a_new_engine_is_told_of_every_pin(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.pinning.PAGE", 2)
    await on_plan(place, 2, 0)
    await on_plan(place, 1, 1)
    for tenant, names in ((0, ("pirate", "sql", "to-json")), (1, ("upper-case", "pluralise"))):
        for number, name in enumerate(names):
            await place.make_ready(await place.create(name, name, tenant=tenant), f"{tenant * 3 + number}")
    place.engine.take()
    place.engine.incarnation = "i2"
    await eventually(lambda: len(place.engine.told) >= 3, seconds=3)
    await asyncio.sleep(0.6)
    assert sorted(place.engine.take()) == [(digit * 32, True) for digit in ("0b", "1b", "3b")], "once"


async def test_a_plan_that_changes_is_heard_of_in_time(place: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    await on_plan(place, 2)
    for digit, name in (("1", "pirate"), ("2", "sql")):
        await place.make_ready(await place.create(name, name), digit)
    assert ("2b" * 32, True) in place.engine.take()
    monkeypatch.setattr("adapters.pinning.ANNOUNCE_INTERVAL", 0.5)
    place.engine.incarnation = "i2"
    await PlanService(place.database, place.redis).set("pins-2-0", PlanChanges(pinned_adapters=1))
    await eventually(lambda: ("2b" * 32, False) in place.engine.take(), seconds=3)
    await eventually(lambda: place.engine.take() == [("1b" * 32, True)], seconds=3)


async def test_whoever_works_on_a_deleted_version_is_told(place: Scene) -> None:
    made = await place.create("pirate")
    assert made.job_id is not None
    lease = await place.lease(made.job_id)
    await place.onboarding.deletion.delete(place.tenants[0], "pirate")
    with pytest.raises(LeaseLost):
        await place.pack(lease, "1")
    async with place.database.write(EVERY_TENANT) as session:
        with pytest.raises(VersionDeleted):
            await locked_version(session, lease.job)
