"""Builds grammars that hold a message to calls of the offered functions, in the format of the model.

The grammars are in llguidance's dialect of Lark. Literals and separators are those that models were trained
on; arguments follow the functions' JSON Schemas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokenization.tools.argument_rules import argument_rules, json_schema_rule
from tokenization.tools.call_shapes import ARGUMENTS_FIRST, BARE_END, SHAPES, CallShape, bare_begin
from tokenization.tools.deltas import ToolFunction
from tokenization.tools.formats import ToolFormat


def call_grammar(format: ToolFormat, functions: Sequence[ToolFunction], *, is_parallel: bool) -> str:
    """Returns the grammar of messages that consist of calls of `functions`: one, or one or more."""
    shape, special = SHAPES[format.name], format.special_ids
    start = [_literal(shape.begin, special), "call", "more", _literal(shape.end, special)]
    rules = [f"start: {' '.join(filter(None, start))}"]
    return _joined([*rules, *_call_rules(format, functions, is_parallel)])


def message_grammar(
    format: ToolFormat,
    functions: Sequence[ToolFunction],
    *,
    is_parallel: bool,
    answer: dict[str, Any] | None = None,
) -> str:
    """Returns the grammar of messages that may call `functions`.

    A message is text, then calls if there are any. What follows a marker of the format is a call.

    Args:
        is_parallel: whether several calls are allowed.
        answer: a JSON Schema. A message is then JSON by it, or calls without text.

    Raises:
        ValueError: an `answer` cannot be told from calls in this format.
    """
    shape = SHAPES[format.name]
    if answer is None:
        rules = list(_text_or_calls(shape, functions, format.special_ids))
    elif shape.is_bare:
        raise ValueError("calls are JSON objects, as the answer is")
    else:
        begin = _literal(shape.begin, format.special_ids)
        end = _literal(shape.end, format.special_ids)
        rules = [f"start: answer | {begin} call more {end}", json_schema_rule("answer", answer)]
    return _joined([*rules, *_call_rules(format, functions, is_parallel)])


def _joined(rules: Sequence[str]) -> str:
    return "\n".join(rule.rstrip() for rule in rules) + "\n"


def _call_rules(format: ToolFormat, functions: Sequence[ToolFunction], is_parallel: bool) -> Iterator[str]:
    """Yields `call`, `more` for the calls after the first, and the rules of each function."""
    shape, special = SHAPES[format.name], format.special_ids
    numbers = range(len(functions))
    yield f"call: {' | '.join(f'call_{number}' for number in numbers)}"
    yield f"more: ({_literal(shape.between, special)} call)*" if is_parallel else 'more: ""'
    for number, function in enumerate(functions):
        before = _literal(shape.before.replace("NAME", function.name), special)
        after = _literal(shape.after, special)
        yield f"call_{number}: {before} call_{number}_arguments {after}"
        is_tagged = format.name == "qwen_coder"
        yield from argument_rules(f"call_{number}_arguments", function.parameters, is_tagged=is_tagged)


def _text_or_calls(
    shape: CallShape, functions: Sequence[ToolFunction], special: Mapping[str, int]
) -> Iterator[str]:
    """Yields `start` and its rules: text without calls, or calls with text before them.

    A lazy rule ends with the first marker, and text never contains one: so no text that has begun a call can
    go on as text.
    """
    end = _literal(shape.end, special)
    messages = ["TEXT?"]
    not_text = ""
    if shape.is_bare:
        names = [function.name for function in functions]
        not_text = f" & ~/({bare_begin(names)}\\{{|{ARGUMENTS_FIRST})(?s:.*)/"
        messages.append(f"bare more {end}")
        yield f"bare: {' | '.join(f'bare_{number}' for number in range(len(names)))}"
        for number, name in enumerate(names):
            yield f"bare_{number}: BARE_{number} call_{number}_arguments BARE_END"
            yield f"BARE_{number}: /{bare_begin([name])}/"
        yield f"BARE_END: /{BARE_END}/"
    for number, (marker, lead) in enumerate(shape.openings):
        messages.append(f"open_{number} {_literal(lead, special)} call more {end}")
        token = f"TEXT? <[{special[marker]}]> | " if marker in special else ""
        yield f"open_{number}: {token}open_text_{number}"
        yield f"open_text_{number}[lazy]: OPEN_TEXT_{number}"
        yield f"OPEN_TEXT_{number}: /(?s:.*){_escaped(marker)}/{not_text}"
    markers = "|".join(_escaped(opening.marker) for opening in shape.openings)
    yield f"TEXT: /(?s:.*)/ & ~/(?s:.*)({markers})(?s:.*)/{not_text}"
    yield f"start: {' | '.join(messages)}"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


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
