"""Generates JSON Schemas of every kind that applications send: nested, recursive, with bounds and patterns.

Every schema is bounded, so that a text of it ends: strings and arrays have a longest length, and recursion is
optional.
"""

from __future__ import annotations

from random import Random
from typing import Any

Schema = dict[str, Any]

NAMES = ("id", "name", "größe", "city", "価格", "is_open", "tags", "a b", "x-y", 'quo"te', "\\", "emoji 🙂")
WORDS = ("red", "green", "blue", "Zürich", "東京", "a/b", "tab\there", "", "null", "🙂")
PATTERNS = ("^[a-z]{2,5}$", "^[A-Z]{3}-[0-9]{2,4}$", "^(yes|no|maybe)$", r"^\d{3}$", "^[äöü]{1,3}x?$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "duration")
MAX_DEPTH = 3


def random_schema(seed: int) -> Schema:
    """Returns schema number `seed`. One in 200 has 5 000 properties."""
    random = Random(seed)
    if seed % 200 == 199:
        return _wide(5_000)
    root = _object(random, 0)
    if random.random() < 0.15:
        root = _recursive(random, root)
    elif random.random() < 0.15:
        root = _referring(random)
    elif random.random() < 0.1:
        root = {"anyOf": [root, _array(random, 1), {"type": "null"}]}
    return root


def _any(random: Random, depth: int) -> Schema:
    kinds = [_string, _number, _enum, _boolean]
    if depth < MAX_DEPTH:
        kinds += [_object, _array, _union]
    return random.choice(kinds)(random, depth)


def _object(random: Random, depth: int) -> Schema:
    names = random.sample(NAMES, random.randint(1, 5))
    required = [name for name in names if random.random() < 0.8]
    made: Schema = {
        "type": "object",
        "properties": {name: _any(random, depth + 1) for name in names},
        "required": required,
        "additionalProperties": False,
    }
    if random.random() < 0.1:
        made["description"] = "Kept as it is."
    return made


def _array(random: Random, depth: int) -> Schema:
    fewest = random.randint(0, 2)
    return {
        "type": "array",
        "items": _any(random, depth + 1),
        "minItems": fewest,
        "maxItems": fewest + random.randint(0, 2),
    }


def _union(random: Random, depth: int) -> Schema:
    return {"anyOf": [_any(random, depth + 1) for _ in range(random.randint(2, 3))]}


def _string(random: Random, depth: int) -> Schema:
    choice = random.random()
    if choice < 0.25:
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if choice < 0.5:
        return {"type": "string", "format": random.choice(FORMATS), "maxLength": 40}
    fewest = random.randint(0, 4)
    return {"type": "string", "minLength": fewest, "maxLength": fewest + random.randint(0, 16)}


def _number(random: Random, depth: int) -> Schema:
    low = random.choice((-1000, -3, 0, 1, 17))
    if random.random() < 0.6:
        made: Schema = {"type": "integer", "minimum": low, "maximum": low + random.choice((0, 9, 1500))}
        if random.random() < 0.2:
            made = {"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": random.choice((2, 5, 10))}
        return made
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + random.choice((1, 2.5, 100))}


def _enum(random: Random, depth: int) -> Schema:
    if random.random() < 0.3:
        return {"const": random.choice((*WORDS, 12, None, True))}
    return {"enum": random.sample((*WORDS, 1, 2.5, None, False), random.randint(1, 6))}


def _boolean(random: Random, depth: int) -> Schema:
    return {"type": random.choice(("boolean", "null", ["boolean", "null"]))}


def _recursive(random: Random, root: Schema) -> Schema:
    node = {
        "type": "object",
        "properties": {
            "value": _any(random, MAX_DEPTH),
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {
        **root,
        "properties": {**root["properties"], "list": {"$ref": "#/$defs/node"}},
        "$defs": {"node": node},
    }


def _referring(random: Random) -> Schema:
    return {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/side"}, "right": {"$ref": "#/$defs/side"}},
        "required": ["left", "right"],
        "additionalProperties": False,
        "$defs": {"side": _object(random, 2)},
    }


def _wide(num_properties: int) -> Schema:
    return {
        "type": "object",
        "properties": {f"property {number}": {"type": "boolean"} for number in range(num_properties)},
        "required": ["property 7"],
        "additionalProperties": False,
    }
