"""Walks the schemas inside a JSON Schema, with the path of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.grammar.schema_keywords import DEFINITIONS, NAMED_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMAS
from tokenization.grammars.messages import SchemaPath

KEYWORDS = frozenset(
    [
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "const",
        "enum",
        "type",
        "items",
        "additionalItems",
        "prefixItems",
        "minItems",
        "maxItems",
        "properties",
        "additionalProperties",
        "patternProperties",
        "required",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "minContains",
        "maxContains",
        "uniqueItems",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
        "unevaluatedItems",
        "unevaluatedProperties",
        "$dynamicRef",
        "$dynamicAnchor",
        "$vocabulary",
        "deprecated",
        "$anchor",
        "$defs",
        "definitions",
        "$schema",
        "$id",
        "id",
        "$comment",
        "title",
        "description",
        "default",
        "readOnly",
        "writeOnly",
        "examples",
        "contentMediaType",
        "contentEncoding",
        "contentSchema",
    ]
)
"""The keywords of JSON Schema. The compiler refuses those that it cannot hold to, and ignores other words."""


def unknown_keyword(schema: dict[str, Any]) -> SchemaPath | None:
    """Returns the path of the first keyword that is not JSON Schema's."""
    for path, one, _ in walk(schema):
        for keyword in one:
            if keyword not in KEYWORDS:
                return (*path, keyword)
    return None


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[SchemaPath, Any]]:
    """Yields (path from `schema`, subschema) of each schema directly inside it, in the order of the text."""
    for keyword, value in schema.items():
        if keyword in NAMED_SCHEMAS and isinstance(value, dict):
            for name, one in value.items():
                yield (keyword, name), one
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            for position, one in enumerate(value):
                yield (keyword, position), one
        elif keyword in SINGLE_SCHEMAS:
            yield (keyword,), value


def walk(schema: Any) -> Iterator[tuple[SchemaPath, dict[str, Any], int]]:
    """Yields (path, schema, number of objects it is inside) of a schema and of all schemas inside it."""
    waiting: list[tuple[SchemaPath, Any, int]] = [((), schema, 0)]
    while waiting:
        path, one, depth = waiting.pop()
        if not isinstance(one, dict):
            continue
        yield path, one, depth
        inside = [(path + step, child, _depth(one, step, depth)) for step, child in subschemas(one)]
        waiting += reversed(inside)


def _depth(schema: dict[str, Any], step: SchemaPath, depth: int) -> int:
    if step[0] in DEFINITIONS:
        return 0
    return depth + (step[0] in ("properties", "additionalProperties", "patternProperties"))
