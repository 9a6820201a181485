"""Reads a JSON Schema into the parts by which a text's place in it is known from the text alone.

An object's value is known by its property's name, an array's by its number, and among alternatives of
different types by its first byte. What is not known like that is opaque: its text is followed to its end
only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from engine.grammar.exact_schemas import PATTERNS
from engine.grammar.pattern_states import Pattern, UnsupportedPattern

STRING, OBJECT, ARRAY, SCALAR = "string", "object", "array", "scalar"
_KINDS = frozenset((STRING, OBJECT, ARRAY, SCALAR))
_ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment")
) | {"$defs", "definitions", "$schema"}
_KEYWORDS: dict[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "minItems", "maxItems")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""By type, those that are understood besides annotations."""
_MAX_DEPTH = 20
"""Of references and unions that lead to each other without a value between them."""


@dataclass(frozen=True, slots=True)
class Node:
    """A schema that nothing more is known about than the kinds of its values."""

    kinds: frozenset[str] = _KINDS

    @property
    def min_bytes(self) -> int:
        """A lower bound of the length of its values."""
        return 1

    def of_kind(self, kind: str) -> Node:
        """Returns the schema of a value that begins like a string, an object, an array or a scalar."""
        return self


OPAQUE: Final = Node()


@dataclass(frozen=True, slots=True, eq=False)
class StringNode(Node):
    """A string, of any text or of a pattern."""

    kinds: frozenset[str] = frozenset((STRING,))
    min_length: int = 0
    max_length: int | None = None
    pattern: Pattern | None = None

    @property
    def min_bytes(self) -> int:
        return 2 + self.min_length


@dataclass(slots=True, eq=False, frozen=True)
class ObjectNode(Node):
    """An object. Its properties come in their order; others follow them."""

    kinds: frozenset[str] = frozenset((OBJECT,))
    properties: dict[bytes, tuple[int, Node]] = field(default_factory=dict)
    """By name, as JSON writes it between quotation marks: (place in the order, schema)."""
    required_bytes: list[int] = field(default_factory=list)

    @property
    def min_bytes(self) -> int:
        return 2 + sum(self.required_bytes)


@dataclass(slots=True, eq=False, frozen=True)
class ArrayNode(Node):
    """An array of values of one schema."""

    kinds: frozenset[str] = frozenset((ARRAY,))
    min_items: int = 0
    max_items: int | None = None
    items: list[Node] = field(default_factory=list)
    """One: a list, since a schema may hold itself."""

    @property
    def min_bytes(self) -> int:
        return max(2, 1 + 2 * self.min_items)


@dataclass(frozen=True, slots=True, eq=False)
class UnionNode(Node):
    """Alternatives of different kinds."""

    by_kind: dict[str, Node] = field(default_factory=dict)

    def of_kind(self, kind: str) -> Node:
        return self.by_kind.get(kind, OPAQUE)


def read_schema(source: str) -> Node:
    """Returns the node of a JSON Schema's source, which a grammar was compiled from."""
    document = json.loads(source)
    return _Reader(document).node(document)


class _Reader:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._nodes: dict[int, Node] = {}
        """By the schema's identity: recursive ones end where they begin."""

    def node(self, schema: Any, depth: int = 0) -> Node:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return OPAQUE
        found = self._nodes.get(id(schema))
        return self._read(schema, depth) if found is None else found

    def _read(self, schema: dict[str, Any], depth: int) -> Node:
        keywords = schema.keys() - _ANNOTATIONS
        if keywords == {"$ref"}:
            return self.node(self._target(schema["$ref"]), depth + 1)
        for union in ("anyOf", "oneOf"):
            if keywords == {union} and isinstance(schema[union], list):
                return _union([self.node(one, depth + 1) for one in schema[union]])
        if keywords == {"enum"} and isinstance(schema["enum"], list):
            return Node(frozenset(map(_kind, schema["enum"])))
        if keywords == {"const"}:
            return Node(frozenset((_kind(schema["const"]),)))
        types = schema.get("type")
        if isinstance(types, str):
            types = [types]
        if not isinstance(types, list) or not types or not all(one in _KEYWORDS for one in types):
            return OPAQUE
        if not keywords - {"type"} <= frozenset().union(*(_KEYWORDS[one] for one in types)):
            return OPAQUE
        if len(types) == 1:
            return self._typed(types[0], schema)
        return _union([self._typed(one, schema) for one in types])

    def _typed(self, kind: str, schema: dict[str, Any]) -> Node:
        if kind == "string":
            return _string(schema)
        if kind == "object":
            return self._object(schema)
        if kind == "array":
            return self._array(schema)
        return Node(frozenset((SCALAR,)))

    def _object(self, schema: dict[str, Any]) -> Node:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return Node(frozenset((OBJECT,)))
        made = ObjectNode()
        self._remember(schema, made)
        for place, (name, value) in enumerate(properties.items()):
            written = json.dumps(name, ensure_ascii=False)[1:-1].encode()
            node = self.node(value)
            made.properties[written] = place, node
            if name in required:
                made.required_bytes.append(len(written) + 4)
        return made

    def _array(self, schema: dict[str, Any]) -> Node:
        fewest, most = schema.get("minItems", 0), schema.get("maxItems")
        if not _is_count(fewest) or not (most is None or _is_count(most)):
            return Node(frozenset((ARRAY,)))
        made = ArrayNode(min_items=fewest, max_items=most)
        self._remember(schema, made)
        made.items.append(self.node(schema.get("items")))
        return made

    def _remember(self, schema: dict[str, Any], node: Node) -> None:
        if isinstance(schema["type"], str):
            self._nodes[id(schema)] = node

    def _target(self, reference: Any) -> Any:
        """Returns what a reference within the document refers to; None if it is no such reference."""
        if not isinstance(reference, str) or not reference.startswith("#") or "%" in reference:
            return None
        found = self._document
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                return None
            found = found[name]
        return found if reference[1:2] in ("", "/") else None


def _string(schema: dict[str, Any]) -> Node:
    fewest, most = schema.get("minLength", 0), schema.get("maxLength")
    opaque = Node(frozenset((STRING,)))
    if not _is_count(fewest) or not (most is None or _is_count(most)):
        return opaque
    if "pattern" not in schema and "format" not in schema:
        return StringNode(min_length=fewest, max_length=most)
    kind = schema.get("format")
    source = schema.get("pattern") if kind is None else PATTERNS.get(kind) if isinstance(kind, str) else None
    if fewest or not isinstance(source, str) or (kind is not None and "pattern" in schema):
        return opaque
    try:
        return StringNode(max_length=most, pattern=Pattern(source))
    except UnsupportedPattern:
        return opaque


def _union(nodes: list[Node]) -> Node:
    by_kind: dict[str, Node] = {}
    for node in nodes:
        for kind in node.kinds:
            by_kind[kind] = OPAQUE if kind in by_kind else node.of_kind(kind)
    return UnionNode(frozenset(by_kind), by_kind)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return STRING
    return OBJECT if isinstance(value, dict) else ARRAY if isinstance(value, list) else SCALAR


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
