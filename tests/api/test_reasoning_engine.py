"""A base that thinks, from the client to the engine's journal: sapling with another chat template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai
import pytest

from api.grammars.checks import GrammarChecks
from api.pools import Pools
from routing.replica_set import ReplicaSet
from telemetry.metrics import ServingMetrics
from tests.api.conftest import Served, build, serving, wait_until
from tests.api.fakes import KEY
from tests.engine.grammar.sapling import BASE
from tests.engine.process.conftest import folder as folder
from tests.engine.process.engines import billed, engine_process, journal_events
from tests.support.reasoning_templates import DEEPSEEK_R1
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.reasoning.formats import ReasoningFormat

HELLO: Any = [{"role": "user", "content": "Describe the animal."}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 0, "maximum": 30}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
BUDGET = 12


@pytest.fixture
def thinking_base(folder: Path) -> Path:
    """Its prompts end within thinking, which sapling never ends by itself."""
    base = folder / "base"
    shutil.copytree(BASE, base)
    (base / "chat_template.jinja").write_text(DEEPSEEK_R1)
    return base


@pytest.fixture
def served(thinking_base: Path, folder: Path, redis_url: str) -> Iterator[Served]:
    codec = TextCodec.load(thinking_base)
    format = ReasoningFormat.of(codec)
    assert format is not None
    settings = {"null": False, "base": thinking_base, "base_name": "sapling", "device": "cpu"}
    for process in engine_process(folder, redis_url, **settings, kv_bytes=64 << 20):
        process.start()
        client = ReplicaSet([process.endpoint], "test")
        world = build(codec, reasoning=OfferedReasoning.of(format, {"low": BUDGET}))
        grammars = GrammarChecks(thinking_base, ServingMetrics())
        pool = replace(world.services.pools.default, engine=client, grammars=grammars)
        world.services = replace(world.services, pools=Pools(pool))
        with serving(world, close=client.close, start=client.start) as running:
            wait_until(partial(_is_ready, client), 120)
            yield running


def test_budget_grammar_and_usage(served: Served, redis_url: str) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0, timeout=120) as sdk:

        def ask(effort: Any = "low", **fields: Any) -> Any:
            return sdk.chat.completions.create(
                model="sapling", messages=HELLO, max_tokens=120, seed=11, reasoning_effort=effort, **fields
            )

        structured = ask(response_format=FORMAT, n=2)
        on: Any = {"extra_body": {"ignore_eos": True}}  # sapling might end within its thinking
        free = ask(logprobs=True, **on)
        chunks = list(ask(stream=True, stream_options={"include_usage": True}, **on))
        off = ask("none", **on)
    for choice in structured.choices:
        assert choice.finish_reason == "stop"
        assert choice.message.reasoning
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(choice.message.content))
    codec = served.world.services.pools.default.text
    num_forced = len(codec.encode_part("\n</think>"))
    thought = {id: details(answer.usage) for id, answer in ((free.id, free), (structured.id, structured))}
    assert thought == {free.id: BUDGET + num_forced, structured.id: 2 * (BUDGET + num_forced)}
    (choice,) = free.choices
    assert choice.message.content
    assert "think>" not in choice.message.content
    shown = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
    assert shown.decode(errors="replace").strip() == choice.message.content.strip()
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == choice.message.reasoning
    assert "".join(delta.content or "" for delta in deltas) == choice.message.content
    assert details(chunks[-1].usage) == BUDGET + num_forced
    assert details(off.usage) == 0
    assert off.choices[0].message.content
    events = billed(journal_events(redis_url))
    counted = {name: event.usage.reasoning_tokens for name, event in events.items()}
    assert {name: counted[name] for name in (*thought, off.id)} == thought | {off.id: 0}


def _is_ready(client: ReplicaSet) -> bool:
    return client.ready and client.info is not None


def details(usage: Any) -> int:
    return int(usage.completion_tokens_details.reasoning_tokens)
