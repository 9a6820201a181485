"""Receipts: what one shows, who is shown it, and that it is found without looking through the ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import redis.asyncio
from sqlalchemy.event import listen

from billing.errors import GenerationNotFound
from billing.partitions import make_partitions_ahead
from billing.rates import Rate
from billing.request_ids import new_request_id
from billing.reversals import ReversalService
from billing.service import UsageReports
from db.session import Database
from engine.protocol import Usage
from tenants.actors import OPERATOR
from tenants.service import TenantService
from tenants.share_terms import ShareTerms
from tests.support.booked import START, request, write

RATE = Rate("prc_1", 3_000_000, 1_000_000, 5_000_000, 50)
AT = START + 0.123456
LABELS: dict[str, Any] = {
    "rate": RATE,
    "tier": "flex",
    "model": "sapling:pirate@2",
    "adapter_id": "adp_a",
    "adapter_version": "2",
    "project_id": "proj_1",
    "user_id": "user_1",
}


async def test_a_receipt_says_all_of_a_request(database: Database, redis_client: redis.asyncio.Redis) -> None:
    tenant = (await TenantService(database, redis_client).create_tenant("acme")).id
    receipts = UsageReports(database).receipts
    event = request(tenant, AT, usage=Usage(1000, 400, 101, 60), **LABELS)
    await write(database, [event])
    receipt = await receipts.of(tenant, event.request_id)
    assert receipt == {
        "id": event.request_id,
        "object": "generation",
        "created": START,
        "submitted_at": "2026-10-30T00:00:00.123456Z",
        "status": "completed",
        "finish_reason": "stop",
        "endpoint": "chat.completions",
        "model": "sapling:pirate@2",
        "adapter": {"id": "adp_a", "version": 2, "digest": None},
        "service_tier": "flex",
        "project_id": "proj_1",
        "user_id": "user_1",
        "api_key_id": "key_1",
        "requests": [event.request_id],
        "user": None,
        "safety_identifier": None,
        "metadata": None,
        "num_choices": 1,
        "usage": {
            "prompt_tokens": 1000,
            "completion_tokens": 101,
            "total_tokens": 1101,
            "prompt_tokens_details": {"cached_tokens": 400},
            "completion_tokens_details": {"reasoning_tokens": 60},
        },
        "price": {
            "id": "prc_1",
            "input": 3_000_000,
            "cached_input": 1_000_000,
            "output": 5_000_000,
            "percent": 50,
        },
        "share": None,
        "cost_micro_usd": 1353,
        "cost_details": {"input": 901, "cached_input": 200, "output": 252, "surcharge": 0},
        "reversals": [],
        "billed_micro_usd": 1353,
        "timings": {"queue_seconds": 0.25, "first_token_seconds": 0.5, "total_seconds": 1.5},
        "preemptions": 0,
    }
    assert receipt["cost_micro_usd"] == RATE.cost(Usage(1000, 400, 101))
    at = datetime.fromtimestamp(AT, UTC)
    back = await ReversalService(database).reverse_request(
        tenant, event.request_id, at, reason="ours", by=OPERATOR, now=datetime(2026, 11, 2, tzinfo=UTC)
    )
    taken_back = await receipts.of(tenant, event.request_id)
    assert taken_back["reversals"] == [
        {
            "id": back.id,
            "at": "2026-11-02T00:00:00.000000Z",
            "request": event.request_id,
            "reason": "ours",
            "cost_micro_usd": -1353,
        }
    ]
    assert (taken_back["cost_micro_usd"], taken_back["billed_micro_usd"]) == (1353, 0)


async def test_a_request_that_runs_grows(database: Database) -> None:
    receipts = UsageReports(database).receipts
    name = new_request_id("chatcmpl", AT)
    await write(database, [request("tnt_a", AT, usage=Usage(10, 0, 5), name=name, finish_reason=None)])
    early = await receipts.of("tnt_a", name)
    assert (early["status"], early["finish_reason"], early["usage"]["completion_tokens"]) == (
        "in_progress",
        None,
        5,
    )
    assert (early["price"], early["adapter"], early["cost_micro_usd"]) == (None, None, 0)
    await write(database, [request("tnt_a", AT, usage=Usage(10, 0, 9), name=name)])
    late = await receipts.of("tnt_a", name)
    assert (late["status"], late["finish_reason"], late["usage"]["completion_tokens"]) == (
        "completed",
        "stop",
        9,
    )


async def test_a_list_of_prompts_has_one_receipt_and_each_its_own(database: Database) -> None:
    receipts = UsageReports(database).receipts
    name = new_request_id("cmpl", AT)
    await write(
        database,
        [
            request(
                "tnt_a",
                AT,
                usage=Usage(10 + place, 0, 1),
                name=f"{name}-{place}",
                took=1.0 + place,
                finish_reason="length" if place else "stop",
                rate=RATE,
            )
            for place in range(12)
        ],
    )
    whole = await receipts.of("tnt_a", name)
    assert whole["requests"] == [f"{name}-{place}" for place in range(12)]
    parts = [await receipts.of("tnt_a", one) for one in whole["requests"]]
    assert [part["usage"]["prompt_tokens"] for part in parts] == list(range(10, 22))
    assert whole["usage"]["prompt_tokens"] == sum(range(10, 22))
    assert whole["cost_micro_usd"] == sum(part["cost_micro_usd"] for part in parts)
    assert sum(whole["cost_details"].values()) == whole["cost_micro_usd"]
    assert whole["timings"]["total_seconds"] == 12.0
    assert whole["finish_reason"] == ",".join(["stop", *["length"] * 11])
    await write(database, [request("tnt_a", AT, usage=Usage(1, 0, 1), name=f"{name}-12", finish_reason=None)])
    assert (await receipts.of("tnt_a", name))["status"] == "in_progress"


async def test_who_is_shown_which(database: Database) -> None:
    receipts = UsageReports(database).receipts
    event = request("tnt_a", AT, usage=Usage(1, 0, 1), **LABELS)
    before_projects = request("tnt_a", AT, usage=Usage(1, 0, 1))
    await write(database, [event, before_projects])
    for of_key in (None, ("proj_1", "key_other"), ("proj_2", "key_1"), (None, "key_1")):
        assert (await receipts.of("tnt_a", event.request_id, of_key))["id"] == event.request_id
    for of_key in (("proj_2", "key_2"), (None, "key_2")):
        with pytest.raises(GenerationNotFound):
            await receipts.of("tnt_a", event.request_id, of_key)
        with pytest.raises(GenerationNotFound):
            await receipts.of("tnt_a", before_projects.request_id, of_key)
    for tenant, name in (
        ("tnt_b", event.request_id),
        ("tnt_a", new_request_id("chatcmpl", AT)),
        ("tnt_a", "req-1"),
        ("tnt_a", ""),
        ("tnt_a", f"{event.request_id}-0"),
        ("tnt_a", event.request_id.replace("chatcmpl", "%")),
    ):
        with pytest.raises(GenerationNotFound):
            await receipts.of(tenant, name)


async def test_it_is_found_by_its_name_in_one_partition_by_an_index(database: Database) -> None:
    await make_partitions_ahead(database, datetime.fromtimestamp(START, UTC))
    event = request("tnt_a", AT, usage=Usage(1, 0, 1))
    others = [request("tnt_a", START + number, usage=Usage(1, 0, 1)) for number in range(1000)]
    await write(database, [event, *others])
    sent: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "usage_records" in statement:
            sent.append((statement, parameters))

    listen(database.engine.sync_engine, "before_cursor_execute", note)
    assert (await UsageReports(database).receipts.of("tnt_a", event.request_id))["id"] == event.request_id
    [(statement, parameters)] = sent
    async with database.read("tnt_a") as session:
        connection = await session.connection()
        plan = "\n".join((await connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)).scalars())
    assert "Index" in plan
    assert "Seq Scan" not in plan
    assert "usage_records_y2026m10" in plan
    assert "y2026m11" not in plan
    assert "default" not in plan


async def test_a_receipt_says_what_another_organizations_adapter_cost(
    database: Database, redis_client: redis.asyncio.Redis
) -> None:
    tenant = (await TenantService(database, redis_client).create_tenant("acme")).id
    terms = ShareTerms("shr_1", "tnt_owner", 2_000_000, 4_000_000, 80)
    labels = {"adapter_id": "adp_b", "adapter_version": "1"}
    event = request(tenant, AT, usage=Usage(1000, 400, 101), rate=replace(RATE, share=terms), **labels)
    event = msgspec.structs.replace(event, adapter_digest="d" * 64)
    await write(database, [event])
    receipt = await UsageReports(database).receipts.of(tenant, event.request_id)
    assert receipt["share"] == {
        "id": "shr_1",
        "owner_id": "tnt_owner",
        "input": 2_000_000,
        "output": 4_000_000,
    }
    assert receipt["cost_details"]["surcharge"] == 2404
    assert receipt["adapter"] == {"id": "adp_b", "version": 1, "digest": None}, "it is the owner's to know"
    assert receipt["cost_micro_usd"] == sum(receipt["cost_details"].values()) == 1353 + 2404  # type: ignore[call-overload]
