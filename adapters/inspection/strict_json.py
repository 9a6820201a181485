"""Decodes JSON strictly: no duplicate keys, no NaN, limited depth; for uploaded files."""

from __future__ import annotations

import json
from typing import Any

from adapters.inspection.errors import InspectionRefused


def decode_object(file: str, text: bytes) -> dict[str, Any]:
    """Decodes an object. Raises InspectionRefused naming `file`, or the object's field that is duplicated or
    contains a duplicate key.
    """
    has_repeated_keys = False

    def keyed(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_repeated_keys
        found = dict(pairs)
        has_repeated_keys |= len(found) != len(pairs)
        return found

    def refuse_literal(literal: str) -> Any:
        raise InspectionRefused(file, f"not valid JSON: {literal} is not a JSON number")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=keyed, parse_constant=refuse_literal)
    except InspectionRefused:
        raise
    except RecursionError:
        raise InspectionRefused(file, "not valid JSON: nested too deeply") from None
    except UnicodeDecodeError:
        raise InspectionRefused(file, "not valid JSON: not UTF-8") from None
    except ValueError as error:
        raise InspectionRefused(file, f"not valid JSON: {error}") from None
    if has_repeated_keys:
        raise _repeated(file, text)
    if b"\\u" in text and not _is_text(value):
        raise InspectionRefused(file, "not valid JSON: half of a surrogate pair")
    if not isinstance(value, dict):
        raise InspectionRefused(file, "must be a JSON object")
    return value


class _Pairs(list[tuple[str, Any]]):
    """An object as written, with duplicate keys."""


def _repeated(file: str, text: bytes) -> InspectionRefused:
    """Returns an error that names the duplicate key and the field of the outermost object that
    contains it.
    """
    try:
        value = json.loads(text, object_pairs_hook=_Pairs)
        path = _path_to_repeated(value)
    except (ValueError, RecursionError):
        path = None  # also malformed after the duplicate key
    if not path:
        return InspectionRefused(file, "not valid JSON: a key is given twice")
    if len(path) == 1:
        return InspectionRefused(path[0], f"given twice in {file}")
    return InspectionRefused(path[0], f"its {path[-1]!r} is given twice in {file}")


def _path_to_repeated(value: object) -> list[str] | None:
    """Returns the keys that lead to the first duplicate key, without indices of lists."""
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            path = [] if key in seen else _path_to_repeated(inner)
            if path is not None:
                return [key, *path]
            seen.add(key)
    elif isinstance(value, list):
        return next(filter(None, map(_path_to_repeated, value)), None)
    return None


def _is_text(value: object) -> bool:
    """Returns whether every string can be encoded: an escape can produce half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return False
    return True
