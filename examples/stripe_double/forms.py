"""Decodes Stripe's form encoding: `a[b][0][c]=v` and `a[]=v` are objects and lists. Values stay text."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl

_STEP = re.compile(r"\[([^\[\]]*)\]")


def decode(form: str) -> dict[str, Any]:
    """Decodes a form. Raises ValueError for names that no SDK sends."""
    decoded: dict[str, Any] = {}
    for name, value in parse_qsl(form, keep_blank_values=True, strict_parsing=bool(form)):
        head, bracket, _ = name.partition("[")
        steps = [head, *_STEP.findall(name[len(head) :])]
        if bracket and "".join(f"[{step}]" for step in steps[1:]) != name[len(head) :]:
            raise ValueError(f"{name} is not a valid field name")
        _put(decoded, steps, value)
    return _lists(decoded)


def _put(into: dict[str, Any], steps: list[str], value: str) -> None:
    for step in steps[:-1]:
        into = into.setdefault(_key(into, step), {})
    into[_key(into, steps[-1])] = value


def _key(into: dict[str, Any], step: str) -> str:
    return step if step else str(len(into))


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(one) for key, one in value.items()}
    if inner and list(inner) == [str(number) for number in range(len(inner))]:
        return list(inner.values())
    return inner
