"""Rewrites the parts of a JSON Schema whose grammars would allow more than the schema does.

llguidance 1.9.1 allows 29 February in any year, second 60 in any minute, 17.0 where a number must be above
17, and an escaped quotation mark where a pattern excludes it. Validators refuse all four.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from engine.grammar.exact_patterns import exact_classes
from engine.grammar.schema_keywords import NAMED_SCHEMAS, SCHEMA_LISTS, SINGLE_SCHEMAS

_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    rf"(\d{{4}}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_ATOM, _LETTER = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]", "[A-Za-z0-9]"
_OCTET = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "email": rf"^{_ATOM}(\.?{_ATOM})*@({_LETTER}((-*|\.){_LETTER})*|\[{_OCTET}(\.{_OCTET}){{3}}\])$",
    "uuid": r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
}
"""Dates and times of RFC 3339, without leap seconds; addresses of RFC 5321, with a dot-string before the @.
Masks are kept by the states of these patterns (`engine/grammar/pattern_states.py`).
"""
MAX_BOUND = 1e300
"""Larger bounds stay as they are: there may be no float for them."""
SMALLEST_STEP = 1e-9
"""An exclusive bound of a number that may have decimals becomes an inclusive one, this much further in."""


def exact(schema: Any) -> Any:
    """Returns the JSON Schema with such parts rewritten, wherever a schema may stand.

    All else stays as it is, the order of properties too.
    """
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in NAMED_SCHEMAS and isinstance(value, dict):
            made[keyword] = {name: exact(one) for name, one in value.items()}
        elif keyword in SCHEMA_LISTS and isinstance(value, list):
            made[keyword] = [exact(one) for one in value]
        elif keyword in SINGLE_SCHEMAS:
            made[keyword] = exact(value)
        else:
            made[keyword] = value
    if isinstance(made.get("pattern"), str):
        made["pattern"] = exact_classes(made["pattern"])
    pattern = PATTERNS.get(made["format"]) if isinstance(made.get("format"), str) else None
    if pattern is not None:
        del made["format"]
        if "pattern" in made:
            made["allOf"] = [*made.get("allOf", []), {"type": "string", "pattern": pattern}]
        else:
            made["pattern"] = pattern
    if made.get("type") != "integer":
        _make_inclusive(made, "exclusiveMinimum", "minimum", 1)
        _make_inclusive(made, "exclusiveMaximum", "maximum", -1)
    return made


def _make_inclusive(schema: dict[str, Any], exclusive: str, inclusive: str, sign: int) -> None:
    bound, other = schema.get(exclusive), schema.get(inclusive)
    if not _is_number(bound) or not (other is None or _is_number(other)):
        return  # for the compiler to refuse
    del schema[exclusive]
    inside = bound + sign * SMALLEST_STEP * max(1.0, abs(bound))
    schema[inclusive] = inside if other is None else sign * max(sign * inside, sign * other)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_BOUND
