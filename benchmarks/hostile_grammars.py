"""Lists grammars and schemas that are made to cost as much as possible."""

from __future__ import annotations

import json
from typing import Any

from engine.protocol import Grammar


def schema(document: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(document))


def words(number: int) -> str:
    """Returns alternatives of a Lark rule, each different."""
    return " | ".join(f'"word {n} {n * 7919}"' for n in range(number))


def _tree(keyword: str, depth: int) -> Any:
    """References that multiply by two on every level."""
    definitions: dict[str, Any] = {
        f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(depth)
    }
    return {"$defs": {**definitions, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _alternatives(n: int) -> Any:
    one = [{"properties": {f"p{m}": {"maxLength": m}}} for m in range(n)]
    return {"type": "object", "allOf": [{"anyOf": one} for _ in range(n)]}


HOSTILE = {
    "nested repetition": Grammar("regex", "(((a{1,1000}){1,1000}){1,1000})b"),
    "backtracking": Grammar("regex", "(a+)+(b|a+)*c$"),
    "exponential states": Grammar("regex", "(.*[01].{14}){20}x"),
    "long alternation": Grammar("regex", "|".join(f"w{n}x{n * 7}" for n in range(20_000))),
    "many words": Grammar("lark", "start: " + words(9_000)),
    "ambiguous": Grammar("lark", 'start: s\ns: s s s s | s s s | s s | "a" | ""'),
    "deep parentheses": Grammar("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "deep groups": Grammar("regex", "(" * 50_000 + "a" + ")" * 50_000),
    "wide properties": schema({"properties": {f"p{n}": {"type": "string"} for n in range(7_000)}}),
    "tree of anyOf": schema(_tree("anyOf", 60)),
    "tree of allOf": schema(_tree("allOf", 60)),
    "product": schema(_alternatives(24)),
    "circle": schema(
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    ),
    "many references": schema({"allOf": [{"$ref": "#/$defs/a"}] * 9_000, "$defs": {"a": {"minLength": 1}}}),
    "endless array": schema({"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
    "long enum": schema({"enum": [f"{n}-{n * 7919}" for n in range(12_000)]}),
    "patterns": schema({"patternProperties": {f"^a{n}.*b{n}$": {} for n in range(300)}}),
    "numbers": schema({"type": "number", "multipleOf": 1e-300, "minimum": -1e300, "maximum": 1e300}),
    "deep": Grammar("json_schema", '{"items":' * 20_000 + "{}" + "}" * 20_000),
    "states that follow each text": Grammar("regex", "[a-z ]*[aeiou][a-z ]{40}x"),
    "bounds that are followed side by side": schema(
        {
            "type": "object",
            "properties": {f"p{n}": {"type": "string", "maxLength": 50 + n} for n in range(2_500)},
            "additionalProperties": False,
        }
    ),
}
