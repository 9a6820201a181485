"""openai-agents over the Responses API: tools, handoffs, structured output, sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    FunctionTool,
    Handoff,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    handoff,
)
from pydantic import BaseModel

from engine.protocol import Submit
from tests.api.fakes import KEY, Script
from tests.api.responses.conftest import Site

CONFIG = RunConfig(tracing_disabled=True)


@pytest.fixture
async def model(site: Site) -> AsyncIterator[OpenAIResponsesModel]:
    async with openai.AsyncOpenAI(base_url=f"{site.served.url}/v1", api_key=KEY, max_retries=0) as client:
        yield OpenAIResponsesModel("sapling", client)


def answers(site: Site, *texts: str) -> None:
    """Has the engine give these answers one after another."""
    engine, left = site.served.world.engine, list(texts)

    def next_one(submit: Submit) -> Script:
        return engine.says(submit, left.pop(0))

    engine.script = next_one


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@function_tool(strict_mode=False)
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Sunny in {city}"


def to(agent: Agent[Any]) -> Handoff[Any, Any]:
    made = handoff(agent)
    made.strict_json_schema = False
    return made


async def test_a_tool_is_called_and_its_result_read(site: Site, model: OpenAIResponsesModel) -> None:
    assert isinstance(get_weather, FunctionTool)
    agent = Agent(name="weather", instructions="Help.", model=model, tools=[get_weather])
    answers(site, call("get_weather", city="Paris"), "It is sunny.")
    result = await Runner.run(agent, "Weather in Paris?", run_config=CONFIG)
    assert result.final_output == "It is sunny."
    assert "Sunny in Paris of get_weather" in site.prompt
    streamed = Runner.run_streamed(agent, "Weather in Rome?", run_config=CONFIG)
    answers(site, call("get_weather", city="Rome"), "Sunny again.")
    kinds = [event.type async for event in streamed.stream_events()]
    assert streamed.final_output == "Sunny again."
    assert "raw_response_event" in kinds


async def test_an_agent_hands_over(site: Site, model: OpenAIResponsesModel) -> None:
    billing = Agent(name="billing", instructions="You do bills.", model=model)
    front = Agent(name="front", instructions="You route.", model=model, handoffs=[to(billing)])
    answers(site, call("transfer_to_billing"), "Your bill is 5.")
    result = await Runner.run(front, "My bill?", run_config=CONFIG)
    assert (result.final_output, result.last_agent.name) == ("Your bill is 5.", "billing")
    assert "You do bills." in site.prompt


class Person(BaseModel):
    name: str
    age: int


async def test_output_is_structured(site: Site, model: OpenAIResponsesModel) -> None:
    agent = Agent(name="reader", instructions="Read.", model=model, output_type=Person)
    answers(site, '{"name": "Bob", "age": 7}')
    result = await Runner.run(agent, "Bob is seven", run_config=CONFIG)
    assert result.final_output == Person(name="Bob", age=7)
    grammar = site.served.world.engine.submitted[-1].grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"


async def test_a_session_remembers(site: Site, model: OpenAIResponsesModel) -> None:
    agent = Agent(name="friend", instructions="Talk.", model=model, tools=[get_weather])
    client = model._client
    session = OpenAIConversationsSession(openai_client=client)
    answers(site, "Hello Bob.", call("get_weather", city="Oslo"), "Sunny there.")
    await Runner.run(agent, "I am Bob", session=session, run_config=CONFIG)
    result = await Runner.run(agent, "Weather in Oslo?", session=session, run_config=CONFIG)
    assert result.final_output == "Sunny there."
    for said in ("I am Bob", "Hello Bob.", "Weather in Oslo?", "Sunny in Oslo"):
        assert said in site.prompt
    assert len(await session.get_items()) == 6
    last: Any = await session.pop_item()
    assert last["content"][0]["text"] == "Sunny there."
    assert len(await session.get_items()) == 5
    await session.clear_session()


async def test_the_server_keeps_the_state(site: Site, model: OpenAIResponsesModel) -> None:
    agent = Agent(name="friend", instructions="Talk.", model=model)
    answers(site, "Hello Bob.", "Bob.", "Bob, still.")
    first = await Runner.run(agent, "I am Bob", run_config=CONFIG)
    second = await Runner.run(
        agent, "Who am I?", previous_response_id=first.last_response_id, run_config=CONFIG
    )
    assert second.final_output == "Bob."
    conversation = await model._client.conversations.create()
    third = await Runner.run(agent, "Me?", conversation_id=conversation.id, run_config=CONFIG)
    assert third.final_output == "Bob, still."
