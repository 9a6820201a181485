"""After a pass nothing is older than its period in any table with a class, and nothing younger is gone."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from db.session import Database
from migrations.metadata import metadata
from retention.rules import CASCADES, CLASS_RULES, KEPT, ORGANIZATION_RULES
from retention.sweep import ClocksDiffer, RetentionSweep
from tenants.retention.classes import DEFAULT_BOUNDS, DataClass, RetentionBounds
from tenants.retention.errors import PeriodNotAllowed
from tests.retention import rows
from tests.retention.rows import add, ages_left, scalar, set_days

BOUNDS = RetentionBounds({}, backup_days=35, books_years=10)


@pytest.fixture(autouse=True)
async def two_tenants(database: Database) -> None:
    await rows.make_tenants(database)


def sweep(database: Database, slice_rows: int = 500) -> RetentionSweep:
    return RetentionSweep(database, BOUNDS, slice_rows=slice_rows)


def test_every_table_of_tenants_is_assigned() -> None:
    owned = {table.name for table in metadata.sorted_tables if "tenant_id" in table.columns}
    of_classes = {rule.table for rule in CLASS_RULES} | {"audit_log"}
    assigned = of_classes | set(CASCADES) | {rule.table for rule in ORGANIZATION_RULES} | set(KEPT)
    assert owned - assigned == set(), "assign the table in retention.rules: how long is it kept, and why?"
    assert assigned - owned == set()
    assert not (of_classes | set(CASCADES)) & set(KEPT), "kept and deleted"
    assert set(rows.INSERTS) | {"audit_log"} == of_classes, "a table that these tests write no row of"
    assert {rule.data_class for rule in CLASS_RULES} | {DataClass.AUDIT_LOG} == set(DataClass)


async def test_nothing_older_is_left_and_nothing_younger_is_gone(database: Database) -> None:
    drawn = random.Random(62)
    periods = {data_class: drawn.randint(2, 20) for data_class in set(rows.CLASSES.values())}
    expected = {}
    for table, data_class in rows.CLASSES.items():
        ages = [drawn.uniform(0.1, 25) for _ in range(5)]
        ages += [periods[data_class] - 0.001, periods[data_class] + 0.001]
        await add(database, table, ages)
        await add(database, table, ages, "ten_b")
        expected[table] = sorted(age for age in ages if age < periods[data_class])
    for data_class, days in periods.items():
        await set_days(database, data_class, days)
    before = {table: await ages_left(database, table, "ten_b") for table in rows.CLASSES}
    await sweep(database, slice_rows=3).run_for("ten_a")
    for table in rows.CLASSES:
        assert await ages_left(database, table) == pytest.approx(expected[table], abs=1e-3), table
        assert len(await ages_left(database, table, "ten_b")) == len(before[table]), table
    for table, parent in CASCADES.items():
        if parent in rows.CLASSES:
            query = f"SELECT count(*) FROM {table} WHERE tenant_id = 'ten_a'"
            assert await scalar(database, query) == len(expected[parent]), table
    counted = (
        "SELECT sum(num_rows) FROM deletion_counts JOIN deletions ON id = deletion_id WHERE table_name = :one"
    )
    for table in rows.CLASSES:
        num_gone = 7 - len(expected[table])
        assert (await scalar(database, counted, one=table) or 0) == num_gone, table
    assert await sweep(database).run_for("ten_a") == 0


async def test_without_a_setting_only_defaults_apply(database: Database) -> None:
    for table in rows.CLASSES:
        await add(database, table, [1, 29.5, 400])
    await sweep(database).run_for("ten_a")
    left = {table: len(await ages_left(database, table)) for table in rows.CLASSES}
    # The plan's 30 days, notifications' 30, and refused calls' 31; of the rest nothing.
    assert left == {
        **dict.fromkeys(rows.CLASSES, 3),
        **dict.fromkeys(("stored_responses", "conversations", "notifications", "refused_requests"), 2),
    }


async def test_what_is_in_use_stays(database: Database) -> None:
    for data_class in ("batches", "adapter_sources", "notifications", "files"):
        await set_days(database, data_class, 1)
    for table in ("batches", "adapter_versions", "jobs", "notifications", "uploads"):
        await add(database, table, [9])
    async with database.write("ten_a") as session:
        for statement in (
            "UPDATE batches SET status = 'in_progress'",
            "UPDATE jobs SET status = 'queued'",
            "UPDATE jobs SET adapter_id = (SELECT adapter_id FROM adapter_versions)",
            "UPDATE deliveries SET state = 'pending'",
            "UPDATE uploads SET status = 'pending'",
        ):
            await session.execute(text(statement))
    assert await sweep(database).run_for("ten_a") == 0
    async with database.write("ten_a") as session:
        await session.execute(text("UPDATE jobs SET status = 'failed'"))
    assert await sweep(database).run_for("ten_a") == 2
    assert await scalar(database, "SELECT parameters->>'dtype' FROM jobs") == "auto"


async def test_a_conversation_of_before_ages_by_its_plan(database: Database) -> None:
    await set_days(database, "responses", 7)
    await add(database, "conversations", [20, 20])
    async with database.write("ten_a") as session:
        await session.execute(text("UPDATE conversations SET used_at = NULL"))
        # The plan keeps 30 days: one was last used 5 days ago, the other 10.
        await session.execute(text("UPDATE conversations SET expires_at = now() + interval '25 days'"))
        await session.execute(
            text(
                "UPDATE conversations SET expires_at = now() + interval '20 days' "
                "WHERE id = (SELECT min(id) FROM conversations)"
            )
        )
    assert await sweep(database).run_for("ten_a") == 1
    async with database.write("ten_a") as session:  # a use, by a process that does not know the column
        await session.execute(text("UPDATE conversations SET last_position = last_position + 1"))
    assert (await ages_left(database, "conversations"))[0] == pytest.approx(0, abs=0.01)


async def test_an_organization_that_stores_nothing_keeps_nothing(database: Database) -> None:
    for table in ("stored_responses", "conversations", "request_metadata", "files"):
        await add(database, table, [0.01])
    async with database.write("ten_a") as session:
        await session.execute(text("UPDATE tenants SET stores_nothing = true WHERE id = 'ten_a'"))
    assert await sweep(database).run_expired() == 3
    assert len(await ages_left(database, "files")) == 1


async def test_what_has_a_time_of_its_own_goes_with_it(database: Database) -> None:
    for table in ("stored_responses", "conversations", "files"):
        await add(database, table, [0.1, 0.1])
        async with database.write("ten_a") as session:
            await session.execute(
                text(
                    f"UPDATE {table} SET expires_at = now() - interval '1 second' "
                    f"WHERE id = (SELECT min(id) FROM {table})"
                )
            )
    assert await sweep(database).run_expired() == 3
    assert await sweep(database).run_expired() == 0


async def test_nothing_is_deleted_by_a_clock_that_is_wrong(database: Database) -> None:
    await set_days(database, "files", 1)
    await add(database, "files", [9])
    for offset in (timedelta(days=400), timedelta(days=-400)):
        wrong = RetentionSweep(database, BOUNDS, clock=lambda moved=offset: datetime.now(UTC) + moved)
        with pytest.raises(ClocksDiffer):
            await wrong.run()
    assert len(await ages_left(database, "files")) == 1
    assert await sweep(database).run() == 1


async def test_one_organization_that_fails_does_not_keep_the_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sweep(database)
    for tenant in rows.TENANTS:
        await set_days(database, "files", 1, tenant)
        await add(database, "files", [9], tenant)
    before = made.run_for

    async def fails_for_one(tenant_id: str) -> int:
        if tenant_id == "ten_a":
            raise RuntimeError("a row that cannot be deleted")
        return await before(tenant_id)

    monkeypatch.setattr(made, "run_for", fails_for_one)
    assert await made.run() == 1
    assert await ages_left(database, "files", "ten_b") == []


async def test_the_operators_minimum_is_above_settings_and_plans(database: Database) -> None:
    await add(database, "files", [4, 9])
    await set_days(database, "files", 2)
    least = RetentionBounds({DataClass.FILES: 7}, 35, 10)
    assert await RetentionSweep(database, least).run_for("ten_a") == 1
    assert [round(age) for age in await ages_left(database, "files")] == [4]
    with pytest.raises(PeriodNotAllowed, match="use 7 to"):
        least.checked(DataClass.FILES, 3, 30)
    assert DEFAULT_BOUNDS.least(DataClass.AUDIT_LOG) == 365
