"""How tool choices, strict functions and formats constrain a message, and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from llguidance import LLMatcher
from pydantic import BaseModel, Field

from api.grammars.checks import GrammarChecks
from engine.grammar.formats import parser_limits, to_llguidance
from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from engine.vocabulary import Vocabulary
from telemetry.metrics import ServingMetrics
from tests.api.conftest import Served, build, serving
from tests.api.fakes import KEY
from tests.support.text_base import TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.tools.formats import ToolFormat

END = 1
HELLO: Any = [{"role": "user", "content": "Hello there"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}, "day": {"enum": ["today", "tomorrow"]}},
    "required": ["city", "day"],
    "additionalProperties": False,
}


def tool(name: str, parameters: Any = None, **fields: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


WEATHER, TIME = tool("get_weather", CITY), tool("get_time")
UNIQUE = {"type": "array", "uniqueItems": True}
UNFOLLOWED = tool("tag", {"type": "object", "properties": {"tags": UNIQUE}})
ROME = '{"city": "Rome", "day": "today"}'


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


class Site:
    """An API over an engine that only takes requests, with grammars that are really checked."""

    def __init__(self, base: Path, served: Served, sdk: openai.OpenAI, format: str) -> None:
        self.sdk = sdk
        self.engine = served.world.engine
        self.format = format
        self._tokenizer = load_tokenizer(base, [END], len(Vocabulary.load(base).token_bytes))

    def ask(self, **fields: Any) -> Any:
        return self.sdk.chat.completions.create(**{"model": "sapling", "messages": HELLO} | fields)

    def grammar(self, **fields: Any) -> Grammar | None:
        """What the engine is to hold the message to."""
        self.ask(**fields)
        return self.engine.submitted[-1].grammar

    def allows(self, grammar: Grammar | None, text: str) -> bool:
        """Whether a message can be this text and nothing more."""
        assert grammar is not None
        matcher = LLMatcher(self._tokenizer, to_llguidance(grammar), log_level=0, limits=parser_limits())
        assert not matcher.is_error()
        tokens = self.engine.tokens(text)
        return all(matcher.consume_token(token) for token in tokens) and matcher.is_accepting()

    def refused(self, **fields: Any) -> tuple[str | None, str]:
        with pytest.raises(openai.BadRequestError) as refused:
            self.ask(**fields)
        return refused.value.param, refused.value.message


Start = Callable[[str], Site]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts a site whose model writes calls in a format; one of each."""
    # Prompts are short, whatever the functions take.
    template = TOOL_TEMPLATE.replace("{{ tools | tojson }}", "{{ tools | length }}")
    base = write_base(tmp_path_factory.mktemp("tools") / "base", template)
    (base / "config.json").write_text(json.dumps({"eos_token_id": END}))
    codec = TextCodec.load(base)
    sites: dict[str, Site] = {}
    with contextlib.ExitStack() as stack:

        def started(format: str) -> Site:
            if format not in sites:
                checks = GrammarChecks(base, ServingMetrics())
                world = build(codec, tool_format=ToolFormat.of(codec, format), grammars=checks)
                served = stack.enter_context(serving(world, checks.close, checks.start))
                sdk = openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)
                sites[format] = Site(base, served, stack.enter_context(sdk), format)
            return sites[format]

        yield started


@pytest.fixture
def site(start: Start) -> Site:
    return start("hermes")


def test_required_calls(site: Site) -> None:
    grammar = site.grammar(tools=[WEATHER, TIME], tool_choice="required")
    assert site.allows(grammar, f"{call('get_weather', ROME)}\n{call('get_time', '{}')}")
    assert not site.allows(grammar, "Hello")
    assert not site.allows(grammar, call("get_weather", '{"city": "Rome"}'))
    one = site.grammar(tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=False)
    assert site.allows(one, call("get_time", "{}"))
    assert not site.allows(one, f"{call('get_time', '{}')}\n{call('get_time', '{}')}")


def test_a_named_function(site: Site) -> None:
    grammar = site.grammar(tools=[WEATHER, TIME], tool_choice=named("get_time"))
    assert site.allows(grammar, call("get_time", "{}"))
    assert not site.allows(grammar, call("get_weather", ROME))
    assert not site.allows(grammar, f"{call('get_time', '{}')}\n{call('get_time', '{}')}")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(site: Site, mode: str) -> None:
    allowed = {"mode": mode, "tools": [named("get_time")]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    grammar = site.grammar(tools=[WEATHER, TIME], tool_choice=choice)
    assert site.allows(grammar, call("get_time", "{}"))
    assert not site.allows(grammar, call("get_weather", ROME))
    assert site.allows(grammar, "Hello") is (mode == "auto")
    prompt = site.engine.submitted[-1].prompt_ids
    site.ask(tools=[WEATHER, TIME])
    assert site.engine.submitted[-1].prompt_ids == prompt, "the model sees all tools"


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"n": 2, "stop": ["x"]}])
def test_by_default_a_call_that_begins_is_held_to_its_function(site: Site, fields: Any) -> None:
    grammar = site.grammar(tools=[WEATHER, TIME], **fields)
    said = f"Let me look.\n{call('get_weather', ROME)}"
    assert site.allows(grammar, "Hello, <tool_cal")
    assert site.allows(grammar, said)
    assert not site.allows(grammar, said.replace("today", "never"))
    assert not site.allows(grammar, call("get_wether", ROME))
    assert not site.allows(grammar, "<tool_call> is a tag")


def test_a_function_that_cannot_be_followed_takes_any_object(site: Site) -> None:
    """The others are held to their schemas nevertheless."""
    for choice in ("auto", "required"):
        grammar = site.grammar(tools=[UNFOLLOWED, WEATHER], tool_choice=choice)
        assert site.allows(grammar, call("tag", '{"tags": ["a", "a"], "x": 1}'))
        assert not site.allows(grammar, call("tag", '{"tags": ["a", ]}'))
        assert site.allows(grammar, call("get_weather", ROME))
        assert not site.allows(grammar, call("get_weather", "{}"))


def test_functions_too_large_together_take_any_object(site: Site) -> None:
    values = [f"value {number}" for number in range(12_000)]
    large = [
        tool(f"f{number}", {"properties": {"a": {"enum": values}}, "required": ["a"]}) for number in range(2)
    ]
    grammar = site.grammar(tools=large)
    assert site.allows(grammar, call("f0", '{"a": 1}'))
    strict: Any = tool(
        "g", {**CITY, "properties": {f"p{n}": {"enum": values} for n in range(2)}}, strict=True
    )
    strict["function"]["parameters"]["required"] = ["p0", "p1"]
    param, _ = site.refused(tools=[strict])
    assert param is not None
    assert param.startswith("tools[0].function.parameters")


@pytest.mark.parametrize(
    ("parameters", "path"),
    [
        ({**CITY, "required": ["city"]}, ".required"),
        ({"type": "object", "properties": {}}, ".additionalProperties"),
        ({**CITY, "properties": {"city": UNIQUE, "day": {}}}, ".properties.city.uniqueItems"),
        ({**CITY, "x-other": 1}, ".x-other"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_strict_functions_are_refused_by_path(site: Site, parameters: Any, path: str, choice: str) -> None:
    param, message = site.refused(tools=[TIME, tool("f", parameters, strict=True)], tool_choice=choice)
    assert param == f"tools[1].function.parameters{path}"
    assert message.startswith("Error code: 400") or "Invalid schema for function 'f'" in message


def test_a_strict_function_that_may_not_be_called_is_not_looked_at(site: Site) -> None:
    refused = tool("f", {"properties": {}}, strict=True)
    assert site.allows(
        site.grammar(tools=[TIME, refused], tool_choice=named("get_time")), call("get_time", "{}")
    )


def test_classes_of_pydantic_are_strict_tools(site: Site) -> None:
    class Point(BaseModel):
        x: float
        label: str | None

    class FindPlaces(BaseModel):
        """Finds places."""

        near: list[Point] = Field(description="Where to look.")

    found: Any = openai.pydantic_function_tool(FindPlaces)
    grammar = site.grammar(tools=[found], tool_choice="required")
    assert site.allows(grammar, call("FindPlaces", '{"near": [{"x": 1.5, "label": null}]}'))
    assert not site.allows(grammar, call("FindPlaces", '{"near": [{"x": 1.5}]}'))


def test_an_answer_of_a_format_or_calls(site: Site) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    grammar = site.grammar(tools=[WEATHER], response_format=format)
    assert site.allows(grammar, '{"n": 3}')
    assert site.allows(grammar, call("get_weather", ROME))
    assert not site.allows(grammar, "Hello")
    assert not site.allows(grammar, '{"n": "x"}')
    required = site.grammar(tools=[WEATHER], response_format=format, tool_choice="required")
    assert not site.allows(required, '{"n": 3}')
    none = site.grammar(tools=[WEATHER], response_format=format, tool_choice="none")
    assert none is not None
    assert none.kind == "json_schema"


def test_a_format_of_calls_that_are_objects_is_not_combined(start: Start) -> None:
    site = start("llama")
    param, message = site.refused(tools=[TIME], response_format={"type": "json_object"})
    assert param == "tools"
    assert "cannot be combined on this model" in message


@pytest.mark.parametrize("extra", [{"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'}])
def test_other_constraints_are_not_combined_with_tools(site: Site, extra: Any) -> None:
    assert site.refused(tools=[TIME], extra_body=extra)[0] == "tools"
    assert site.grammar(tools=[TIME], tool_choice="none", extra_body=extra) is not None


@pytest.mark.parametrize("extra", [{"min_tokens": 3}, {"ignore_eos": True}])
def test_what_contradicts_a_grammar(site: Site, extra: dict[str, Any]) -> None:
    """Free text may go on; calls that are required may not."""
    assert site.grammar(tools=[TIME], extra_body=extra) is None
    (field,) = extra
    assert site.refused(tools=[TIME], extra_body=extra, tool_choice="required")[0] == field
    strict = tool("f", {**CITY}, strict=True)
    assert site.refused(tools=[strict], extra_body=extra)[0] == field


@pytest.mark.parametrize("keyword", [{"maxLength": 9}, {"pattern": "x"}, {"format": "date"}])
def test_strings_written_as_they_stand_are_not_held_to_bounds(start: Start, keyword: Any) -> None:
    """Qwen3-Coder writes strings without quotes."""
    site = start("qwen_coder")
    bounded = {**CITY, "properties": {"city": {"type": "string", **keyword}, "day": {"type": "integer"}}}
    param, _ = site.refused(tools=[tool("f", bounded, strict=True)])
    assert param == f"tools[0].function.parameters.properties.city.{next(iter(keyword))}"
    text = (
        "<tool_call>\n<function=f>\n<parameter=city>\nMexico City\n</parameter>\n<parameter=day>\n{}\n"
        "</parameter>\n</function>\n</tool_call>"
    )
    for fields in (
        {"tools": [tool("f", bounded)]},
        {"tools": [tool("f", bounded)], "tool_choice": "required"},
    ):
        grammar = site.grammar(**fields)
        assert site.allows(grammar, text.format(3))
        assert not site.allows(grammar, text.format('"3"'))


def test_a_schema_cannot_change_how_it_is_compiled(site: Site) -> None:
    loose = {**CITY, "x-guidance": {"whitespace_pattern": "x*"}}
    grammar = site.grammar(tools=[tool("f", loose)], tool_choice="required")
    assert not site.allows(grammar, call("f", ROME.replace(", ", ",xx")))
    assert site.allows(grammar, call("f", ROME))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "number", "exclusiveMinimum": 10**400},
        {"type": [{}, "string"], "anyOf": 5, "enum": 3},
        {"type": 4},
        {"$ref": "elsewhere"},
        True,
        7,
    ],
)
@pytest.mark.parametrize("format", ["hermes", "qwen_coder"])
def test_what_is_no_schema_is_not_followed(start: Start, format: str, value: Any) -> None:
    """Lenient functions are served nevertheless, as they are where no grammars are."""
    site = start(format)
    parameters = {"properties": {"a": value}, "required": value}
    assert site.grammar(tools=[tool("f", parameters), TIME]) is not None
    closed = {"type": "object", "additionalProperties": False, **parameters}
    param, _ = site.refused(tools=[tool("f", closed, strict=True)])
    assert param is not None
    assert param.startswith("tools[0].function.parameters")


SUM = 'start: NUM (("+" | "\\n") NUM)*\nNUM: /[0-9]+/'
WORD = r"[a-z\n\"]+"


def custom(name: str, syntax: str | None = None, definition: str = "") -> Any:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name} | ({} if syntax is None else {"format": grammar})}


def written(format: str, name: str, text: str) -> str:
    """A message of one call, in the format's text."""
    arguments = json.dumps({"input": text})
    return {
        "hermes": call(name, arguments),
        "llama": f'{{"name": "{name}", "parameters": {arguments}}}',
        "mistral": f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {arguments}}}]',
        "mistral_args": f"[TOOL_CALLS]{name}[ARGS]{arguments}",
    }[format]


@pytest.mark.parametrize("format", ["hermes", "llama", "mistral", "mistral_args"])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "sum"}}])
def test_the_input_of_a_custom_tool_is_of_its_grammar(start: Start, format: str, choice: Any) -> None:
    site = start(format)
    tools = [custom("sum", "lark", SUM), custom("word", "regex", WORD), custom("any"), WEATHER]
    grammar = site.grammar(tools=tools, tool_choice=choice)
    assert site.allows(grammar, written(format, "sum", "1+22\n3"))
    assert not site.allows(grammar, written(format, "sum", "1+"))
    assert not site.allows(grammar, written(format, "sum", "1\\n2"))
    is_named = not isinstance(choice, str)
    assert site.allows(grammar, written(format, "word", 'a\n"b"')) is not is_named
    assert not site.allows(grammar, written(format, "word", "A"))
    assert site.allows(grammar, written(format, "any", "Anything, \\ 1")) is not is_named
    assert site.allows(grammar, "Hello") is (choice == "auto")


@pytest.mark.parametrize(
    ("syntax", "definition", "reason"),
    [
        ("lark", 'start: "(" start ")" | "x"', "refers to itself"),
        ("lark", "start: /(/", "Invalid grammar"),
        ("lark", "begin: /a/", "'start' is not defined"),
        ("regex", "(", "Invalid grammar"),
        ("regex", "a(?=b)", "Invalid grammar"),
        ("regex", "(?x)a", "flag 'x'"),
    ],
)
def test_grammars_of_custom_tools_that_are_refused(
    site: Site, syntax: str, definition: str, reason: str
) -> None:
    param, message = site.refused(tools=[TIME, custom("f", syntax, definition)])
    assert param == "tools[1].custom.format.grammar.definition"
    assert reason in message


def test_a_format_that_carries_no_grammar_says_so(start: Start) -> None:
    site = start("qwen_coder")
    param, message = site.refused(tools=[custom("f", "regex", "a+")])
    assert param == "tools[0].custom.format.grammar.definition"
    assert "between tags" in message
    site.ask(tools=[custom("f")])
