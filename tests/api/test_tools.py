"""Function calls through the stock client: offered, called, streamed, answered, and kept apart by request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from api.settings import ApiSettings
from engine.protocol import Submit
from tests.api.conftest import Served, build, serving
from tests.api.fakes import KEY, Script
from tests.api.test_documentation import example
from tests.support.text_base import SPECIAL, TEMPLATE, TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.tools.formats import FORMATS, ToolFormat

HELLO: Any = [{"role": "user", "content": "Hello there"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city. <|end|>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "<|bos|>": {}}},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "get_time"}}
PARIS = '{"city": "Paris 🙂"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def tool_codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(write_base(tmp_path_factory.mktemp("tools"), TOOL_TEMPLATE))


@pytest.fixture
def served(tool_codec: TextCodec) -> Iterator[Served]:
    with serving(build(tool_codec, tool_format=ToolFormat.of(tool_codec))) as running:
        yield running


@pytest.fixture
def sdk(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


def says(served: Served, text: str, **options: Any) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, text, **options)


def prompt_of(served: Served) -> str:
    """The last prompt as text, with special tokens by name."""
    text = served.world.services.pools.default.text
    return b"".join(
        (text.special_token(token_id) or "").encode() or text.vocabulary.decode([token_id])
        for token_id in served.world.engine.submitted[-1].prompt_ids
    ).decode()


def test_a_message_with_calls(sdk: openai.OpenAI, served: Served) -> None:
    says(served, f"{CALL}\n{TIME}")
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER, CLOCK])
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content, choice.message.role) == (
        "tool_calls",
        None,
        "assistant",
    )
    first, second = choice.message.tool_calls or ()
    assert (first.type, first.function.name, first.function.arguments) == ("function", "get_weather", PARIS)
    assert (second.function.name, second.function.arguments) == ("get_time", "{}")
    assert first.id != second.id
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in (first, second))
    assert answer.usage.completion_tokens == len(served.world.engine.tokens(f"{CALL}\n{TIME}")) + 1


def test_the_template_is_given_tools_without_control_tokens(sdk: openai.OpenAI, served: Served) -> None:
    sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER])
    ids = served.world.engine.submitted[-1].prompt_ids
    assert '"name": "get_weather", "description": "The weather of a city. <|end|>"' in prompt_of(served)
    names = [SPECIAL[token_id] for token_id in ids if token_id < len(SPECIAL)]
    assert names == ["<|bos|>", "<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]


@pytest.mark.parametrize("per_step", [1, 3, 1000])
def test_a_stream_with_calls(sdk: openai.OpenAI, served: Served, per_step: int) -> None:
    says(served, f"Let me look.\n\n{CALL}\n{TIME}", per_step=per_step)
    chunks = list(
        sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER, CLOCK], stream=True)
    )
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "Let me look."
    assert all(len(delta.tool_calls or ()) <= 1 for delta in deltas)
    pieces = [call for delta in deltas for call in delta.tool_calls or ()]
    starts = [piece for piece in pieces if piece.id is not None]
    assert [(start.index, start.type, start.function.name, start.function.arguments) for start in starts] == [
        (0, "function", "get_weather", ""),
        (1, "function", "get_time", ""),
    ]
    for index, written in enumerate([PARIS, "{}"]):
        mine = [piece for piece in pieces if piece.index == index]
        assert mine[0].id is not None
        assert all(piece.id is None and piece.function.name is None for piece in mine[1:])
        assert "".join(piece.function.arguments for piece in mine) == written
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["tool_calls"]
    if per_step == 1:
        assert sum(piece.index == 0 for piece in pieces) > 4, "arguments come in pieces"


def test_the_stock_helper_accumulates_a_stream(sdk: openai.OpenAI, served: Served) -> None:
    says(served, f"{CALL}{TIME}")
    with sdk.chat.completions.stream(model="sapling", messages=HELLO, tools=[WEATHER, CLOCK]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls or ()] == [
        ("get_weather", PARIS),
        ("get_time", "{}"),
    ]


def test_a_conversation_goes_on_with_results(sdk: openai.OpenAI, served: Served) -> None:
    says(served, CALL)
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER])
    message = answer.choices[0].message
    (call,) = message.tool_calls or ()
    says(served, "It is sunny.")
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "clear"}<|end|>'}
    answer = sdk.chat.completions.create(model="sapling", messages=[*HELLO, message, result], tools=[WEATHER])
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    assert prompt_of(served).endswith(
        f'<|assistant|><tool_call>{{"name": "get_weather", "arguments": {PARIS}}}</tool_call><|end|>'
        f'<|user|>{{"sky": "clear"}}<|end|> of get_weather {call.id}<|end|><|assistant|>'
    )
    assert served.world.engine.submitted[-1].prompt_ids.count(SPECIAL.index("<|end|>")) == 4


@pytest.mark.parametrize("options", [{}, {"tools": [WEATHER], "tool_choice": "none"}, {"tools": [CLOCK]}])
def test_what_was_not_offered_is_not_called(
    sdk: openai.OpenAI, served: Served, options: dict[str, Any]
) -> None:
    says(served, CALL)
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, **options)
    assert answer.choices[0].message.content == CALL
    assert answer.choices[0].finish_reason == "stop"
    chunks = sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == CALL
    assert ("get_weather" in prompt_of(served)) is False


def test_one_call_at_a_time(sdk: openai.OpenAI, served: Served) -> None:
    says(served, CALL + TIME)
    answer = sdk.chat.completions.create(
        model="sapling", messages=HELLO, tools=[WEATHER, CLOCK], parallel_tool_calls=False
    )
    calls = answer.choices[0].message.tool_calls or ()
    assert [call.function.name for call in calls] == ["get_weather"]


def test_a_call_cut_by_the_limit_on_tokens(sdk: openai.OpenAI, served: Served) -> None:
    says(served, CALL[:-20], finish="length")
    choice = sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER]).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "length"
    assert PARIS.startswith(call.function.arguments)
    assert call.function.arguments


def test_every_choice_has_its_own_calls(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine

    def script(submit: Submit) -> Script:
        steps = engine.says(submit, CALL).steps
        other = engine.says(submit, "No calls here.").steps
        for number, step in enumerate(steps):
            mine = [chunk for chunk in step.chunks if chunk.index == 0]
            step.chunks = mine + [
                chunk for chunk in (other[number].chunks if number < len(other) else ()) if chunk.index == 1
            ]
        return Script(steps)

    engine.script = script
    choices = sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER], n=2).choices
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "stop"]
    assert choices[1].message.content == "No calls here."
    assert choices[1].message.tool_calls is None


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_are_those_of_all_tokens(sdk: openai.OpenAI, served: Served, is_streamed: bool) -> None:
    said = f"Hello\n{CALL}"
    says(served, said)
    request: Any = {"model": "sapling", "messages": HELLO, "tools": [WEATHER], "logprobs": True}
    if is_streamed:
        chunks = list(sdk.chat.completions.create(stream=True, **request))
        found = [chunk.choices[0].logprobs for chunk in chunks]
        tokens = [token for logprobs in found if logprobs is not None for token in logprobs.content or ()]
    else:
        answer = sdk.chat.completions.create(**request)
        tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == said


async def test_requests_do_not_share_tools(served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, CALL + TIME, delay=0.001)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as sdk:

        async def ask(*tools: Any) -> list[str]:
            answer = await sdk.chat.completions.create(model="sapling", messages=HELLO, tools=tools)
            return [call.function.name for call in answer.choices[0].message.tool_calls or ()]

        found = await asyncio.gather(*[ask(WEATHER), ask(CLOCK), ask(WEATHER, CLOCK)] * 5)
    assert found == [["get_weather"], ["get_time"], ["get_weather", "get_time"]] * 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [CLOCK] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"description": "x" * 300_000}},
                    }
                ]
            },
            "tools[0].function.parameters",
        ),
        # No grammars are served here.
        ({"tools": [CLOCK], "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            "tool_choice",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]},
            "tools[0].function.strict",
        ),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "other"}}},
            "tool_choice.function.name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ],
)
def test_refusals_name_the_field(sdk: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**{"model": "sapling", "messages": HELLO} | fields)
    assert refused.value.param == param


def test_a_model_without_tools_says_so(codec: TextCodec) -> None:
    """Its template shows no tools; a conversation that has calls is refused, too."""
    with (
        serving(build(codec)) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        with pytest.raises(openai.BadRequestError, match="does not support tools") as refused:
            sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[WEATHER])
        assert refused.value.param == "tools"
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said: Any = {"role": "assistant", "tool_calls": [call]}
        with pytest.raises(openai.BadRequestError, match="does not support tools") as refused:
            sdk.chat.completions.create(model="sapling", messages=[*HELLO, said])
        assert refused.value.param == "messages[1].tool_calls"
        assert sdk.models.retrieve("sapling").capabilities["tools"] is False  # type: ignore[attr-defined]
        answer = sdk.chat.completions.create(
            model="sapling", messages=HELLO, tools=[WEATHER], tool_choice="none"
        )
        assert answer.choices[0].message.content == "Hello world"


def test_markers_that_are_special_tokens_are_read(tmp_path: Path) -> None:
    template = TOOL_TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]")
    codec = TextCodec.load(write_base(tmp_path / "base", template, more_special=["[TOOL_CALLS]"]))
    tool_format = ToolFormat.of(codec)
    assert tool_format is not None
    assert tool_format.name == "mistral"
    world = build(codec, tool_format=tool_format)
    ids = [len(SPECIAL), *world.engine.tokens('[{"name": "get_time", "arguments": {}}]'), 1]
    world.engine.script = lambda submit: world.engine.emits(submit, ids)
    with (
        serving(world) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key=KEY, max_retries=0) as sdk,
    ):
        message = (
            sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[CLOCK]).choices[0].message
        )
        (call,) = message.tool_calls or ()
        assert (message.content, call.function.name) == (None, "get_time")
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
        sdk.chat.completions.create(model="sapling", messages=[*HELLO, message, result], tools=[CLOCK])
    prompt = codec.vocabulary.decode(world.engine.submitted[-1].prompt_ids).decode()
    short = prompt.rpartition(" of get_time ")[2]
    assert len(short) == 9, "templates of Mistral take ids of nine letters and digits"
    assert short.isalnum()


def test_the_setting_names_a_format(tool_codec: TextCodec, codec: TextCodec) -> None:
    field = ApiSettings.model_fields["tool_format"]
    assert set(field.annotation.__args__) == {"auto", "none", *FORMATS}  # type: ignore[union-attr]
    chosen = ToolFormat.of(tool_codec, "llama")
    assert chosen is not None
    assert chosen.name == "llama"
    assert ToolFormat.of(tool_codec, "none") is None
    assert ToolFormat.of(codec) is None
    with pytest.raises(ValueError, match="takes no tools"):
        ToolFormat.of(codec, "hermes")


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base")
    config = json.loads((base / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": TEMPLATE},
        {"name": "tool_use", "template": TOOL_TEMPLATE},
    ]
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    codec = TextCodec.load(base)
    assert ToolFormat.of(codec).name == "hermes"  # type: ignore[union-attr]
    assert "Tools" not in codec.render_chat(HELLO).text
    assert "get_time" in codec.render_chat(HELLO, [CLOCK]).text


def test_the_example_of_the_documentation_runs(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, CALL if len(engine.submitted) == 1 else "Sunny.")
    asked: list[str] = []

    def get_weather(city: str) -> dict[str, str]:
        asked.append(city)
        return {"sky": "clear"}

    names: dict[str, Any] = {"client": sdk, "json": json, "get_weather": get_weather}
    exec(example("Tools"), names)
    assert asked == ["Paris 🙂"]
    assert names["answer"].choices[0].message.content == "Sunny."


RUN: Any = {"type": "custom", "custom": {"name": "run", "description": "Runs a command."}}
RUN_CALL = '<tool_call>\n{"name": "run", "arguments": {"input": "ls \\"-l\\"\\n"}}\n</tool_call>'


def test_custom_tools(sdk: openai.OpenAI, served: Served) -> None:
    says(served, f"{RUN_CALL}\n{TIME}")
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[RUN, CLOCK])
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    run, clock = message.tool_calls or ()
    assert run.type == "custom"
    assert (run.custom.name, run.custom.input) == ("run", 'ls "-l"\n')
    assert (clock.type, clock.function.name) == ("function", "get_time")
    says(served, "Done.")
    result: Any = {"role": "tool", "tool_call_id": run.id, "content": "a.txt"}
    history: Any = [*HELLO, {"role": "assistant", "tool_calls": [run.to_dict()]}, result]
    sdk.chat.completions.create(model="sapling", messages=history)
    assert 'ls \\"-l\\"' in prompt_of(served)


@pytest.mark.parametrize("per_step", [1, 1000])
def test_custom_tools_in_a_stream(sdk: openai.OpenAI, served: Served, per_step: int) -> None:
    says(served, f"{RUN_CALL}\n{TIME}", per_step=per_step)
    chunks = list(
        sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[RUN, CLOCK], stream=True)
    )
    pieces = [call.to_dict() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    first, text, *rest = pieces
    assert first == {
        "index": 0,
        "id": first["id"],
        "type": "custom",
        "custom": {"name": "run", "input": ""},
    }
    assert text == {"index": 0, "custom": {"input": 'ls "-l"\n'}}
    assert {piece["index"] for piece in rest} == {1}
    assert rest[0]["function"] == {"name": "get_time", "arguments": ""}


def test_a_grammar_is_shown_to_the_model_as_it_was_sent(sdk: openai.OpenAI, served: Served) -> None:
    format = {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[a-c]+\\d"}}
    tool: Any = {"type": "custom", "custom": {"name": "run", "format": format}}
    sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[tool], tool_choice="none")
    assert "[a-c]+" not in prompt_of(served)
    with pytest.raises(openai.BadRequestError, match="Structured outputs are not served here"):
        sdk.chat.completions.create(model="sapling", messages=HELLO, tools=[tool])
    assert "a regex grammar" not in prompt_of(served)
