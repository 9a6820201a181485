# ruff: noqa: E501
"""Messages in each format, with what a client should get."""

from __future__ import annotations

from tokenization.tools.deltas import ArgumentsDelta, CallStart, Delta, TextDelta, ToolFunction
from tokenization.tools.formats import FORMATS

WEATHER = ToolFunction(
    "get_weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"enum": ["metric", "imperial"]},
            "options": {"type": "object"},
            "exact": {"type": "boolean"},
        },
        "required": ["city"],
    },
)
CLOCK = ToolFunction("get", {"type": "object", "properties": {}})
FUNCTIONS = [WEATHER, CLOCK]


def parsed(name: str, pieces: list[str]) -> list[Delta]:
    """Deltas of a message, neighbours of one kind joined."""
    parser = FORMATS[name](FUNCTIONS)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
            joined[-1] = TextDelta(last.text + delta.text)
        elif isinstance(delta, ArgumentsDelta) and isinstance(last, ArgumentsDelta):
            assert last.call == delta.call
            joined[-1] = ArgumentsDelta(last.call, last.text + delta.text)
        else:
            joined.append(delta)
    return joined


def whole(name: str, message: str) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls of a message."""
    text, calls = "", []
    for delta in parsed(name, [message]):
        if isinstance(delta, TextDelta):
            text += delta.text
        elif isinstance(delta, CallStart):
            assert delta.call == len(calls)
            calls.append((delta.name, ""))
        else:
            assert delta.call == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return text, calls


PARIS = '{"city": "Paris", "days": 2}'
NESTED = '{"city": "S\\u00e3o \\"Paulo\\" 🙂 }{][", "options": {"a": [1, {"b": "</tool_call>"}], "c": null}}'
CODER_PARIS = (
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)

CALLS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # hermes
    (
        "hermes",
        f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>',
        "",
        [("get_weather", PARIS)],
    ),
    (
        "hermes",
        f'<tool_call>{{"arguments":{PARIS},"name":"get_weather"}}</tool_call>',
        "",
        [("get_weather", PARIS)],
    ),
    (
        "hermes",
        f'Let me look.\n\n<tool_call>\n{{"name": "get_weather", "arguments": {NESTED}}}\n</tool_call>',
        "Let me look.",
        [("get_weather", NESTED)],
    ),
    (
        "hermes",
        f'<think>\nHm.\n</think>\n\n<tool_call>\n{{"name": "get", "arguments": {{}}}}\n</tool_call>\n<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>\n',
        "<think>\nHm.\n</think>",
        [("get", "{}"), ("get_weather", PARIS)],
    ),
    ("hermes", '<tool_call>\n{"name": "get"}\n</tool_call> Done.', " Done.", [("get", "{}")]),
    ("hermes", '<tool_call>{"type": "function", "name": "get", "arguments": {}}', "", [("get", "{}")]),
    # Cut by a limit on tokens.
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par',
        "",
        [("get_weather", '{"city": "Par')],
    ),
    ("hermes", '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_', "", [("get", "{}")]),
    # Arguments are the model's, also where they are no JSON.
    ("hermes", '<tool_call>{"name": "get", "arguments": {oops: }}</tool_call>', "", [("get", "{oops: }")]),
    ("hermes", '<tool_call>{"name": "get", "arguments": {}} what?', " what?", [("get", "{}")]),
    # llama
    ("llama", f'{{"name": "get_weather", "parameters": {PARIS}}}', "", [("get_weather", PARIS)]),
    (
        "llama",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {NESTED}}}',
        "",
        [("get_weather", NESTED)],
    ),
    (
        "llama",
        f'\n{{"name": "get", "parameters": {{}}}}; {{"name": "get_weather", "parameters": {PARIS}}}\n',
        "",
        [("get", "{}"), ("get_weather", PARIS)],
    ),
    ("llama", 'I look. <|python_tag|>{"name": "get", "arguments": {}}', "I look.", [("get", "{}")]),
    ("llama", '{"name": "get", "parameters": {}} and more', " and more", [("get", "{}")]),
    ("llama", '{"name": "get", "parameters": {}}; {"name": "get_w', '; {"name": "get_w', [("get", "{}")]),
    # mistral
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {PARIS}}}]',
        "",
        [("get_weather", PARIS)],
    ),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {NESTED}, "id": "a1b2c3d4e"}}, {{"name": "get", "arguments": {{}}}}]',
        "",
        [("get_weather", NESTED), ("get", "{}")],
    ),
    ("mistral", 'Sure. [TOOL_CALLS] [{"name": "get", "arguments": {}}]', "Sure.", [("get", "{}")]),
    # mistral_args
    ("mistral_args", f"[TOOL_CALLS]get_weather[ARGS]{PARIS}", "", [("get_weather", PARIS)]),
    (
        "mistral_args",
        f"[TOOL_CALLS]get_weather[ARGS]{NESTED}[TOOL_CALLS]get[ARGS]{{}}",
        "",
        [("get_weather", NESTED), ("get", "{}")],
    ),
    (
        "mistral_args",
        f"On it.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{PARIS}",
        "On it.",
        [("get_weather", PARIS)],
    ),
    ("mistral_args", f"[TOOL_CALLS]get_weather{PARIS}", "", [("get_weather", PARIS)]),
    # qwen_coder
    ("qwen_coder", f"I'll look.\n\n<tool_call>\n{CODER_PARIS}", "I'll look.", [("get_weather", PARIS)]),
    ("qwen_coder", CODER_PARIS, "", [("get_weather", PARIS)]),
    (
        "qwen_coder",
        f"<tool_call>\n<function=get>\n</function>\n</tool_call>\n<tool_call>\n{CODER_PARIS}\n",
        "",
        [("get", "{}"), ("get_weather", PARIS)],
    ),
    (
        "qwen_coder",
        '<tool_call>\n<function=get_weather>\n<parameter=city>\n<b>"São"</b>\n\n\tPaulo 🙂 \\n\n</parameter>\n<parameter=options>\n{"a": [1]}\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=days>\nmany\n</parameter>\n<parameter=units>metric</parameter>\n</function>\n</tool_call>',
        "",
        [
            (
                "get_weather",
                '{"city": "<b>\\"São\\"</b>\\n\\n\\tPaulo 🙂 \\\\n", "options": {"a": [1]}, "exact": true, "days": "many", "units": "metric"}',
            )
        ],
    ),
    # A closing tag is missing.
    (
        "qwen_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</function>\n</tool_call>",
        "",
        [("get_weather", PARIS)],
    ),
    (
        "qwen_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
        "",
        [("get_weather", '{"city": "Par')],
    ),
]

TEXTS: list[tuple[str, str]] = [
    ("hermes", "Hello  \n\n"),
    ("hermes", " \n "),
    ("hermes", "a < b <tool <tool_calls> </tool_call>"),
    ("hermes", '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "get_wea'),
    ("hermes", '<tool_call>{"name": "get", "arguments": "x"}</tool_call>'),
    ("hermes", '<tool_call>{"title": 1}</tool_call>'),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", "<tool_call>{}</tool_call>"),
    ("hermes", '<tool_call>{"arguments": {"a": "' + "x" * 600 + '"}, "name": "get"}</tool_call>'),
    ("hermes", "x" + " " * 300 + "<tool_call>" + " " * 900),
    ("llama", '{"answer": 42}'),
    ("llama", '{"name": "get", "age": 3}'),
    ("llama", '{"name": "Ada", "parameters": {}}'),
    ("llama", '{"name": "get"}'),
    ("llama", 'So: {"name": "get", "parameters": {}}'),
    ("llama", '<|python_tag|>brave_search.call(query="x")'),
    ("llama", " \n"),
    ("mistral", '[TOOL_CALLS] are [{"name": "get"}]'),
    ("mistral", '[{"name": "get", "arguments": {}}]'),
    ("mistral", '[TOOL_CALLS] [{"name": "got", "arguments": {}}]'),
    ("mistral_args", "[TOOL_CALLS]getter[ARGS]{}"),
    ("mistral_args", "[TOOL_CALLS]get[ARG]{}"),
    ("mistral_args", "[TOOL_CALLS]get[CALL_ID]!"),
    ("mistral_args", "get[ARGS]{}"),
    ("qwen_coder", "<tool_call>\n<function=other>\n</function>\n</tool_call>"),
    ("qwen_coder", "</tool_call><function=ge"),
    ("qwen_coder", "<tool_call>\n<functions=get>"),
]
"""Messages without a call."""
