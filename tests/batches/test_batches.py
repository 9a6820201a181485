"""A batch from upload to download, with the stock client."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import replace
from datetime import timedelta
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from billing.rates import Rate
from db.session import EVERY_TENANT
from engine.protocol import PriorityClass, Submit, Usage
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey, QuotaExhausted, RateLimited, UserNotFound
from tenants.limits.kinds import Limit, Metric
from tenants.quotas import Reservation
from tests.api.fakes import KEY, OTHER_KEY, SHARED, Script
from tests.batches.conftest import Batches, as_jsonl, chat_line, lines
from tests.support.spans import tracing_to
from tests.support.waiting import eventually


def custom_ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["custom_id"] for row in rows]


async def test_runs_every_line_and_returns_the_answers_in_order(place: Batches) -> None:
    batch = await place.create(as_jsonl(lines(40)), metadata={"for": "a test"})
    assert (batch.status, batch.object, batch.completion_window) == ("validating", "batch", "24h")
    assert batch.expires_at == batch.created_at + 24 * 3600
    await place.start()

    done = await place.ended(batch.id)

    assert done.status == "completed"
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    assert done.model == "sapling"
    assert done.metadata == {"for": "a test"}
    assert done.errors is None
    assert done.error_file_id is None
    assert done.in_progress_at
    assert done.finalizing_at
    assert done.completed_at
    rows = await place.rows(done.output_file_id)
    assert custom_ids(rows) == [f"request-{number}" for number in range(40)]
    bodies = [row["response"]["body"] for row in rows]
    assert {row["response"]["status_code"] for row in rows} == {200}
    assert {body["choices"][0]["message"]["content"] for body in bodies} == {"Hello world"}
    assert len({row["id"] for row in rows}) == 40
    assert [row["response"]["request_id"] for row in rows] == [body["id"] for body in bodies]
    assert done.usage is not None
    assert done.usage.input_tokens == sum(body["usage"]["prompt_tokens"] for body in bodies)
    assert done.usage.output_tokens == sum(body["usage"]["completion_tokens"] for body in bodies)
    file = await place.client().files.retrieve(done.output_file_id or "")
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_lines_run_as_flex_and_are_labelled_and_priced_as_batch(place: Batches) -> None:
    exporter = InMemorySpanExporter()
    object.__setattr__(place.world.services, "tracing", tracing_to(exporter))
    await place.start()
    batch = await place.create(as_jsonl(lines(2)))

    await place.ended(batch.id)

    submitted = place.world.engine.submitted
    assert {submit.priority for submit in submitted} == {PriorityClass.FLEX}
    assert {submit.labels["service_tier"] for submit in submitted} == {"batch"}
    assert {submit.labels["rate"].rsplit(":", 1)[1] for submit in submitted} == {"50"}
    assert {submit.labels["endpoint"] for submit in submitted} == {"chat.completions"}
    spans = exporter.get_finished_spans()
    assert [(span.name, span.parent) for span in spans] == [("chat sapling", None)] * 2
    assert len({span.context.trace_id for span in spans}) == 2, "each line has a trace of its own"
    assert {submit.traceparent.split("-")[1] for submit in submitted} == {
        f"{span.context.trace_id:032x}" for span in spans
    }


async def test_lines_on_another_organizations_adapter_pay_its_surcharge_whole(place: Batches) -> None:
    await place.start()
    batch = await place.create(as_jsonl(lines(1, model="sapling:birch/pirate")))

    done = await place.ended(batch.id)

    (submit,) = place.world.engine.submitted
    assert (submit.labels["model"], submit.labels["share"]) == ("sapling:birch/pirate@2", SHARED.label)
    (row,) = await place.rows(done.output_file_id)
    usage = row["response"]["body"]["usage"]
    counts = (usage["prompt_tokens"], usage["completion_tokens"])
    rate, used = Rate.of_labels(submit.labels), Usage(counts[0], 0, counts[1])
    assert rate.percent == 50
    surcharge = 2 * counts[0] + 3 * counts[1]
    assert rate.cost(used) == replace(rate, share=None).cost(used) + surcharge, (
        "half the price, the whole surcharge"
    )


async def test_budgets_hold_for_lines_and_rate_limits_do_not(place: Batches) -> None:
    limits = tuple(
        Limit("tenant", "ten_one", "", metric, 1000)
        for metric in (Metric.REQUESTS_PER_MINUTE, Metric.CONCURRENT_REQUESTS, Metric.SPEND_PER_MONTH)
    )
    callers, quotas = place.world.keys.callers, place.world.quotas
    callers[KEY] = dataclasses.replace(callers[KEY], limits=limits)
    asked: list[tuple[Limit, ...]] = []
    reserve = quotas.reserve

    async def noted(request_id: str, caller: TenantContext, *more: Any, **options: Any) -> Reservation:
        asked.append(caller.limits)
        return await reserve(request_id, caller, *more, **options)

    quotas.reserve = noted  # type: ignore[method-assign]
    await place.start()

    await place.ended((await place.create(as_jsonl(lines(2)))).id)

    assert {limit.metric for found in asked for limit in found} == {Metric.SPEND_PER_MONTH}
    assert len(asked) == 2


async def test_a_suspended_account_waits(place: Batches) -> None:
    place.billing_state = "suspended"
    runner = await place.start()
    batch = await place.create(as_jsonl(lines(2)))
    await place.until(batch.id, lambda seen: seen.status == "in_progress")
    await asyncio.sleep(0.3)
    assert place.world.engine.submitted == []

    place.billing_state = "active"
    await place.kill(runner)  # the next process looks up the account at once
    await place.start("api-2")

    assert (await place.ended(batch.id)).output_file_id is not None


async def test_completions_with_several_prompts_and_echo(place: Batches) -> None:
    await place.start()
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": "sapling", "prompt": ["One", "Two"], "echo": True, "max_tokens": 5},
    }
    batch = await place.create(as_jsonl([line]), endpoint="/v1/completions")

    done = await place.ended(batch.id)

    (row,) = await place.rows(done.output_file_id)
    texts = [choice["text"] for choice in row["response"]["body"]["choices"]]
    assert texts == ["OneHello world", "TwoHello world"]


async def test_lines_can_name_several_models(place: Batches) -> None:
    await place.start()
    rows = [chat_line("base"), chat_line("adapter", model="sapling:pirate")]
    batch = await place.create(as_jsonl(rows))

    done = await place.ended(batch.id)

    models = [row["response"]["body"]["model"] for row in await place.rows(done.output_file_id)]
    assert models == ["sapling", "sapling:pirate@3"]
    assert done.model is None


async def test_a_line_that_fails_is_in_the_error_file(place: Batches) -> None:
    await place.start()
    too_long = chat_line("long", "many words " * 600)
    batch = await place.create(as_jsonl([*lines(2), too_long]))

    done = await place.ended(batch.id)

    assert done.status == "completed"
    assert custom_ids(await place.rows(done.output_file_id)) == ["request-0", "request-1"]
    (row,) = await place.rows(done.error_file_id)
    assert (row["custom_id"], row["error"]) == ("long", None)
    assert row["response"]["status_code"] == 400
    assert row["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 3, "completed": 2, "failed": 1}


async def test_without_a_success_there_is_no_output_file(place: Batches) -> None:
    place.world.quotas.error = QuotaExhausted(Limit("tenant", "ten_one", "", Metric.SPEND_PER_MONTH, 1), None)
    await place.start()
    batch = await place.create(as_jsonl(lines(3)))

    done = await place.ended(batch.id)

    assert done.status == "completed"
    assert done.output_file_id is None
    codes = {row["response"]["body"]["error"]["code"] for row in await place.rows(done.error_file_id)}
    assert codes == {"insufficient_quota"}


async def test_retries_what_has_no_room_now(place: Batches) -> None:
    refused: list[str] = []

    def script(submit: Submit) -> Script:
        if len(refused) < 4:
            refused.append(submit.request_id)
            return Script(reject=("overloaded", "no room", 0.05))
        return place.world.engine.says(submit, "Hello world")

    place.world.engine.script = script
    await place.start()
    batch = await place.create(as_jsonl(lines(6)))

    done = await place.ended(batch.id)

    assert len(refused) == 4
    assert done.request_counts is not None
    assert done.request_counts.completed == 6


async def test_retries_budgets_that_running_requests_hold(place: Batches) -> None:
    place.world.quotas.error = RateLimited(Limit("tenant", "ten_one", "", Metric.SPEND_PER_MONTH, 1), 0.05)
    await place.start()
    batch = await place.create(as_jsonl(lines(1)))
    await place.until(batch.id, lambda seen: seen.status == "in_progress")

    place.world.quotas.error = None

    assert (await place.ended(batch.id)).output_file_id is not None


async def test_waits_while_the_engine_is_away(place: Batches) -> None:
    place.world.engine.ready = False
    await place.start()
    batch = await place.create(as_jsonl(lines(3)))
    await place.until(batch.id, lambda seen: seen.status == "in_progress")

    place.world.engine.ready = True

    done = await place.ended(batch.id)
    assert done.request_counts is not None
    assert done.request_counts.completed == 3


async def test_cancelling_returns_what_is_done_and_ends_what_runs(place: Batches) -> None:
    begun: list[str] = []

    def script(submit: Submit) -> Script:
        begun.append(submit.request_id)
        quick = len(begun) <= 4
        return place.world.engine.says(submit, "Hello world", delay=0.0 if quick else 0.3)

    place.world.engine.script = script
    await place.start(lines_at_once=4)
    batch = await place.create(as_jsonl(lines(60)))
    await eventually(lambda: len(begun) >= 8)

    cancelled = await place.client().batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    done = await place.ended(batch.id)

    assert done.status == "cancelled"
    assert done.cancelling_at
    assert done.cancelled_at
    answered, refused = await place.rows(done.output_file_id), await place.rows(done.error_file_id)
    assert 4 <= len(answered) == len(begun) < 60
    assert sorted(custom_ids(answered + refused)) == sorted(f"request-{number}" for number in range(60))
    assert {row["error"]["code"] for row in refused} == {"batch_cancelled"}
    assert {row["response"] for row in refused} == {None}
    with pytest.raises(openai.ConflictError):
        await place.client().batches.cancel(batch.id)


async def test_a_batch_that_has_not_begun_is_cancelled_at_once(place: Batches) -> None:
    batch = await place.create(as_jsonl(lines(2)))

    cancelled = await place.client().batches.cancel(batch.id)

    assert cancelled.status == "cancelled"
    assert (cancelled.output_file_id, cancelled.error_file_id) == (None, None)
    await place.start()
    assert (await place.get(batch.id)).status == "cancelled"
    assert place.world.engine.submitted == []


async def test_an_expired_batch_returns_what_is_done(place: Batches) -> None:
    num_answered = 0

    def script(submit: Submit) -> Script:
        nonlocal num_answered
        num_answered += 1
        if num_answered > 4:
            return Script(reject=("overloaded", "no room", 0.05))
        return place.world.engine.says(submit, "Hello world")

    place.world.engine.script = script
    await place.start(lines_at_once=2)
    batch = await place.create(as_jsonl(lines(30)))
    await eventually(lambda: num_answered > 6)
    await place.change("UPDATE batches SET expires_at = now() WHERE id = :id", id=batch.id)
    (runner,) = place.runners
    await place.kill(runner)
    await place.start("api-2")

    done = await place.ended(batch.id)

    assert done.status == "expired"
    answered, refused = await place.rows(done.output_file_id), await place.rows(done.error_file_id)
    assert len(answered) <= 4
    assert len(answered) + len(refused) == 30
    assert {row["error"]["code"] for row in refused} == {"batch_expired"}
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (len(answered), len(refused))


async def test_the_input_file_can_be_deleted_while_it_runs(place: Batches) -> None:
    batch = await place.create(as_jsonl(lines(3)))
    await place.client().files.delete(batch.input_file_id)
    await place.start()

    done = await place.ended(batch.id)

    assert len(await place.rows(done.output_file_id)) == 3

    async def removed() -> bool:
        runner = place.runners[0]
        runner._cleaned_at = 0.0
        return [file async for file in place.store.list("tenants/ten_one/batches")] == []

    await eventually(removed)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(InvalidApiKey(), "invalid_api_key"), (UserNotFound("usr_1"), "insufficient_permissions")],
)
async def test_a_caller_who_may_not_send_requests_any_more_stops_its_batches(
    place: Batches, refusal: Exception, code: str
) -> None:
    place.refusal = refusal
    place.world.engine.script = lambda submit: place.world.engine.says(submit, "Hello", delay=0.1)
    batch = await place.create(as_jsonl(lines(3)))
    place.revoked.add("key_one")
    await place.start()

    done = await place.ended(batch.id)

    assert done.status == "cancelled"
    assert done.errors is not None
    assert done.errors.data is not None
    assert [error.code for error in done.errors.data] == [code]
    assert place.world.engine.submitted == []


async def test_output_files_expire_as_asked(place: Batches) -> None:
    await place.start()
    batch = await place.create(
        as_jsonl(lines(1)), output_expires_after={"anchor": "created_at", "seconds": 3600}
    )

    done = await place.ended(batch.id)

    file = await place.client().files.retrieve(done.output_file_id or "")
    assert file.expires_at == file.created_at + timedelta(hours=1).total_seconds()


async def test_more_waiting_lines_than_the_limit_fail_the_batch(place: Batches) -> None:
    await place.change(
        "INSERT INTO limits (tenant_id, scope, scope_id, metric, amount) "
        "VALUES ('ten_one', 'tenant', 'ten_one', 'batch_lines', 5)"
    )
    await place.start()
    batch = await place.create(as_jsonl(lines(6)))

    done = await place.ended(batch.id)

    assert done.status == "failed"
    assert done.errors is not None
    assert [error.code for error in done.errors.data or ()] == ["batch_lines_limit_exceeded"]


async def test_batches_are_listed_in_pages_and_only_to_their_tenant(place: Batches) -> None:
    file = await place.upload(as_jsonl(lines(1)))
    options = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = [(await place.client().batches.create(**options)).id for _ in range(3)]  # type: ignore[arg-type]

    first = await place.client().batches.list(limit=2)
    second = await place.client().batches.list(limit=2, after=first.data[-1].id)
    theirs = await place.client(OTHER_KEY).batches.list()

    assert [batch.id for batch in [*first.data, *second.data]] == made[::-1]
    assert theirs.data == []
    for request in (
        place.client(OTHER_KEY).batches.retrieve(made[0]),
        place.client(OTHER_KEY).batches.cancel(made[0]),
        place.client(OTHER_KEY).batches.create(**options),  # type: ignore[arg-type]
    ):
        with pytest.raises(openai.NotFoundError):
            await request


async def test_a_webhook_event_is_published_once(place: Batches) -> None:
    await place.start()
    batch = await place.create(as_jsonl(lines(1)))
    await place.ended(batch.id)

    async with place.database.read(EVERY_TENANT) as session:
        rows = (await session.execute(text("SELECT type, data->>'id' FROM notifications"))).all()

    assert [tuple(row) for row in rows] == [("batch.completed", batch.id)]
