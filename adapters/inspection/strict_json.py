"""JSON that means one thing: no key twice, no NaN, no depth without end.

Owns what "valid JSON" is for uploaded files. Refuses to know what the values stand for.
"""

from __future__ import annotations

import json
from typing import Any

from adapters.inspection.errors import InspectionRefused


class _Literal(ValueError):
    """NaN or Infinity, which JSON does not have."""


class _Twice(ValueError):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def decode_object(file: str, text: bytes) -> dict[str, Any]:
    """The object that `text` is. Raises InspectionRefused naming `file`, or the key that is there twice."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_distinct, parse_constant=_refuse_literal)
    except _Twice as error:
        raise InspectionRefused(error.key, f"given twice in {file}") from None
    except _Literal as error:
        raise InspectionRefused(file, f"not valid JSON: {error} is no JSON number") from None
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


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Twice(key)
            seen.add(key)
    return found


def _refuse_literal(literal: str) -> Any:
    raise _Literal(literal)


def _is_text(value: object) -> bool:
    """Whether every string in it can be written down: an escape can make half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
