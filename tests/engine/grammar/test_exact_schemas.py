"""Exact patterns of dates and times, exclusive bounds, and where in a schema they are rewritten."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.grammar.exact_schemas import PATTERNS, exact
from engine.grammar.formats import to_llguidance
from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from tests.engine.grammar.sapling import BASE


@given(st.integers(0, 9999), st.integers(0, 13), st.integers(0, 32))
def test_dates_are_those_of_the_calendar(year: int, month: int, day: int) -> None:
    try:
        exists = year == 0 or bool(date(year, month, day))
        if year == 0:  # a leap year, which Python does not have
            exists = bool(date(2000, month, day))
    except ValueError:
        exists = False
    assert bool(re.search(PATTERNS["date"], f"{year:04}-{month:02}-{day:02}")) == exists


@pytest.mark.parametrize("year", [1896, 1900, 1904, 2000, 2023, 2024, 2100, 2400])
def test_february_29(year: int) -> None:
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    assert bool(re.search(PATTERNS["date"], f"{year}-02-29")) == leap


@given(st.datetimes(min_value=datetime(1, 1, 1)), st.sampled_from(["Z", "+00:00", "-23:59"]))
def test_times_of_python_pass(moment: datetime, zone: str) -> None:
    assert re.search(PATTERNS["date-time"], moment.isoformat() + zone)
    assert re.search(PATTERNS["time"], moment.time().isoformat() + zone)


@pytest.mark.parametrize(
    "text", ["23:59:60Z", "24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z", "12:00:00+24:00"]
)
def test_times_that_do_not_exist_are_refused(text: str) -> None:
    assert not re.search(PATTERNS["time"], text)


def test_formats_are_replaced_where_schemas_stand_and_nowhere_else() -> None:
    day = {"type": "string", "format": "date"}
    schema = {
        "properties": {"format": day, "b": {"items": day}, "a": {"anyOf": [day, {"prefixItems": [day]}]}},
        "$defs": {"d": day},
        "additionalProperties": day,
        "enum": [day],
        "const": {"format": "date"},
        "default": {"format": "time"},
    }
    found = exact(schema)
    replaced = {"type": "string", "pattern": PATTERNS["date"]}
    assert found == {
        "properties": {
            "format": replaced,
            "b": {"items": replaced},
            "a": {"anyOf": [replaced, {"prefixItems": [replaced]}]},
        },
        "$defs": {"d": replaced},
        "additionalProperties": replaced,
        "enum": [day],
        "const": {"format": "date"},
        "default": {"format": "time"},
    }
    assert list(found["properties"]) == ["format", "b", "a"]


def test_a_pattern_beside_a_format_holds_too() -> None:
    found = exact({"type": "string", "format": "time", "pattern": "^1"})
    assert found == {
        "type": "string",
        "pattern": "^1",
        "allOf": [{"type": "string", "pattern": PATTERNS["time"]}],
    }


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "number", "exclusiveMinimum": 17}, {"type": "number", "minimum": 17 + 17e-9}),
        ({"type": "number", "exclusiveMaximum": 0.5}, {"type": "number", "maximum": 0.5 - 1e-9}),
        ({"type": "number", "exclusiveMinimum": 0, "minimum": 3}, {"type": "number", "minimum": 3}),
        ({"type": "number", "exclusiveMaximum": 9, "maximum": 9}, {"type": "number", "maximum": 9 - 9e-9}),
        ({"exclusiveMinimum": -1}, {"minimum": -1 + 1e-9}),
        ({"type": "integer", "exclusiveMinimum": 17}, {"type": "integer", "exclusiveMinimum": 17}),
        ({"type": "number", "exclusiveMinimum": True}, {"type": "number", "exclusiveMinimum": True}),
    ],
)
def test_exclusive_bounds_of_numbers_become_inclusive(
    schema: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert exact(schema) == expected


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [("17", False), ("17.0", False), ("17.00", False), ("1.7e1", False), ("17.5", True), ("18", True)],
)
def test_a_number_on_an_exclusive_bound_is_not_generated(text: str, is_allowed: bool) -> None:
    tokenizer = load_tokenizer(BASE, (6, 1), 4096)
    schema = {"type": "number", "exclusiveMinimum": 17, "maximum": 18}
    matcher = LLMatcher(tokenizer, to_llguidance(Grammar("json_schema", json.dumps(schema))), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    token_ids = tokenizer.greedy_tokenize(text)
    consumed = matcher.try_consume_tokens(token_ids)
    assert (consumed == len(token_ids) and matcher.is_accepting()) == is_allowed


def test_other_formats_stay() -> None:
    assert exact({"type": "string", "format": "ipv4"}) == {"type": "string", "format": "ipv4"}
    assert exact(True) is True
