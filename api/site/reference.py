"""Turns the OpenAPI document into what the API reference shows: operations by section, fields, and examples.

Nothing is written twice: names, types, limits and texts are those of `/openapi.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
MAX_DEPTH = 6
"""Levels of nested fields that are shown."""
_LIMITS = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "more than {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("pattern", "matches {}"),
)
_UNREMARKABLE = {
    "minLength": (0, 1),
    "minItems": (0,),
    "minimum": (-(2**63),),
    "maximum": (2**31 - 1, 2**63 - 1),
}
"""Limits that tell a reader nothing."""
_SAMPLES = {
    "content": "Hello",
    "prompt": "Hello",
    "email": "ada@example.org",
    "url": "https://example.org/hooks",
}
"""Values for examples, by the field's name."""
_TYPICAL = ("user", "reader", "adapter")
"""Of an enumeration, the values that an example should show."""


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a body."""

    name: str
    type: str
    is_required: bool
    description: str
    limits: str
    values: tuple[str, ...]
    """Those of an enumeration."""
    default: str
    fields: tuple[Field, ...]
    """Its own, where it is an object, or a list of objects."""


@dataclass(frozen=True, slots=True)
class Body:
    """A request's or a response's content of one type."""

    media_type: str
    type: str
    description: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """A response by its status."""

    status: str
    description: str
    bodies: tuple[Body, ...]

    @property
    def is_error(self) -> bool:
        return self.status[0] in "45"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path."""

    id: str
    method: str
    path: str
    title: str
    description: str
    needs_key: bool
    parameters: dict[str, tuple[Field, ...]]
    """By where they are sent: path, query, header."""
    request: Body | None
    replies: tuple[Reply, ...]
    example: str


@dataclass(frozen=True, slots=True)
class Section:
    """The operations with one tag."""

    name: str
    description: str
    operations: tuple[Operation, ...]

    @property
    def anchor(self) -> str:
        return "section-" + re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")


class Reference:
    """Reads an OpenAPI 3.1 document."""

    def __init__(self, document: Schema, base_url: str, model: str) -> None:
        """`base_url` and `model` stand in the examples."""
        self._document = document
        self._base_url = base_url.rstrip("/")
        self._model = model

    def sections(self) -> list[Section]:
        """Returns every operation by its first tag, in the order in which the document lists its tags."""
        by_tag: dict[str, list[Operation]] = {}
        for path, methods in self._document["paths"].items():
            for method, operation in methods.items():
                tag = (operation.get("tags") or ["Other"])[0]
                by_tag.setdefault(tag, []).append(self._operation(path, method, operation))
        described = {tag["name"]: tag.get("description", "") for tag in self._document.get("tags", ())}
        ordered = [*(name for name in described if name in by_tag), *sorted(by_tag.keys() - described.keys())]
        return [Section(name, described.get(name, ""), tuple(by_tag[name])) for name in ordered]

    def errors(self) -> list[tuple[str, str]]:
        """Returns each status of an error with its meaning, as most operations give it."""
        meanings: dict[str, str] = {}
        for methods in self._document["paths"].values():
            for operation in methods.values():
                for status, response in operation["responses"].items():
                    if status[0] in "45":
                        meanings.setdefault(status, self._resolve(response).get("description", ""))
        return sorted(meanings.items())

    def _operation(self, path: str, method: str, operation: Schema) -> Operation:
        parameters: dict[str, list[Field]] = {}
        for given in operation.get("parameters", ()):
            parameter = self._resolve(given)
            field = self._field(
                parameter["name"],
                parameter.get("schema", {}),
                parameter.get("required", False),
                parameter.get("description", ""),
                (),
            )
            parameters.setdefault(parameter["in"], []).append(field)
        contents = operation.get("requestBody", {}).get("content", {})
        replies = [
            Reply(status, response.get("description", ""), tuple(self._bodies(response)))
            for status, given in sorted(operation["responses"].items())
            for response in [self._resolve(given)]
        ]
        return Operation(
            id=operation["operationId"],
            method=method.upper(),
            path=path,
            title=operation["summary"],
            description=operation.get("description", ""),
            needs_key=bool(operation.get("security")),
            parameters={place: tuple(fields) for place, fields in parameters.items()},
            request=next(iter(self._bodies({"content": contents})), None),
            replies=tuple(replies),
            example=self._example(path, method, operation, contents),
        )

    def _bodies(self, holder: Schema) -> Iterator[Body]:
        for media_type, content in holder.get("content", {}).items():
            schema = content.get("schema", {})
            resolved = self._resolve(schema)
            yield Body(
                media_type,
                self._type(schema),
                resolved.get("description", "") if "properties" not in resolved else "",
                self._fields(schema, ()),
            )

    def _fields(self, schema: Schema, within: tuple[str, ...]) -> tuple[Field, ...]:
        """Returns the fields of an object, of a list's items, or of the objects among alternatives."""
        name = schema.get("$ref", "")
        if name in within or len(within) >= MAX_DEPTH:
            return ()
        inside = (*within, name)
        resolved = self._resolve(schema)
        if "items" in resolved:
            return self._fields(resolved["items"], inside)
        found = [field for kind in _alternatives(resolved) for field in self._fields(kind, inside)] + [
            self._field(key, value, key in resolved.get("required", ()), "", inside)
            for key, value in resolved.get("properties", {}).items()
            if value.get("type") != "null"  # named only to be refused
        ]
        return tuple({field.name: field for field in reversed(found)}.values())[::-1]

    def _field(
        self, name: str, schema: Schema, is_required: bool, description: str, within: tuple[str, ...]
    ) -> Field:
        resolved = self._resolve(schema)
        plain = _plain(resolved)
        default = plain.get("default", resolved.get("default"))
        return Field(
            name=name,
            type=self._type(schema),
            is_required=is_required,
            description=description or schema.get("description", "") or plain.get("description", ""),
            limits=", ".join(_limits(plain)),
            values=tuple(str(value) for value in plain.get("enum", ()) if value is not None),
            default="" if default is None else json.dumps(default),
            fields=self._fields(schema, within),
        )

    def _type(self, schema: Schema) -> str:
        resolved = self._resolve(schema)
        kinds = _alternatives(resolved)
        if kinds:
            return " or ".join(dict.fromkeys(self._type(kind) for kind in kinds))
        if "const" in resolved:
            return json.dumps(resolved["const"])
        kind = resolved.get("type")
        if isinstance(kind, list):
            return " or ".join(kind)
        if kind == "array":
            return f"array of {self._type(resolved.get('items', {}))}"
        if kind == "string" and resolved.get("format"):
            return f"string ({resolved['format']})"
        return kind or ("object" if "properties" in resolved else "string" if "enum" in resolved else "any")

    def _resolve(self, schema: Schema) -> Schema:
        if "$ref" in schema:
            target: Schema = self._document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                target = target[step]
            return target
        if len(schema.get("allOf", ())) == 1:
            return self._resolve(schema["allOf"][0]) | {k: v for k, v in schema.items() if k != "allOf"}
        return schema

    def _example(self, path: str, method: str, operation: Schema, contents: Schema) -> str:
        url = self._base_url + re.sub(r"\{(.+?)\}", lambda name: f"${name[1].upper()}", path)
        needed = [
            one
            for one in map(self._resolve, operation.get("parameters", ()))
            if one["in"] == "query" and one.get("required")
        ]
        query = "&".join(f"{one['name']}={self._sample(one['name'], one['schema'])}" for one in needed)
        lines = [f'curl "{url}{"?" + query if query else ""}"']
        if method != "get":
            lines[0] = lines[0].replace("curl", f"curl -X {method.upper()}", 1)
        if operation.get("security"):
            lines.append('-H "Authorization: Bearer $ROOTSTOCK_API_KEY"')
        if "multipart/form-data" in contents:
            schema = self._resolve(contents["multipart/form-data"].get("schema", {}))
            for name, field in schema.get("properties", {}).items():
                if name in schema.get("required", ()):
                    lines.append(f"-F {name}={'@FILE' if _is_file(field) else self._sample(name, field)}")
        elif "application/json" in contents:
            sample = self._sample("", contents["application/json"].get("schema", {}))
            lines += ['-H "Content-Type: application/json"', f"-d '{json.dumps(sample)}'"]
        return " \\\n  ".join(lines)

    def _sample(self, name: str, schema: Schema, depth: int = 0) -> Any:
        """Returns a value that the schema takes: the fields that are required, and of the rest none."""
        resolved = _plain(self._resolve(schema))
        resolved = self._resolve(resolved)
        if name == "model":
            return self._model
        for given in (resolved.get("examples") or [None])[0], resolved.get("example"), resolved.get("const"):
            if given is not None:
                return given
        if "enum" in resolved:
            return next((one for one in _TYPICAL if one in resolved["enum"]), resolved["enum"][0])
        kinds = _alternatives(resolved)
        if kinds:
            return self._sample(name, kinds[0], depth)
        if resolved.get("type") == "array":
            return [] if depth >= MAX_DEPTH else [self._sample("", resolved.get("items", {}), depth + 1)]
        if "properties" in resolved:
            required = [key for key in resolved["properties"] if key in resolved.get("required", ())]
            return {key: self._sample(key, resolved["properties"][key], depth + 1) for key in required}
        numeric = {"integer": resolved.get("minimum", 1), "number": resolved.get("minimum", 1)}
        return {**numeric, "boolean": True, "object": {}}.get(
            resolved.get("type", ""), _SAMPLES.get(name, name.upper() or "text")
        )


def _alternatives(schema: Schema) -> list[Schema]:
    """Returns what a value may be instead of null; nothing where there is no choice."""
    kinds = schema.get("anyOf") or schema.get("oneOf") or ()
    return [kind for kind in kinds if kind != {"type": "null"}]


def _plain(schema: Schema) -> Schema:
    """Returns the only alternative to null, with what stands beside it."""
    kinds = _alternatives(schema)
    return {**schema, **kinds[0], "anyOf": None} if len(kinds) == 1 else schema


def _limits(schema: Schema) -> Iterator[str]:
    for key, text in _LIMITS:
        value = schema.get(key)
        if value is not None and value not in _UNREMARKABLE.get(key, ()):
            yield text.format(value)


def _is_file(schema: Schema) -> bool:
    return schema.get("format") == "binary" or "contentMediaType" in schema
