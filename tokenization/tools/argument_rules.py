"""Writes the grammar rules of a call's arguments: JSON by the function's schema, or one tag per parameter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engine.grammar.exact_schemas import exact
from engine.grammar.formats import WHITESPACE
from engine.grammar.schema_keywords import DEFINITIONS
from tokenization.tools.qwen_coder import is_text, listed

ANY_OBJECT: dict[str, Any] = {"type": "object"}
"""Parameters of a function whose own schema cannot be followed."""
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_VALUE = (
    r"/(?s:.*)\n<\/parameter>\n/ & ~/(?s:.*)(\n<parameter=|\n<\/function>|[^\n]<\/parameter>)(?s:.*)/ "
    r"& ~/<\/parameter>(?s:.*)/"
)
"""A string as it stands, and its closing tag: without any text that the parser would end it at."""
_TEXT_KEYWORDS = ("minLength", "maxLength", "pattern", "format")
_NOT_HELD_IN_TAGS = ("$ref", "allOf", "anyOf", "oneOf", "minProperties", "maxProperties", "patternProperties")


def json_schema_rule(rule: str, schema: dict[str, Any]) -> str:
    """Returns the rule of JSON by a schema, with white space as in structured outputs."""
    rewritten = exact(schema) | {"x-guidance": {"whitespace_pattern": WHITESPACE}}
    return f"{rule}: %json {json.dumps(rewritten, ensure_ascii=False)}"


def argument_rules(rule: str, parameters: dict[str, Any], *, is_tagged: bool) -> Iterator[str]:
    """Yields `rule`, and those that it uses. Empty `parameters`: the function takes no arguments."""
    schema = {"type": "object", **parameters} if parameters else _NO_ARGUMENTS
    if is_tagged:
        yield from _tagged(rule, schema)
    else:
        yield json_schema_rule(rule, schema)


def not_held_in_tags(parameters: dict[str, Any]) -> tuple[str, ...] | None:
    """Returns the path of the first part of a schema that arguments written as tags are not held to."""
    for keyword in _NOT_HELD_IN_TAGS:
        if keyword in parameters:
            return (keyword,)
    for key, value in (parameters.get("properties") or {}).items():
        if not _is_writable(key):
            return ("properties", key)
        if not is_text(value):
            continue
        keywords = _text_keywords(value)
        if keywords:
            return ("properties", key, keywords[0])
    return None


def _text_keywords(schema: Any) -> list[str]:
    """Returns keywords that bound a string, of a schema or its alternatives."""
    if not isinstance(schema, dict):
        return []
    found = [keyword for keyword in _TEXT_KEYWORDS if keyword in schema]
    for keyword in ("anyOf", "oneOf"):
        found += [keyword for branch in listed(schema, keyword) if _text_keywords(branch)]
    return found


def _is_writable(key: str) -> bool:
    return bool(key) and ">" not in key and "\n" not in key


def _tagged(rule: str, schema: dict[str, Any]) -> Iterator[str]:
    """Yields the rules of parameters that are written as tags, in the order of the schema."""
    properties = schema.get("properties")
    if properties is None:
        yield f'{rule}: ("<parameter=" /[^>\\n]+/ ">\\n" {rule}_text)*'
        yield from _text_rules(f"{rule}_text")
        return
    required = listed(schema, "required")
    definitions = {name: schema[name] for name in DEFINITIONS if name in schema}
    parts: list[str] = []
    for number, (key, value) in enumerate(properties.items()):
        if not _is_writable(key):
            continue
        name = f"{rule}_{number}"
        parts.append(name if key in required else f"{name}?")
        tag = json.dumps(f"<parameter={key}>\n", ensure_ascii=False)
        choices = _choices(value)
        if not is_text(value):
            yield f'{name}: {tag} {name}_json "\\n</parameter>\\n"'
            schema_of_value = value | definitions if isinstance(value, dict) else value
            yield json_schema_rule(f"{name}_json", schema_of_value)
        elif choices:
            yield f'{name}: {tag} ({" | ".join(choices)}) "\\n</parameter>\\n"'
        else:
            yield f"{name}: {tag} {name}_text"
            yield from _text_rules(f"{name}_text")
    together = " ".join(parts) or '""'
    yield f"{rule}: {together}"


def _text_rules(rule: str) -> Iterator[str]:
    terminal = rule.upper()
    yield f"{rule}[lazy]: {terminal}"
    yield f"{terminal}: {_VALUE}"


def _choices(schema: Any) -> list[str]:
    """Returns the strings that a parameter may be, as literals; empty if it may be any."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else listed(schema, "enum")
    return [json.dumps(one, ensure_ascii=False) for one in values if isinstance(one, str)]
