"""Metrics of batches and background responses: how many have not ended, and how old they are."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import text

from api.metrics.background_work import BackgroundWorkCollector
from db.session import EVERY_TENANT, Database

BATCHES = """
INSERT INTO batches (id, tenant_id, created_by, endpoint, status, input_file_id, input_size,
                     total, completed, failed, created_at, expires_at)
SELECT 'batch_' || number, 'ten_one', 'key', '/v1/responses', status, 'file', 1, 10, 3, 1,
       now() - age * interval '1 hour', now() + (24 - age) * interval '1 hour'
FROM (VALUES (1, 'in_progress', 20), (2, 'in_progress', 1), (3, 'completed', 23))
     AS given(number, status, age)
"""
RESPONSES = """
INSERT INTO stored_responses (id, tenant_id, project_id, key_id, status, is_background, submitted_at,
                              expires_at, sealed_body, sealed_input, sealed_output, num_items)
SELECT 'resp_' || number, 'ten_one', 'proj', 'key', status, true, now() - interval '5 minutes',
       now() + interval '1 day', '', '', '', 0
FROM (VALUES (1, 'queued'), (2, 'in_progress'), (3, 'completed')) AS given(number, status)
"""


async def add_tenant(database: Database) -> None:
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text("INSERT INTO tenants (id, name) VALUES ('ten_one', 'one')"))
        await session.execute(
            text("INSERT INTO projects (id, tenant_id, name) VALUES ('proj', 'ten_one', 'proj')")
        )


async def shown(database: Database) -> dict[str, float]:
    collector, registry = BackgroundWorkCollector(database), CollectorRegistry()
    registry.register(collector)
    await collector.refresh()
    return {
        ".".join([sample.name.removeprefix("rootstock_"), *sample.labels.values()]): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }


async def test_what_has_not_ended(database: Database) -> None:
    await add_tenant(database)
    nothing = await shown(database)
    assert nothing["batches_open.in_progress"] == nothing["background_responses_open.queued"] == 0
    assert nothing["batch_oldest_seconds"] == nothing["background_response_oldest_seconds"] == 0
    assert nothing["batch_window_left_seconds"] == 86_400
    async with database.write(EVERY_TENANT) as session:
        await session.execute(text(BATCHES))
        await session.execute(text(RESPONSES))
    found = await shown(database)
    assert found["batches_open.in_progress"] == 2
    assert found["batches_open.validating"] == 0
    assert found["batch_lines_waiting"] == 12
    assert found["batch_oldest_seconds"] == pytest.approx(20 * 3600, abs=60)
    assert found["batch_window_left_seconds"] == pytest.approx(4 * 3600, abs=60)
    assert found["background_responses_open.queued"] == found["background_responses_open.in_progress"] == 1
    assert found["background_response_oldest_seconds"] == pytest.approx(300, abs=60)
