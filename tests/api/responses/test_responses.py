"""Responses through the stock client: whole, streamed, stored, continued and deleted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from tests.api.fakes import KEY, Script
from tests.api.responses.conftest import CALL, PROJECT_KEY, WEATHER, Site, client_of
from tests.api.test_documentation import example

ENDS = {"response.completed", "response.failed", "response.incomplete"}
HEADERS = {"authorization": f"Bearer {KEY}"}


def refused(site: Site, **body: Any) -> dict[str, Any]:
    """The error of a request with these fields."""
    url = f"{site.served.url}/v1/responses"
    answer = httpx.post(url, json={"model": "sapling", "input": "Hi", **body}, headers=HEADERS, timeout=60)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_a_response_whole(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello world")
    made = sdk.responses.create(
        model="sapling", input="Hello", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5
    )
    assert Response.model_validate(made.model_dump(warnings="error"), strict=True)
    assert made.output_text == "Hello world"
    assert (made.status, made.object, made.model) == ("completed", "response", "sapling")
    assert (made.instructions, made.metadata, made.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert made.usage is not None
    engine = site.served.world.engine
    used = engine.billed[made.id]
    assert (made.usage.input_tokens, made.usage.output_tokens) == (used.prompt_tokens, used.completion_tokens)
    assert made.usage.total_tokens == used.prompt_tokens + used.completion_tokens
    assert made.id.startswith("resp_")
    assert site.prompt == "<|bos|><|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>"
    assert engine.submitted[-1].labels["endpoint"] == "responses"
    assert engine.submitted[-1].request_id == made.id


def test_a_response_streamed(sdk: openai.OpenAI, site: Site) -> None:
    site.says(f"Let me look.\n\n{CALL}")
    events = list(sdk.responses.create(model="sapling", input="Hello", tools=[WEATHER], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert [kind for kind in kinds if kind.endswith(".done")] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert kinds[-1] == "response.completed"
    assert (
        sum(kind in ("response.completed", "response.failed", "response.incomplete") for kind in kinds) == 1
    )
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Let me look."
    written = "".join(
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    )
    last = events[-1]
    assert last.type == "response.completed"
    message, call = last.response.output
    assert (message.type, message.content[0].text) == ("message", text)
    assert (call.type, call.name, call.arguments) == ("function_call", "get_weather", written)
    assert json.loads(written) == {"city": "Paris"}
    assert sdk.responses.retrieve(last.response.id) == last.response


def test_every_event_has_its_fields(sdk: openai.OpenAI, site: Site) -> None:
    """The client builds events without validation; here each is validated by its own type."""
    site.says(f"Well.\n\n{CALL}")
    custom: Any = {"type": "custom", "name": "get_weather"}
    for tool in (WEATHER, custom):
        stream = sdk.responses.create(model="sapling", input="Hi", tools=[tool], stream=True)
        for event in stream:
            type(event).model_validate_json(event.to_json())


def test_the_stream_helper_accumulates(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello world")
    with sdk.responses.stream(model="sapling", input="Hello") as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Hello world"


def test_a_response_is_continued(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello Bob")
    first = sdk.responses.create(model="sapling", input="I am Bob", instructions="Be brief.")
    site.says("Bob")
    second = sdk.responses.create(model="sapling", input="Who am I?", previous_response_id=first.id)
    assert site.prompt == (
        "<|bos|><|user|>I am Bob<|end|><|assistant|>Hello Bob<|end|><|user|>Who am I?<|end|><|assistant|>"
    )
    site.says("Yes")
    sdk.responses.create(model="sapling", input="Sure?", previous_response_id=second.id)
    assert site.prompt.count("<|user|>") == 3
    assert second.previous_response_id == first.id
    sdk.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="was deleted or has expired") as caught:
        sdk.responses.create(model="sapling", input="Sure?", previous_response_id=second.id)
    assert caught.value.param == "previous_response_id"


def test_calls_and_their_results_are_kept(sdk: openai.OpenAI, site: Site) -> None:
    site.says(f"Wait.\n\n{CALL}")
    first = sdk.responses.create(model="sapling", input="Weather?", tools=[WEATHER])
    call = first.output[1]
    assert call.type == "function_call"
    site.says("Sunny")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    done = sdk.responses.create(
        model="sapling", input=[result], previous_response_id=first.id, tools=[WEATHER]
    )
    assert done.output_text == "Sunny"
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>' in site.prompt
    assert f"sun of get_weather {call.call_id}" in site.prompt
    # The same, with the whole history sent by the client.
    whole = sdk.responses.create(
        model="sapling",
        input=[{"role": "user", "content": "Weather?"}, *[item.to_dict() for item in first.output], result],
        tools=[WEATHER],
        store=False,
    )
    assert whole.output_text == "Sunny"
    assert "Wait.<tool_call>" in site.prompt.replace("\n", "")


def test_what_is_stored_is_listed_and_deleted(sdk: openai.OpenAI, site: Site) -> None:
    parts: Any = [
        {"role": "developer", "content": "Short."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
    ]
    made = sdk.responses.create(model="sapling", input=parts)
    assert site.prompt.startswith("<|bos|><|system|>Short.<|end|><|user|>a\nb<|end|>")
    page = sdk.responses.input_items.list(made.id, order="asc")
    assert [item.role for item in page.data] == ["developer", "user"]
    assert [part.text for part in page.data[1].content] == ["a", "b"]
    newest = sdk.responses.input_items.list(made.id, limit=1)
    assert [item.id for item in newest] == [item.id for item in reversed(page.data)]
    sdk.responses.delete(made.id)
    for call in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(made.id)
    assert site.sql("SELECT id FROM stored_responses") == []


def test_nothing_is_stored_without_store(sdk: openai.OpenAI, site: Site) -> None:
    made = sdk.responses.create(model="sapling", input="Hello", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    assert site.sql("SELECT id FROM stored_responses") == []


def test_what_is_stored_is_unreadable_in_the_database(sdk: openai.OpenAI, site: Site) -> None:
    site.says("The secret answer")
    made = sdk.responses.create(model="sapling", input="The secret prompt", metadata={"k": "secret value"})
    (row,) = site.sql("SELECT to_jsonb(r)::text FROM stored_responses r")
    assert made.id in row
    assert "secret" not in row
    for word in ("secret", "prompt", "answer"):
        assert word.encode().hex() not in row
    other = sdk.responses.create(model="sapling", input="Another")
    site.sql(
        "UPDATE stored_responses r SET sealed_output = o.sealed_output FROM stored_responses o "
        "WHERE r.id = :id AND o.id = :other",
        id=made.id,
        other=other.id,
    )
    with pytest.raises(openai.InternalServerError):
        sdk.responses.retrieve(made.id)


def test_others_do_not_see_it(sdk: openai.OpenAI, other: openai.OpenAI, site: Site) -> None:
    made = sdk.responses.create(model="sapling", input="Hello")
    with client_of(site, PROJECT_KEY) as second_project:
        for client in (other, second_project):
            for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
                with pytest.raises(openai.NotFoundError):
                    call(made.id)
            with pytest.raises(openai.NotFoundError) as caught:
                client.responses.create(model="sapling", input="Hi", previous_response_id=made.id)
            assert caught.value.param == "previous_response_id"
    assert sdk.responses.retrieve(made.id).id == made.id


class Person(BaseModel):
    name: str


def test_output_is_parsed(sdk: openai.OpenAI, site: Site) -> None:
    site.says('{"name": "Bob"}')
    made = sdk.responses.parse(model="sapling", input="Who?", text_format=Person)
    assert made.output_parsed == Person(name="Bob")
    grammar = site.served.world.engine.submitted[-1].grammar
    assert grammar is not None
    assert json.loads(grammar.source)["required"] == ["name"]
    error = refused(
        site,
        text={"format": {"type": "json_schema", "name": "it", "schema": {"type": "wizard"}, "strict": True}},
    )
    assert error["param"].startswith("text.format.schema"), error


def test_output_reaches_its_limit(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello world and", finish="length")
    made = sdk.responses.create(model="sapling", input="Hello", max_output_tokens=16)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"
    assert made.output[0].status == "incomplete"
    assert site.served.world.engine.submitted[-1].sampling.max_tokens == 16
    *_, last = sdk.responses.create(model="sapling", input="Hello", max_output_tokens=16, stream=True)
    assert last.type == "response.incomplete"


def test_an_engine_that_dies_in_the_stream(sdk: openai.OpenAI, site: Site) -> None:
    engine = site.served.world.engine

    def dies(submit: Any) -> Script:
        script = engine.says(submit, "Hello world")
        script.gone_after = 1
        return script

    engine.script = dies
    events = list(sdk.responses.create(model="sapling", input="Hello", stream=True))
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "/secret/" not in last.to_json()
    assert sdk.responses.retrieve(last.response.id).status == "failed"


def test_log_probabilities_are_included(sdk: openai.OpenAI, site: Site) -> None:
    made = sdk.responses.create(
        model="sapling", input="Hello", include=["message.output_text.logprobs"], top_logprobs=2
    )
    (part,) = made.output[0].content
    assert part.logprobs
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    assert "".join(entry.token for entry in part.logprobs).startswith(part.text)


def test_a_custom_tool_is_called(sdk: openai.OpenAI, site: Site) -> None:
    call = '<tool_call>\n{"name": "run", "arguments": {"input": "ls \\"-l\\""}}\n</tool_call>'
    site.says(call)
    tool: Any = {"type": "custom", "name": "run", "description": "Runs a command."}
    made = sdk.responses.create(model="sapling", input="List files", tools=[tool])
    (item,) = made.output
    assert (item.type, item.name, item.input) == ("custom_tool_call", "run", 'ls "-l"')
    output: Any = {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "a.txt"}
    site.says("One file")
    sdk.responses.create(model="sapling", input=[output], previous_response_id=made.id, tools=[tool])
    assert '"arguments": {"input": "ls \\"-l\\""}' in site.prompt


def test_tokens_are_counted(sdk: openai.OpenAI, site: Site) -> None:
    made = sdk.responses.create(model="sapling", input="Hello there", tools=[WEATHER])
    counted = sdk.responses.input_tokens.count(model="sapling", input="Hello there", tools=[WEATHER])
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens
    more = sdk.responses.input_tokens.count(model="sapling", input="More", previous_response_id=made.id)
    fresh = sdk.responses.input_tokens.count(model="sapling", input="More")
    assert more.input_tokens > fresh.input_tokens, "the turns before it count"
    assert len(site.served.world.engine.submitted) == 1


def test_an_item_is_referred_to(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Seven")
    first = sdk.responses.create(model="sapling", input="A number?")
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    sdk.responses.create(model="sapling", input=[{"role": "user", "content": "Q"}, reference])
    assert site.prompt == "<|bos|><|user|>Q<|end|><|assistant|>Seven<|end|><|assistant|>"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.responses.create(model="sapling", input=[{"type": "item_reference", "id": "msg_absent"}])
    assert caught.value.param == "input"


def test_the_oldest_turns_are_left_out(sdk: openai.OpenAI, site: Site) -> None:
    long = "word " * 60
    turns: Any = [{"role": "system", "content": "Keep me."}]
    for number in range(12):
        turns += [{"role": "user", "content": f"Q{number} {long}"}, {"role": "assistant", "content": "A"}]
    turns.append({"role": "user", "content": "The last"})
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.responses.create(model="sapling", input=turns)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    made = sdk.responses.create(model="sapling", input=turns, truncation="auto", max_output_tokens=16)
    assert made.truncation == "auto"
    assert site.prompt.startswith("<|bos|><|system|>Keep me.<|end|><|user|>Q")
    assert site.prompt.endswith("<|user|>The last<|end|><|assistant|>")
    assert "Q0 " not in site.prompt


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"reasoning": {"effort": "high"}}, "reasoning.effort", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        (
            {
                "tools": [
                    {
                        "type": "custom",
                        "name": "x",
                        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/ start?"},
                    }
                ]
            },
            "tools[0].format.definition",
            "unsupported_parameter",
        ),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
        ({"surprise": 1}, "surprise", "unsupported_parameter"),
        ({"reasoning": {"effort": "most"}}, "reasoning.effort", "invalid_value"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]", "unsupported_parameter"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
            "input[0].encrypted_content",
            "invalid_value",
        ),
        ({"input": [{"type": "compaction"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{"type": "message", "role": "wizard", "content": ""}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": "a", "x": 1}]}, "input[0].x", "unsupported_parameter"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
            "input",
            "invalid_value",
        ),
        ({"input": None}, "input", "invalid_value"),
        ({"background": True, "store": False}, "store", "invalid_value"),
        (
            {"previous_response_id": "resp_1", "conversation": "conv_1"},
            "previous_response_id",
            "invalid_value",
        ),
        ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"service_tier": "scale"}, "service_tier", "invalid_value"),
        ({"conversation": "conv_1", "store": False}, "conversation", "invalid_value"),
        (
            {"tools": [WEATHER, WEATHER]},
            "tools[1].name",
            "invalid_value",
        ),
    ],
)
def test_what_is_refused_names_its_field(site: Site, body: dict[str, Any], param: str, code: str) -> None:
    error = refused(site, **body)
    assert (error["param"], error["code"]) == (param, code), error
    assert site.served.world.engine.submitted == []


def test_an_organization_that_stores_nothing(sdk: openai.OpenAI, site: Site) -> None:
    site.change_caller(stores_nothing=True)
    made = sdk.responses.create(model="sapling", input="Hello")
    assert made.store is False
    for field in ("store", "background"):
        error = refused(site, **{field: True})
        assert (error["param"], error["code"]) == (field, "storage_not_allowed")
    with pytest.raises(openai.BadRequestError):
        sdk.conversations.create()
    assert site.sql("SELECT id FROM stored_responses") == []


def test_a_database_that_is_away_costs_no_answer(sdk: openai.OpenAI, site: Site) -> None:
    """The response says that it is not stored."""
    with site.blocked("stored_responses"):
        made = sdk.responses.create(model="sapling", input="Hello")
    assert (made.status, made.store) == ("completed", False)
    assert made.output_text == "Hello world"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_the_documents_example(site: Site) -> None:
    code = example("Responses").replace("http://HOST:PORT", site.served.url).replace('"..."', f'"{KEY}"')
    names: dict[str, Any] = {}
    exec(code.replace("base:support", "sapling"), names)
    assert names["again"].previous_response_id == names["first"].id
    assert [item.role for item in names["items"]] == ["user", "assistant"]
    assert names["status"] in ("queued", "in_progress", "completed")
    assert names["event"].type == "response.completed"
