"""Builds grammars that hold a message to calls of the offered functions, in the format of the model.

The grammars are in llguidance's dialect of Lark. Literals and separators are those that models were trained
on; arguments follow the functions' JSON Schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tokenization.tools.deltas import ToolFunction
from tokenization.tools.formats import ToolFormat
from tokenization.tools.qwen_coder import is_text


class _Shape(NamedTuple):
    """The text around calls."""

    begin: str
    """Before the first call."""
    before: str
    """Before the arguments of each call; NAME stands for the function."""
    after: str
    between: str
    end: str


_SHAPES = {
    "hermes": _Shape("", '<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", "\n", ""),
    "llama": _Shape("", '{"name": "NAME", "parameters": ', "}", "; ", ""),
    "mistral": _Shape("[TOOL_CALLS] [", '{"name": "NAME", "arguments": ', "}", ", ", "]"),
    "mistral_args": _Shape("", "[TOOL_CALLS]NAME[ARGS]", "", "", ""),
    "qwen_coder": _Shape("", "<tool_call>\n<function=NAME>\n", "</function>\n</tool_call>", "\n", ""),
}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


def call_grammar(format: ToolFormat, functions: Sequence[ToolFunction], *, is_parallel: bool) -> str:
    """Returns the grammar of messages that consist of calls of `functions`: one, or one or more."""
    shape, special = _SHAPES[format.name], format.special_ids
    more = f"({_literal(shape.between, special)} call)*" if is_parallel else ""
    calls = [f"call_{number}" for number in range(len(functions))]
    rules = [
        f"start: {_literal(shape.begin, special)} call {more} {_literal(shape.end, special)}",
        f"call: {' | '.join(calls)}",
    ]
    for call, function in zip(calls, functions, strict=True):
        before = _literal(shape.before.replace("NAME", function.name), special)
        rules.append(f"{call}: {before} {call}_arguments {_literal(shape.after, special)}")
        rules += _arguments(format, f"{call}_arguments", function.parameters)
    return "\n".join(rule.rstrip() for rule in rules) + "\n"


def _literal(text: str, special: Mapping[str, int]) -> str:
    """Returns literals and special tokens that make up `text`."""
    if not text:
        return ""
    tokens = [token for token in special if token in text]
    parts = re.split("(" + "|".join(map(re.escape, tokens)) + ")", text) if tokens else [text]
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    )


def _arguments(format: ToolFormat, rule: str, parameters: dict[str, Any]) -> Iterator[str]:
    schema = {"type": "object", **parameters} if parameters else _NO_ARGUMENTS
    if format.name != "qwen_coder":
        yield f"{rule}: %json {json.dumps(schema, ensure_ascii=False)}"
        return
    yield from _tagged_arguments(rule, schema)


def _tagged_arguments(rule: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yields the rules of parameters that are written as tags, in the order of the schema."""
    required = schema.get("required") or ()
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    parts: list[str] = []
    for number, (key, value) in enumerate((schema.get("properties") or {}).items()):
        name = f"{rule}_{number}"
        parts.append(name if key in required else f"{name}?")
        tag = json.dumps(f"<parameter={key}>\n", ensure_ascii=False)
        if is_text(value) and "enum" not in value:
            yield f"{name}: {tag} {name}_text"
            yield f"{name}_text[lazy]: /(?s:.*)\\n<\\/parameter>\\n/"
        elif is_text(value):
            choices = " | ".join(json.dumps(one, ensure_ascii=False) for one in value["enum"])
            yield f'{name}: {tag} ({choices}) "\\n</parameter>\\n"'
        else:
            yield f'{name}: {tag} {name}_json "\\n</parameter>\\n"'
            yield f"{name}_json: %json {json.dumps(value | definitions, ensure_ascii=False)}"
    together = " ".join(parts) or '""'
    yield f"{rule}: {together}"
