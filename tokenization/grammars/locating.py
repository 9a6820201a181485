"""Finds the part of a schema that keeps it from compiling.

The compiler's messages name no place. So schemas inside the refused one are compiled on their own, from the
outermost to the innermost that still fails; then the keywords of that one are left out until it compiles.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from engine.grammar.schema_keywords import DEFINITIONS
from tokenization.grammars.messages import SchemaPath
from tokenization.grammars.subschemas import subschemas, walk

SECONDS = 0.3
"""After which the innermost place found so far has to do."""
_HOME = "$defs"
_ROOT = "root"

Compile = Callable[[str], str]
"""Returns why a schema does not compile, or ""."""


def find_problem(schema: dict[str, Any], problem: str, compile_schema: Compile) -> tuple[SchemaPath, str]:
    """Returns (the path of the part that does not compile, why).

    `problem`: why `schema` does not compile.
    """
    elsewhere = next((path for path, one, _ in walk(schema) if _is_elsewhere(one.get("$ref"))), None)
    if elsewhere is not None:
        # The compiler looks at these wherever they are: every part of the schema would fail.
        return (*elsewhere, "$ref"), "only references within the schema are supported, such as '#/$defs/name'"
    return _Search(schema, compile_schema).run(problem)


def _is_elsewhere(reference: object) -> bool:
    return isinstance(reference, str) and not reference.startswith("#")


class _Search:
    def __init__(self, schema: dict[str, Any], compile_schema: Compile) -> None:
        self._schema = schema
        self._moved = _with_moved_refs(schema)
        self._compile = compile_schema
        self._deadline = time.monotonic() + SECONDS

    def run(self, problem: str) -> tuple[SchemaPath, str]:
        path: SchemaPath = ()
        seen: set[SchemaPath] = {()}
        while (inner := self._failing_inside(path, seen)) is not None:
            path, problem = inner
        return self._failing_keyword(path, problem), problem

    def _failing_inside(self, path: SchemaPath, seen: set[SchemaPath]) -> tuple[SchemaPath, str] | None:
        schema = _at(self._schema, path)
        if not isinstance(schema, dict):
            return None
        targets: list[SchemaPath | None] = [_target(schema)]
        candidates: list[SchemaPath | None] = []
        for step, child in subschemas(schema):
            if step[0] in DEFINITIONS:
                continue
            is_ref = isinstance(child, dict) and "$ref" in child
            (targets if is_ref else candidates).append(path + step)
        for candidate in (*candidates, *targets):
            if candidate is None or candidate in seen or self._is_late():
                continue
            seen.add(candidate)
            if _at(self._schema, candidate) is not None and (problem := self._problem_at(candidate)):
                return candidate, problem
        return None

    def _problem_at(self, path: SchemaPath) -> str:
        pointer = "/".join(_escaped(step) for step in path)
        document = {"$ref": f"#/{_HOME}/{_ROOT}/{pointer}", _HOME: {_ROOT: self._moved}}
        return self._compile(json.dumps(document))

    def _failing_keyword(self, path: SchemaPath, problem: str) -> SchemaPath:
        """Returns the path of the keyword without which, and those before it, the schema compiles."""
        schema = _at(self._moved, path)
        if not isinstance(schema, dict):
            return path
        keywords = sorted((one for one in schema if one not in DEFINITIONS), key=lambda one: one == "type")
        rest = dict(schema) if path else {key: one for key, one in schema.items() if key not in DEFINITIONS}
        for keyword in keywords:
            if self._is_late():
                return path
            del rest[keyword]
            document = {**rest, _HOME: {_ROOT: self._moved}}
            if not self._compile(json.dumps(document)):
                return (*path, keyword)
        return path

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline


def _with_moved_refs(value: Any) -> Any:
    """Returns the schema with its references to itself pointing to where the search puts it."""
    if isinstance(value, list):
        return [_with_moved_refs(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: f"#/{_HOME}/{_ROOT}{one[1:]}"
        if key == "$ref" and isinstance(one, str) and one.startswith("#")
        else _with_moved_refs(one)
        for key, one in value.items()
    }


def _target(schema: dict[str, Any]) -> SchemaPath | None:
    """Returns the path that a schema's reference points to."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in reference[2:].split("/"))


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _at(schema: Any, path: SchemaPath) -> Any:
    for step in path:
        if isinstance(schema, dict):
            schema = schema.get(str(step))
        elif isinstance(schema, list) and str(step).isdecimal() and int(step) < len(schema):
            schema = schema[int(step)]
        else:
            return None
    return schema
