"""SCIM filters: what is read, how it binds, and what is refused."""

from __future__ import annotations

import pytest

from tenants.provisioning.errors import InvalidFilter
from tenants.provisioning.filters import (
    MAX_COMPARISONS,
    MAX_DEPTH,
    Comparison,
    Junction,
    Not,
    Present,
    Within,
    matches,
    parse_filter,
)

A, B, C = (Comparison(name, "eq", 1) for name in "abc")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ('userName eq "a@b.c"', Comparison("username", "eq", "a@b.c")),
        ('userName Eq "a \\"b\\" ) and"', Comparison("username", "eq", 'a "b" ) and')),
        ("urn:ietf:params:scim:schemas:core:2.0:User:name.givenName pr", Present("name.givenname")),
        ("active eq true", Comparison("active", "eq", True)),
        ("a eq 1 or b eq 1 and c eq 1", Junction("or", (A, Junction("and", (B, C))))),
        ("(a eq 1 or b eq 1) and c eq 1", Junction("and", (Junction("or", (A, B)), C))),
        ("not (a eq 1) and b eq 1", Junction("and", (Not(A), B))),
        (
            'emails[type eq "work" and value co "@x"]',
            Within(
                "emails", Junction("and", (Comparison("type", "eq", "work"), Comparison("value", "co", "@x")))
            ),
        ),
    ],
)
def test_filters_are_read(text: str, read: object) -> None:
    assert parse_filter(text) == read


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "userName",
            "userName eq",
            "userName is 1",
            "userName eq work",
            'userName eq "a',
            "a eq 1 b eq 1",
        ),
        *("(a eq 1", "a eq 1)", "emails[type eq 1", "not a eq 1", "a eq 1 and", "1a eq 1", 'a eq "\\u0000"'),
        "(" * (MAX_DEPTH + 2) + "a eq 1" + ")" * (MAX_DEPTH + 2),
        " or ".join(["a eq 1"] * (MAX_COMPARISONS + 1)),
        "a" * 2001,
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter):
        parse_filter(text)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('type eq "WORK"', True),
        ('value ew "@acme.example" and primary eq true', True),
        ('type ne "work" or not (display pr)', True),
        ('value gt "zz"', False),
        ("type co 1", False),
    ],
)
def test_values_of_a_list_match(text: str, holds: bool) -> None:
    value = {"value": "ada@acme.example", "type": "work", "primary": True}
    assert matches(parse_filter(text), value) is holds
