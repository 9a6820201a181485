"""Requests and their limits: whatever becomes of one, what it used is charged and nothing stays held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import openai
import pytest
import redis.asyncio

from billing.invoices.accounts import BillingAccounts
from billing.invoices.credits import record_credit
from billing.metering import JournalMeter
from billing.rates import Rate
from billing.repository import UsageRepository
from billing.settling import ReservationSettlement
from cli.local.redis import start_redis
from db.session import Database
from engine.protocol import Submit, Usage
from routing.replica_set import ReplicaSet
from tenants.actors import OPERATOR
from tenants.limits.kinds import Amounts
from tenants.quotas.journal import JournalSettling, MeteredRequest
from tests.api.fakes import FakeEngine, Script
from tests.api.quota_site import AMPLE, CACHED, INPUT, OUTPUT, Site, quota_site
from tests.engine.process.conftest import folder
from tests.engine.process.engines import engine_process
from tests.support.waiting import eventually
from tokenization.codec import TextCodec

__all__ = ["folder"]

HELLO = [{"role": "user", "content": "Hello there, how are you?"}]
CHAT = {"model": "sapling", "messages": HELLO}
RATE = Rate("", INPUT, CACHED, OUTPUT)


@pytest.fixture
def engine(codec: TextCodec) -> FakeEngine:
    return FakeEngine(codec)


@pytest.fixture
async def site(
    engine: FakeEngine, codec: TextCodec, database: Database, redis_url: str
) -> AsyncIterator[Site]:
    async with quota_site(engine, codec, database, redis_url) as opened:
        yield opened


def charge(*usages: Usage) -> tuple[int, int, int]:
    """What one request with these parts is charged: (requests, tokens, micro-USD)."""
    tokens = sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)
    return 1, tokens, sum(RATE.cost(usage) for usage in usages)


async def refusal(sdk: openai.AsyncOpenAI, **fields: Any) -> openai.RateLimitError:
    """Ask until a limit refuses: on a slow machine a rate drains meanwhile."""
    for _ in range(20):
        try:
            await sdk.chat.completions.create(model="sapling", messages=HELLO, **fields)  # type: ignore[call-overload]
        except openai.RateLimitError as error:
            return error
    raise AssertionError("nothing was refused")


ANSWERED: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("chat/completions", {}),
    "stream": ("chat/completions", {"stream": True}),
    "bounded": ("chat/completions", {"max_tokens": 3}),
    "three choices": ("chat/completions", {"n": 3}),
    "prompts": ("completions", {"prompt": ["Hello", "there", "Hello there"], "n": 2}),
    "streamed prompts": ("completions", {"prompt": ["Hello", "there"], "stream": True}),
    "scores": (
        "completions",
        {"prompt": "Hello there", "echo": True, "logprobs": 1, "max_tokens": 0},
    ),
}


@pytest.mark.parametrize("case", ANSWERED)
async def test_what_is_answered_is_charged(site: Site, engine: FakeEngine, case: str) -> None:
    engine.script = lambda submit: engine.says(submit, "one two three", cached_tokens=2)
    path, fields = ANSWERED[case]
    body = {**CHAT, **fields} if path.startswith("chat") else {"model": "sapling", **fields}
    answer = await site.client.post(f"/v1/{path}", json=body)
    assert answer.status_code == 200
    assert await site.settled() == charge(*engine.billed.values())
    if not fields.get("stream"):
        usage = answer.json()["usage"]
        assert usage["total_tokens"] == (await site.settled())[1]


async def test_a_request_that_the_engine_refuses_does_not_count(site: Site, engine: FakeEngine) -> None:
    engine.script = lambda submit: Script(reject=("overloaded", "too much waits", 1.5))
    for body in (CHAT, CHAT | {"stream": True}):
        answer = await site.client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.headers["retry-after-ms"]) == (503, "1500")
        assert answer.headers["x-should-retry"] == "true"
    assert await site.settled() == (0, 0, 0)


async def test_of_a_list_of_prompts_the_parts_that_ran_count(site: Site, engine: FakeEngine) -> None:
    def script(submit: Submit) -> Script:
        if submit.request_id.endswith("-1"):
            return Script(reject=("overloaded", "too much waits"))
        return engine.says(submit, "one two")

    engine.script = script
    body = {"model": "sapling", "prompt": ["Hello", "there", "Hello there"]}
    assert (await site.client.post("/v1/completions", json=body)).status_code == 503
    assert await site.settled() == charge(*engine.billed.values())
    assert len(engine.billed) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_steps", [0, 2], ids=["before the first token", "in mid-answer"])
async def test_a_client_that_leaves_pays_what_was_made(
    site: Site, engine: FakeEngine, stream: bool, num_steps: int
) -> None:
    engine.script = lambda submit: engine.says(submit, "one two three four", hang_after=num_steps)
    sending = asyncio.create_task(
        site.client.post("/v1/chat/completions", json=CHAT | {"stream": stream, "n": 2})
    )
    await eventually(lambda: len(engine.submitted) == 1, seconds=10)
    assert site.quotas.num_open == 1
    await asyncio.sleep(0.05)
    sending.cancel()
    await eventually(lambda: len(engine.billed) == 1, seconds=10)
    (usage,) = engine.billed.values()
    assert usage.completion_tokens == 2 * num_steps
    assert await site.settled() == charge(usage)


@pytest.mark.parametrize("num_delivered", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_when_the_engine_dies_its_journal_settles(
    site: Site, engine: FakeEngine, stream: bool, num_delivered: int, redis_url: str
) -> None:
    engine.script = lambda submit: engine.says(submit, "one two three four", gone_after=num_delivered)
    answer = await site.client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    assert "engine_unavailable" in answer.text
    assert site.quotas.num_open == 0, "nobody renews it"
    assert (await site.books())["spend_per_month"].held > 0
    usage = Usage(len(engine.submitted[0].prompt_ids), 0, num_delivered + 2)
    requests, _, spend = charge(usage)
    async with redis.asyncio.Redis.from_url(redis_url) as raw:
        used = Amounts(requests, usage.prompt_tokens, usage.completion_tokens, spend)
        name = engine.submitted[0].request_id
        assert await JournalSettling(raw).settle([MeteredRequest(site.tenant_id, name, used)]) == 1
    assert await site.settled() == charge(usage)


async def test_without_an_engine_nothing_counts(site: Site, engine: FakeEngine) -> None:
    engine.ready = False
    assert (await site.client.post("/v1/chat/completions", json=CHAT)).status_code == 503
    assert await site.settled() == (0, 0, 0)


async def test_of_a_killed_engine_budgets_have_what_the_ledger_has(
    codec: TextCodec, database: Database, redis_url: str, base_dir: Any, folder: Any
) -> None:
    settings = {"base": base_dir, "base_name": "sapling", "context_length": 2048}
    for process in engine_process(folder, redis_url, **settings):
        process.start()
        engine = ReplicaSet([process.endpoint], "test")
        await engine.start()
        async with quota_site(engine, codec, database, redis_url) as site:
            await asyncio.wait_for(engine.wait_ready(), 60)
            body = CHAT | {"stream": True, "max_tokens": 1500, "ignore_eos": True}
            async with site.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                received = []
                async for line in answer.aiter_lines():
                    received.append(line)
                    if len(received) == 9:
                        process.kill()
            assert "engine_unavailable" in "".join(received)
            process.start()
            async with redis.asyncio.Redis.from_url(redis_url) as raw:
                meter = JournalMeter(
                    database, raw, "test", on_ended=ReservationSettlement(JournalSettling(raw))
                )

                async def metered(meter: JournalMeter = meter) -> bool:
                    return (await meter.drain()).num_requests > 0

                await eventually(metered, seconds=60)
            async with database.read(site.tenant_id) as session:
                (row,) = await UsageRepository(session, site.tenant_id).records(
                    datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC)
                )
            assert 0 < row.completion_tokens < 1500
            tokens = row.prompt_tokens + row.completion_tokens
            assert await site.settled() == (1, tokens, row.cost)
            assert row.cost > 0
        await engine.close()


async def test_no_database_connection_is_held_by_streams(site: Site, engine: FakeEngine) -> None:
    engine.script = lambda submit: engine.says(submit, "one two three", delay=0.02)
    await site.client.post("/v1/chat/completions", json=CHAT)  # caches are warm, and the key's use noted
    await eventually(lambda: site.database.checked_out == 0, seconds=10)
    held: list[int] = []

    async def read() -> None:
        body = CHAT | {"stream": True}
        async with site.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for _ in answer.aiter_lines():
                held.append(site.database.checked_out)

    await asyncio.gather(*(read() for _ in range(20)))
    assert set(held) == {0}
    assert (await site.settled())[0] == 21


# What callers are told ------------------------------------------------------------------------------------


async def test_every_answer_says_how_far_the_limits_are(site: Site) -> None:
    await site.set_plan({"requests_per_minute": 60, "tokens_per_minute": 6000})
    bounded = CHAT | {"max_tokens": 50}
    for body in (bounded, bounded | {"stream": True}):
        answer = await site.client.post("/v1/chat/completions", json=body)
        headers = answer.headers
        assert headers["x-ratelimit-limit-requests"] == "60"
        assert headers["x-ratelimit-limit-tokens"] == "6000"
        assert 57 <= int(headers["x-ratelimit-remaining-requests"]) <= 59
        assert 5000 < int(headers["x-ratelimit-remaining-tokens"]) < 6000
        for name in ("requests", "tokens"):
            assert headers[f"x-ratelimit-reset-{name}"].endswith("s")
        assert "x-rootstock-quota" not in headers


async def test_a_rate_is_refused_with_the_moment_to_come_again_and_the_stock_client_does(
    site: Site,
) -> None:
    await site.set_plan({"requests_per_minute": 2})
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key, max_retries=0) as sdk:
        for _ in range(2):
            await sdk.chat.completions.create(model="sapling", messages=HELLO)
        error = await refusal(sdk)
    headers = error.response.headers
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert headers["x-should-retry"] == "true"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert 0 < int(headers["retry-after-ms"]) <= 30_000
    assert int(headers["retry-after"]) * 1000 >= int(headers["retry-after-ms"])
    await site.set_plan({"requests_per_minute": 10_000})
    await site.settled()


async def test_a_budget_that_is_used_up_is_not_worth_another_try(site: Site, engine: FakeEngine) -> None:
    await site.set_plan({"tokens_per_day": 40})
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key) as sdk:
        error = await refusal(sdk, max_tokens=5)
        with pytest.raises(openai.RateLimitError, match="This request alone"):
            await sdk.chat.completions.create(model="sapling", messages=HELLO)  # all of the context, at worst
    assert error.code == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"
    assert "resets at" in str(error)
    _, tokens, _ = await site.settled()
    assert tokens <= 40
    assert tokens == sum(u.prompt_tokens + u.completion_tokens for u in engine.billed.values())


async def test_what_is_prepaid_is_served_to_the_last_micro_dollar(site: Site, engine: FakeEngine) -> None:
    """At once and by the stock client: refused for good with how to top up, and served once that is done."""
    billing = BillingAccounts(site.database, site.redis)
    await billing.set_mode(site.tenant_id, "prepaid", OPERATOR, now=datetime.now(UTC))

    async def pay(amount: int, name: str, paid_in: int) -> None:
        async with site.database.write(site.tenant_id) as session:
            now = datetime.now(UTC)
            await record_credit(session, site.redis, site.tenant_id, "top_up", amount, name, OPERATOR, at=now)

        async def heard() -> bool:
            known = (await site.keys.resolve(site.key, None)).limits
            return paid_in in [limit.amount for limit in known if limit.metric == "prepaid_balance"]

        await eventually(heard)

    await pay(1000, "first", 1000)

    async def ask() -> int:
        answer = await site.client.post("/v1/chat/completions", json=CHAT | {"max_tokens": 5})
        assert answer.status_code in (200, 429)
        return answer.status_code

    for _ in range(5):
        await asyncio.gather(*(ask() for _ in range(10)))
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key) as sdk:
        error = await refusal(sdk, max_tokens=100)
        assert error.code == "insufficient_quota"
        assert error.response.headers["x-should-retry"] == "false"
        assert "Top it up" in str(error)
        await site.settled()
        spent = sum(RATE.cost(usage) for usage in engine.billed.values())
        books = await site.books()
        assert (books["prepaid_balance"].used, books["prepaid_balance"].held) == (spent, 0)
        assert 0 < spent <= 1000
        await pay(100_000, "second", 101_000)
        assert (await sdk.chat.completions.create(model="sapling", messages=HELLO, max_tokens=100)).usage


async def test_the_most_that_a_request_can_cost_is_held_while_it_runs(site: Site, engine: FakeEngine) -> None:
    engine.script = lambda submit: engine.says(submit, "one two", hang_after=1)
    body = CHAT | {"max_tokens": 100, "n": 2, "stream": True}
    async with site.client.stream("POST", "/v1/chat/completions", json=body):
        books = await site.books()
        prompt = len(engine.submitted[0].prompt_ids)
        assert books["spend_per_month"].held == RATE.worst(prompt, 200)
        assert books["tokens_per_day"].held == prompt + 200
        assert books["concurrent_requests"].held == 1
    await site.settled()


async def test_above_the_contract_the_next_request_is_served_as_default(
    site: Site, engine: FakeEngine
) -> None:
    await site.set_plan(priority={"allowed": True, "contracted_tokens_per_minute": 60, "price_percent": 200})
    async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key, max_retries=0) as sdk:
        tiers, spend = [], 0
        for asked in ("priority", "auto", "default", "flex"):
            answer = await sdk.chat.completions.create(
                model="sapling", messages=HELLO, max_tokens=40, service_tier=asked
            )
            tiers.append(answer.service_tier)
            percent = {"priority": 200, "default": 100, "flex": 50}[answer.service_tier]
            rate = Rate("", INPUT, CACHED, OUTPUT, percent)
            spend += rate.cost(engine.billed[answer.id])
    assert tiers == ["priority", "default", "default", "flex"]
    assert [submit.priority for submit in engine.submitted] == tiers
    assert (await site.settled())[2] == spend


async def test_while_redis_is_away_rates_go_on_by_a_share_and_budgets_do_not(
    engine: FakeEngine, codec: TextCodec, database: Database, redis_url: str, servers_dir: Any
) -> None:
    with start_redis(servers_dir / "quota-path", ephemeral=True) as other:
        async with quota_site(
            engine, codec, database, other.url, limits={"requests_per_minute": 10_000}
        ) as site:
            assert (
                "x-rootstock-quota" not in (await site.client.post("/v1/chat/completions", json=CHAT)).headers
            )
            await site.redis.shutdown(nosave=True)
            await eventually(lambda: site.quotas.away, seconds=10)
            answer = await site.client.post("/v1/chat/completions", json=CHAT)
            assert (answer.status_code, answer.headers["x-rootstock-quota"]) == (200, "local")
            async with site.database.write("*") as session:
                from tenants.repository import TenantDirectory

                plan = await TenantDirectory(session).lock_plan("standard")
                assert plan is not None
                plan.limits = {"tokens_per_day": 1_000_000}

            async def failed_closed() -> bool:  # invalidations are not heard: keys are read every second
                answer = await site.client.post("/v1/chat/completions", json=CHAT)
                return (answer.status_code, "retry-after" in answer.headers) == (503, True)

            await eventually(failed_closed, seconds=10)


# Who may ask for what -------------------------------------------------------------------------------------


async def test_headers_that_name_the_key_s_own_are_fine_and_others_are_not(site: Site) -> None:
    context = await site.keys.resolve(site.key, None)
    assert context.project_id is not None

    def sdk(**names: str) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=site.key, max_retries=0, **names)  # type: ignore[arg-type]

    for organization in (site.tenant_id, "acme"):
        async with sdk(organization=organization, project=context.project_id) as own:
            await own.chat.completions.create(model="sapling", messages=HELLO)
    for names, code in (
        ({"organization": "tnt_other"}, "mismatched_organization"),
        ({"project": "proj_other"}, "mismatched_project"),
    ):
        async with sdk(**names) as wrong:
            with pytest.raises(openai.AuthenticationError) as refused:
                await wrong.models.list()
        assert refused.value.code == code


async def test_a_key_s_list_of_models_is_kept_to_and_shown(site: Site) -> None:
    from tenants.actors import OPERATOR
    from tenants.key_service import KeyRestrictions, KeyService
    from tests.api.quota_site import SECRET

    keys = KeyService(site.database, site.redis, SECRET)
    made = await keys.create(
        site.tenant_id, "narrow", OPERATOR, restrictions=KeyRestrictions(models=frozenset({"sapling:pirate"}))
    )
    headers = {"authorization": f"Bearer {made.plaintext}"}
    answer = await site.client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_permissions")
    assert "'sapling'" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "model"
    # One that it may use, and that is not there, is no secret.
    missing = await site.client.post(
        "/v1/chat/completions", json=CHAT | {"model": "sapling:pirate"}, headers=headers
    )
    assert missing.status_code == 404
    assert (await site.client.get("/v1/models", headers=headers)).json()["data"] == []
    assert (await site.client.get("/v1/models/sapling", headers=headers)).status_code == 403
    assert [model["id"] for model in (await site.client.get("/v1/models")).json()["data"]] == ["sapling"]
    assert await site.settled() == (0, 0, 0)


def test_every_metric_of_the_request_path_is_among_the_ample_ones() -> None:
    from tenants.limits.kinds import Metric

    counted = {metric for metric in Metric if metric.kind != "stored"}
    assert counted - set(AMPLE) == {Metric.TOKENS_PER_MONTH, Metric.PREPAID_BALANCE}
