"""Makes the schemas of the document's components from the types of requests and responses.

A field is described by the docstring below it, in the order of the class. `AdapterObject` is called `Adapter`
in the document, a page of it `AdapterList`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from api.openapi.routing import reference

_SUFFIX = "Object"
_TYPES = {str: "string", bool: "boolean", int: "integer"}
_GENERIC = {"Page": "List", "BucketPage": "Page", "Bucket": "Bucket"}


def components_of(types: Iterable[Any]) -> dict[str, Any]:
    """Schemas of `types` and of all types within them, by their names in the document."""
    listed = list(types)
    by_name: dict[str, Any] = {}
    for kind in {kind for root in listed for kind in _classes_in(root)}:
        if by_name.setdefault(_name(kind.__name__), kind) is not kind:
            raise ValueError(f"{kind!r} and {by_name[_name(kind.__name__)]!r} have one name in the document")
    found = msgspec.json.schema_components(listed, ref_template="#/components/schemas/{name}")[1]
    described = {kind.__name__: kind for root in listed for kind in _classes_in(root)}
    return {
        _name(name): _described(_renamed(schema), described.get(name.partition("_")[0]))
        for name, schema in found.items()
    }


def schema_of(kind: Any) -> dict[str, Any]:
    """A reference to the schema of a type that was given to `components_of`, or to one of a tuple of them."""
    if isinstance(kind, tuple):
        return {"anyOf": [schema_of(one) for one in kind]}
    origin, parts = get_origin(kind), get_args(kind)
    if origin is None:
        return reference(_name(kind.__name__))
    return reference(_name(f"{origin.__name__}_{'_'.join(part.__name__ for part in parts)}_"))


def _name(name: str) -> str:
    """`Page_AdapterObject_`, as msgspec calls a page of adapters, is `AdapterList`."""
    generic = re.fullmatch(r"(\w+?)_(\w+?)_", name)
    return f"{_name(generic[2])}{_GENERIC[generic[1]]}" if generic else name.removesuffix(_SUFFIX)


def _renamed(schema: Any) -> Any:
    """With references to the names of this document, and with the type of enums, which generators of clients
    need.
    """
    if isinstance(schema, list):
        return [_renamed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("enum"), list):
        return _typed_enum(schema)
    return {
        key: reference(_name(value.rpartition("/")[2]))["$ref"] if key == "$ref" else _renamed(value)
        for key, value in schema.items()
    }


def _typed_enum(schema: dict[str, Any]) -> dict[str, Any]:
    values = schema["enum"]
    typed = {"type": _TYPES[type(values[0])], **schema}
    if len(values) == 1:
        typed["const"] = typed.pop("enum")[0]
    return typed


def _described(schema: dict[str, Any], kind: type | None) -> dict[str, Any]:
    schema.pop("title", None)
    if kind is None or "properties" not in schema:
        return schema
    texts = _texts(kind)
    hints = get_type_hints(kind)
    tags = [name for name in schema["properties"] if name not in hints]  # which tell a union's structs apart
    order = tags + [name for name in hints if name in schema["properties"]]
    schema["properties"] = {name: _with_text(schema["properties"][name], texts.get(name)) for name in order}
    if "required" in schema:
        schema["required"] = [name for name in order if name in schema["required"]]
    return schema


def _with_text(schema: dict[str, Any], text: str | None) -> dict[str, Any]:
    return schema if text is None else {**schema, "description": text}


def _texts(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a class and of those it is derived from."""
    bases, own = _written_classes(kind.__module__)[kind.__qualname__]
    found: dict[str, str] = {}
    for base in bases:
        # By name: until Python 3.12 a TypedDict does not know what it is derived from.
        parent = vars(sys.modules[kind.__module__]).get(base)
        if parent is not None and parent is not msgspec.Struct and _has_fields(parent):
            found |= _texts(parent)
    return found | own


@functools.cache
def _written_classes(module: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """The classes of a module by name: names of their bases, and docstrings below their own fields. Modules
    are parsed once: they have dozens of classes.
    """
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        definition.name: (
            [ast.unparse(base).partition("[")[0] for base in definition.bases],
            dict(_field_texts(definition)),
        )
        for definition in tree.body
        if isinstance(definition, ast.ClassDef)
    }


def _field_texts(definition: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(definition.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            yield ast.unparse(field.target), " ".join(str(text.value.value).split())


def _has_fields(kind: Any) -> bool:
    """Whether it is a struct or a TypedDict."""
    return is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _classes_in(kind: Any) -> Iterator[type]:
    """The structs and TypedDicts that make up a type."""
    origin = get_origin(kind) or kind
    if _has_fields(origin):
        yield origin
        for inner in get_type_hints(origin).values():
            yield from _classes_in(inner)
    for part in get_args(kind):
        yield from _classes_in(part)
