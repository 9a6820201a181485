"""Classes of service: which one is asked for, which one serves, and what the answer says of it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import httpx
import pytest

from engine.client import RequestRejected
from engine.protocol import PriorityClass
from tenants.quotas import Contract
from tenants.tier_terms import read
from tests.api.conftest import World
from tests.api.fakes import KEY, Script

BODY = {"model": "sapling", "messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 5}
PRIORITY, DEFAULT, FLEX = PriorityClass.PRIORITY, PriorityClass.DEFAULT, PriorityClass.FLEX


def give_terms(world: World, **classes: dict[str, Any]) -> None:
    caller = world.keys.callers[KEY]
    world.keys.callers[KEY] = replace(caller, plan=replace(caller.plan, terms=read(classes)))


async def ask(client: httpx.AsyncClient, service_tier: str | None = None, **fields: Any) -> httpx.Response:
    body = BODY | fields | ({"service_tier": service_tier} if service_tier else {})
    answer = await client.post("/v1/chat/completions", json=body)
    await asyncio.sleep(0)  # what it used is settled behind the answer, in the loop's next turn
    return answer


@pytest.mark.parametrize(
    ("asked", "plan_has_priority", "served"),
    [
        (None, False, DEFAULT),
        ("auto", False, DEFAULT),
        ("default", False, DEFAULT),
        ("flex", False, FLEX),
        (None, True, PRIORITY),
        ("auto", True, PRIORITY),
        ("default", True, DEFAULT),
        ("priority", True, PRIORITY),
        ("flex", True, FLEX),
    ],
)
async def test_what_is_asked_for_and_what_serves(
    client: httpx.AsyncClient,
    world: World,
    asked: str | None,
    plan_has_priority: bool,
    served: PriorityClass,
) -> None:
    give_terms(world, priority={"allowed": plan_has_priority, "price_percent": 200})
    answer = await ask(client, asked)
    assert answer.json()["service_tier"] == served
    (submit,) = world.engine.submitted
    assert submit.priority == submit.labels["service_tier"] == served
    percent = {PRIORITY: 200, DEFAULT: 100, FLEX: 50}[served]
    assert submit.labels["rate"] == f"prc_one:1000000:500000:2000000:{percent}"


@pytest.mark.parametrize("asked", ["priority", "flex"])
async def test_a_class_that_the_plan_does_not_offer_is_refused_by_name(
    client: httpx.AsyncClient, world: World, asked: str
) -> None:
    give_terms(world, flex={"allowed": False})
    answer = await ask(client, asked)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        "invalid_value",
        "service_tier",
    )
    assert not world.quotas.reserved
    assert not world.engine.submitted


@pytest.mark.parametrize("asked", [None, "auto", "priority"])
@pytest.mark.parametrize("stream", [False, True])
async def test_above_the_contract_a_request_is_served_and_billed_as_default_and_says_so(
    client: httpx.AsyncClient, world: World, asked: str | None, stream: bool
) -> None:
    terms = {"allowed": True, "price_percent": 200, "contracted_tokens_per_minute": 1000}
    give_terms(world, priority=terms)
    world.quotas.within_contract = False
    answer = await ask(client, asked, stream=stream)
    assert answer.status_code == 200
    assert '"service_tier":"default"' in answer.text
    assert "priority" not in answer.text
    (submit,) = world.engine.submitted
    assert submit.priority == submit.labels["service_tier"] == DEFAULT
    assert submit.labels["rate"].endswith(":100")
    assert world.quotas.contracts == [Contract("priority", 1000)]
    prompt, completion = len(submit.prompt_ids), len(world.engine.tokens("Hello world")) + 1
    (used,) = world.quotas.settled.values()
    assert used.spend == prompt + 2 * completion
    # Before it was known which class would serve it, the dearer one was held.
    assert world.quotas.reserved[0].worst.spend == 2 * (prompt + 2 * BODY["max_tokens"])


async def test_within_the_contract_priority_is_what_it_pays(client: httpx.AsyncClient, world: World) -> None:
    terms = {"allowed": True, "price_percent": 175, "contracted_tokens_per_minute": 1000}
    give_terms(world, priority=terms)
    assert (await ask(client)).json()["service_tier"] == "priority"
    (submit,) = world.engine.submitted
    (used,) = world.quotas.settled.values()
    assert used.output_tokens == len(world.engine.tokens("Hello world")) + 1
    assert used.spend == math.ceil(175 * (len(submit.prompt_ids) + 2 * used.output_tokens) / 100)


async def test_a_bound_on_flex_ends_in_default_too(client: httpx.AsyncClient, world: World) -> None:
    give_terms(world, flex={"contracted_tokens_per_minute": 10})
    world.quotas.within_contract = False
    assert (await ask(client, "flex")).json()["service_tier"] == "default"
    assert world.engine.submitted[0].priority == DEFAULT
    # Default is dearer than flex: that is what had to be held.
    assert world.quotas.reserved[0].worst.spend == len(world.engine.submitted[0].prompt_ids) + 2 * 5


async def test_the_plan_s_longest_wait_goes_with_the_request(client: httpx.AsyncClient, world: World) -> None:
    await ask(client)
    give_terms(world, default={"max_wait_ms": 1500})
    await ask(client)
    assert [submit.ttft_target for submit in world.engine.submitted] == [None, 1.5]


async def test_flex_that_finds_no_room_is_asked_to_come_again_and_others_get_503(
    client: httpx.AsyncClient, world: World
) -> None:
    reject = RequestRejected("overloaded", "too much waits", 2.5)
    world.engine.script = lambda submit: Script(reject=(reject.code, reject.message, reject.retry_after))
    for asked, status, code in (
        ("flex", 429, "resource_unavailable"),
        ("default", 503, "server_is_overloaded"),
    ):
        answer = await ask(client, asked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert answer.headers["retry-after"] == "3"
        assert answer.headers["retry-after-ms"] == "2500"
        assert answer.headers["x-should-retry"] == "true"
    assert len(world.quotas.cancelled) == 2
    assert world.quotas.num_held == 0


async def test_requests_with_one_cache_key_belong_together(client: httpx.AsyncClient, world: World) -> None:
    await ask(client)
    await ask(client, prompt_cache_key="thread-7")
    assert world.engine.sessions == [None, "thread-7"]
