"""Messages are split into text and calls, the same however they are cut; what is certain is shown at once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenization.tools.shapes import CALLS, FUNCTIONS, TEXTS, parsed, whole
from tokenization.tools.deltas import ArgumentsDelta, CallStart, TextDelta
from tokenization.tools.formats import FORMATS, detect

NAMES = sorted(FORMATS)
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=", "get>", "get_weather>", "</function>", "<parameter=city>",
    "<parameter=days>", "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "[", "]",
    "{", "}", '{"name": "', 'get"', 'get_weather"', ', "arguments": {', ', "parameters": {',
    '"city": "Paris"', ", ", ": ", ";", "get", " ", "\n", "\\", '"', "é", "🙂", "x",
]  # fmt: skip


@st.composite
def cut(draw: st.DrawFn, message: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(1, max(1, len(message) - 1)), max_size=12)))
    return [message[begin:end] for begin, end in zip([0, *places], [*places, len(message)], strict=True)]


@pytest.mark.parametrize(("name", "message", "text", "calls"), CALLS)
def test_recorded_calls(name: str, message: str, text: str, calls: list[tuple[str, str]]) -> None:
    assert whole(name, message) == (text, calls)
    assert parsed(name, list(message)) == parsed(name, [message])


@pytest.mark.parametrize(("name", "message"), TEXTS)
def test_what_only_looks_like_a_call_stays_text(name: str, message: str) -> None:
    assert whole(name, message) == (message, [])
    assert parsed(name, list(message)) == parsed(name, [message])


@given(st.data())
def test_any_cut_gives_the_same(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    recorded = st.sampled_from([shape[1] for shape in CALLS] + [text for _, text in TEXTS])
    made = st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join)
    message = data.draw(recorded | made | st.tuples(made, recorded, made).map("".join))
    expected = parsed(name, [message])
    assert parsed(name, data.draw(cut(message))) == expected
    assert parsed(name, list(message)) == expected


@given(st.sampled_from(NAMES), st.text(alphabet="<[{ab \n🙂", max_size=40))
def test_text_without_a_call_is_unchanged(name: str, message: str) -> None:
    assert whole(name, message) == (message, [])


@given(
    st.sampled_from([name for name in NAMES if name != "qwen_coder"]),
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5),
        max_size=4,
    ),
    st.booleans(),
)
def test_arguments_arrive_as_they_were_written(name: str, arguments: dict, ascii_only: bool) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    call = json.dumps({"name": "get_weather"})[:-1] + f', "arguments": {written}}}'
    message = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "llama": call,
        "mistral": f"[TOOL_CALLS] [{call}]",
        "mistral_args": f"[TOOL_CALLS]get_weather[ARGS]{written}",
    }[name]
    assert whole(name, message) == ("", [("get_weather", written)])


@given(
    st.text(max_size=30),
    st.none() | st.integers() | st.booleans() | st.lists(st.text(max_size=5), max_size=3),
)
def test_tagged_parameters_become_json(city: str, days: object) -> None:
    message = (
        f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n"
        f"<parameter=days>\n{json.dumps(days)}\n</parameter>\n</function>\n</tool_call>"
    )
    text, calls = whole("qwen_coder", message)
    assert text == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("get_weather", {"city": city, "days": days})
    ]


def test_what_is_certain_is_shown_at_once() -> None:
    parser = FORMATS["hermes"](FUNCTIONS)
    assert parser.push("Look: <") == [TextDelta("Look:")]
    assert parser.push("tool") == []
    assert parser.push("box>") == [TextDelta(" <toolbox>")]
    assert parser.push('<tool_call>{"name": "get_weather"') == []
    assert parser.push(', "arguments": {') == [CallStart(0, "get_weather"), ArgumentsDelta(0, "{")]
    assert parser.push('"city": "Pa') == [ArgumentsDelta(0, '"city": "Pa')]
    assert parser.push('ris"}}</tool_call>') == [ArgumentsDelta(0, 'ris"}')]
    assert parser.finish() == []
    coder = FORMATS["qwen_coder"](FUNCTIONS)
    assert coder.push("<tool_call>\n<function=get_weather>") == [CallStart(0, "get_weather")]
    assert coder.push("\n<parameter=city>\nPa") == [ArgumentsDelta(0, '{"city": "Pa')]
    assert coder.push("ris\n</par") == [ArgumentsDelta(0, "ris")]
    llama = FORMATS["llama"](FUNCTIONS)
    assert llama.push('{"na') == []
    assert llama.push('tion":') == [TextDelta('{"nation":')]
    assert llama.push("x") == [TextDelta("x")]


@pytest.mark.parametrize("name", NAMES)
def test_long_messages_take_linear_time(name: str) -> None:
    """Text that begins calls again and again is read a bounded number of times."""
    for piece in (
        "<tool_call>",
        '<tool_call>{"arguments": {"',
        "[TOOL_CALLS]",
        '[TOOL_CALLS][{"type": "',
        "<|python_tag|>{",
        " ",
    ):
        message = piece * (20_000 // len(piece))
        parser = FORMATS[name](FUNCTIONS)
        shown = "".join(
            delta.text for one in message for delta in parser.push(one) if isinstance(delta, TextDelta)
        )
        shown += "".join(delta.text for delta in parser.finish() if isinstance(delta, TextDelta))
        assert shown == message


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ('...<tool_call>\n{"name": <function-name>...', "hermes"),
        ("...<tool_call>\n<function=example_function_name>...", "qwen_coder"),
        ("{{ '[TOOL_CALLS] [' }}...", "mistral"),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}", "mistral_args"),
        ("{{ '<|python_tag|>' + tool_call.name }}", "llama"),
        ("<|start_header_id|>ipython<|end_header_id|>", "llama"),
        ("<|im_start|>{{ message.role }}", None),
    ],
)
def test_the_format_is_found_in_the_template(template: str, name: str | None) -> None:
    assert detect(template) == name
