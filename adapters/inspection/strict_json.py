"""JSON that means one thing: no key twice, no NaN, no depth without end.

Owns what "valid JSON" is for uploaded files. Refuses to know what the values stand for.
"""

from __future__ import annotations

import json
from typing import Any

from adapters.inspection.errors import InspectionRefused


def decode_object(file: str, text: bytes) -> dict[str, Any]:
    """The object that `text` is. Raises InspectionRefused naming `file`, or the key that is there twice."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise InspectionRefused(_first_twice(pairs), f"given twice in {file}")
        return found

    def refuse_literal(literal: str) -> Any:
        raise InspectionRefused(file, f"not valid JSON: {literal} is no JSON number")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=distinct, parse_constant=refuse_literal)
    except InspectionRefused:
        raise
    except RecursionError:
        raise InspectionRefused(file, "not valid JSON: nested too deeply") from None
    except UnicodeDecodeError:
        raise InspectionRefused(file, "not valid JSON: not UTF-8") from None
    except ValueError as error:
        raise InspectionRefused(file, f"not valid JSON: {error}") from None
    if b"\\u" in text and not _is_text(value):
        raise InspectionRefused(file, "not valid JSON: half of a surrogate pair")
    if not isinstance(value, dict):
        raise InspectionRefused(file, "must be a JSON object")
    return value


def _first_twice(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("fewer keys than pairs")


def _is_text(value: object) -> bool:
    """Whether every string in it can be written down: an escape can make half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
