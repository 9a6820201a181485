"""What counts as served, and as failed; and the report a tenant sees of it."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from api.app import create_app
from sla.recorder import Delta, SlaRecorder
from tests.api.conftest import World, build
from tests.api.fakes import ADMIN_KEY, KEY, Script
from tokenization.codec import TextCodec

BODY = {"model": "sapling", "messages": [{"role": "user", "content": "hi"}]}


class Kept:
    """A Redis that keeps what is handed on."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []

    async def xadd(self, stream: str, fields: dict[str, Any]) -> None:
        self.batches.append(fields["counts"])


class Seen:
    """A world whose counts are looked at."""

    def __init__(self, codec: TextCodec) -> None:
        self._kept = Kept()
        self._recorder = SlaRecorder(self._kept)  # type: ignore[arg-type]
        self.world: World = build(codec, sla=self._recorder)
        transport = httpx.ASGITransport(create_app(self.world.services), raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {KEY}"}
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=BODY | fields)

    async def counts(self) -> dict[str, tuple[int, int, int, int]]:
        """By class: requests, failed, with a first token, with an output rate."""
        self.world.services.deferred_work.run()
        await self._recorder.flush()
        found: dict[str, tuple[int, int, int, int]] = {}
        for batch in self._kept.batches:
            for delta in msgspec.msgpack.decode(batch, type=list[Delta]):
                before = found.get(delta.service_tier, (0, 0, 0, 0))
                now = (delta.requests, delta.failed, delta.first_tokens, delta.rated)
                found[delta.service_tier] = tuple(  # type: ignore[assignment]
                    a + b for a, b in zip(before, now, strict=True)
                )
        return found


@pytest.fixture
async def seen(codec: TextCodec) -> Any:
    made = Seen(codec)
    yield made
    await made.client.aclose()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_counts_in_the_class_that_served_it(seen: Seen, stream: bool) -> None:
    assert (await seen.ask(stream=stream)).status_code == 200
    assert (await seen.ask(stream=stream, service_tier="flex")).status_code == 200
    assert await seen.counts() == {"default": (1, 0, 1, 0), "flex": (1, 0, 1, 0)}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_answer_has_an_output_rate(seen: Seen, stream: bool) -> None:
    seen.world.engine.script = lambda submit: seen.world.engine.says(submit, "word " * 40, delay=0.001)
    await seen.ask(stream=stream)
    assert await seen.counts() == {"default": (1, 0, 1, 1)}


async def test_what_the_caller_did_wrong_does_not_count(seen: Seen) -> None:
    answers = [
        await seen.ask(temperature="hot"),
        await seen.ask(model="nobody"),
        await seen.ask(service_tier="gold"),
        await seen.client.post("/v1/chat/completions", json=BODY, headers={"authorization": "Bearer x"}),
    ]
    assert {answer.status_code for answer in answers} <= {400, 401, 404}
    assert await seen.counts() == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_fails_by_our_fault_counts_as_failed(seen: Seen, stream: bool) -> None:
    seen.world.engine.script = lambda submit: Script(reject=("overloaded", "full"))
    assert (await seen.ask(stream=stream)).status_code == 503
    seen.world.engine.ready = False
    assert (await seen.ask(stream=stream)).status_code == 503
    assert await seen.counts() == {"default": (2, 2, 0, 0)}


async def test_a_stream_that_breaks_off_is_a_failure_and_counts_once(seen: Seen) -> None:
    def dies(submit: Any) -> Script:
        script = seen.world.engine.says(submit, "one two three four")
        script.gone_after = 2
        return script

    seen.world.engine.script = dies
    answer = await seen.ask(stream=True)
    assert answer.status_code == 200
    assert "error" in answer.text
    assert await seen.counts() == {"default": (1, 1, 0, 0)}


async def test_flex_that_is_shed_does_not_count_against_us(seen: Seen) -> None:
    """It is refused as too much of what is left over, which nobody was promised."""
    seen.world.engine.script = lambda submit: Script(reject=("overloaded", "full"))
    assert (await seen.ask(service_tier="flex")).status_code == 429
    assert await seen.counts() == {}


async def test_the_metrics_say_the_same(seen: Seen) -> None:
    await seen.ask()
    seen.world.engine.ready = False
    await seen.ask()
    shown = (await seen.client.get("/metrics")).text
    assert 'rootstock_requests_total{outcome="ok",service_tier="default"} 1.0' in shown
    assert 'rootstock_requests_total{outcome="failed",service_tier="default"} 1.0' in shown
    assert 'rootstock_first_tokens_total{outcome="in_time",service_tier="default"} 1.0' in shown


async def test_the_report_needs_an_admin_key_and_known_parameters(seen: Seen) -> None:
    assert (await seen.client.get("/v1/sla/reports")).status_code == 403
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    answer = await seen.client.get("/v1/sla/reports?year=2026", headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "year")
