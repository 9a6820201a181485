"""Checks that a schema is of the subset of JSON Schema that OpenAI's strict mode takes."""

from __future__ import annotations

from typing import Any

from tokenization.grammars.messages import Refused, SchemaPath
from tokenization.grammars.subschemas import walk

MAX_PROPERTIES = 5000
MAX_LEVELS = 10
"""Objects inside one another."""
MAX_ENUM_VALUES = 1000


def outside_strict_subset(schema: dict[str, Any]) -> Refused | None:
    """Returns the first part of the schema that strict mode does not take."""
    if schema.get("type") != "object":
        return Refused(("type",), "the schema of strict mode must have the type 'object' at its root")
    num_properties = num_values = 0
    for path, one, depth in walk(schema):
        refused = _object_problem(path, one)
        if refused is not None:
            return refused
        if depth >= MAX_LEVELS and _is_object(one):
            return Refused(path, f"strict mode takes at most {MAX_LEVELS} levels of nested objects")
        properties, values = one.get("properties"), one.get("enum")
        num_properties += len(properties) if isinstance(properties, dict) else 0
        num_values += len(values) if isinstance(values, list) else 0
        if num_properties > MAX_PROPERTIES:
            return Refused((*path, "properties"), f"strict mode takes at most {MAX_PROPERTIES} properties")
        if num_values > MAX_ENUM_VALUES:
            return Refused((*path, "enum"), f"strict mode takes at most {MAX_ENUM_VALUES} enum values in all")
    return None


def _is_object(schema: dict[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "object" or "properties" in schema or (isinstance(kind, list) and "object" in kind)


def _object_problem(path: SchemaPath, schema: dict[str, Any]) -> Refused | None:
    if not _is_object(schema):
        return None
    if schema.get("additionalProperties") is not False:
        return Refused(
            (*path, "additionalProperties"),
            "'additionalProperties' is required to be supplied and to be false",
        )
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        return Refused((*path, "properties"), "'properties' must be an object")
    if not isinstance(required, list):
        return Refused((*path, "required"), "'required' must be an array of strings")
    present = {name for name in required if isinstance(name, str)}
    missing = next((name for name in properties if name not in present), None)
    if missing is None:
        return None
    return Refused(
        (*path, "required"),
        "'required' is required to be supplied and to be an array including every key in properties. "
        f"Missing '{missing[:100]}'",
    )
