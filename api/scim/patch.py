"""Applies the operations of a SCIM PATCH (RFC 7644, 3.5.2) to the attributes of a user or group.

Accepts what identity providers send besides the RFC: operations with a capital letter, attributes with a
dot as keys of a value without a path, and members to remove as a value instead of a filter.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.errors import InvalidScim
from api.scim.resources import Document
from tenants.provisioning.errors import InvalidFilter
from tenants.provisioning.filters import Comparison, Filter, matches, parse_filter

MAX_OPERATIONS = 1000
PATCH_OP = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
WRITABLE = {
    name.lower(): name
    for name in ("userName", "externalId", "displayName", "name", "emails", "active", "members")
}
_LISTS = frozenset({"emails", "members"})
_PARTS = {name.lower(): name for name in ("formatted", "givenName", "familyName", "value", "type", "primary")}
_READ_ONLY = frozenset({"id", "meta", "groups"})
_REQUIRED = frozenset({"userName", "active"})
_NOT_STORED = frozenset(
    {
        *(
            "schemas",
            "nickname",
            "profileurl",
            "title",
            "usertype",
            "preferredlanguage",
            "locale",
            "timezone",
        ),
        *(
            "password",
            "phonenumbers",
            "ims",
            "photos",
            "addresses",
            "entitlements",
            "roles",
            "x509certificates",
        ),
    }
)
"""Attributes of RFC 7643 that this service does not store: changes of them are accepted and ignored."""
_CORE = re.compile(r"urn:ietf:params:scim:schemas:core:2\.0:(?:User|Group):", re.IGNORECASE)
_PATH = re.compile(r"(\w+)(?:\[(.*)\])?(?:\.(\$?\w+))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Path:
    attribute: str
    part: str | None
    condition: Filter | None
    """Of a list: which of its values."""


def patched(document: Mapping[str, Any], body: Mapping[str, Any]) -> Document:
    """Returns the document after the operations of a PATCH body. Raises InvalidScim."""
    operations = next((value for name, value in body.items() if name.lower() == "operations"), None)
    if not isinstance(operations, list) or not operations:
        raise InvalidScim("Operations must be a list of operations", "invalidSyntax")
    if len(operations) > MAX_OPERATIONS:
        raise InvalidScim(f"there are more than {MAX_OPERATIONS} operations", "tooMany")
    changed: Document = copy.deepcopy(dict(document))
    for operation in operations:
        _apply(changed, operation)
    return changed


def _apply(document: Document, operation: Any) -> None:
    if not isinstance(operation, Mapping):
        raise InvalidScim("an operation must be an object", "invalidSyntax")
    given = {name.lower(): value for name, value in operation.items()}
    verb = str(given.get("op", "")).lower()
    if verb not in ("add", "replace", "remove"):
        raise InvalidScim("op must be add, replace or remove", "invalidSyntax")
    path, value = given.get("path"), given.get("value")
    if path is not None and not isinstance(path, str):
        raise InvalidScim("path must be text", "invalidPath")
    if path:
        _apply_at(document, verb, path, value)
    elif verb == "remove":
        raise InvalidScim("remove needs a path", "noTarget")
    elif not isinstance(value, Mapping):
        raise InvalidScim("value must be an object where there is no path", "invalidValue")
    else:
        for name, inner in value.items():
            if name.lower() not in _READ_ONLY:
                _apply_at(document, verb, name, inner)


def _apply_at(document: Document, verb: str, text: str, value: Any) -> None:
    path = _read_path(text)
    if path is None:
        return
    if verb != "remove" and value is None:
        verb = "remove"  # null is no value
    if path.attribute in _LISTS:
        _change_list(document, verb, path, value)
    elif path.attribute == "name":
        _change_name(document, verb, path.part, value)
    elif path.part is not None or path.condition is not None:
        raise InvalidScim(f"{path.attribute} has no parts", "invalidPath")
    elif verb != "remove":
        document[path.attribute] = value
    elif path.attribute in _REQUIRED:
        raise InvalidScim(f"{path.attribute} cannot be removed", "mutability")
    else:
        document.pop(path.attribute, None)


def _read_path(text: str) -> _Path | None:
    """Returns None for an attribute that is not stored. Raises InvalidScim."""
    bare = _CORE.sub("", text, count=1)
    if bare.lower().startswith("urn:"):
        return None  # an extension
    found = _PATH.fullmatch(bare)
    name = "" if found is None else found[1].lower()
    if found is None or name not in {*WRITABLE, *_NOT_STORED, *_READ_ONLY}:
        raise InvalidScim(f"there is no attribute {text[:80]!r}", "invalidPath")
    if name in _READ_ONLY:
        raise InvalidScim(f"{found[1]} cannot be changed", "mutability")
    if name in _NOT_STORED:
        return None
    try:
        condition = None if found[2] is None else parse_filter(found[2])
    except InvalidFilter as error:
        raise InvalidScim(str(error), "invalidFilter") from error
    part = None if found[3] is None else found[3].lower()
    return _Path(WRITABLE[name], part and _PARTS.get(part, part), condition)


def _change_name(document: Document, verb: str, part: str | None, value: Any) -> None:
    name = dict(document.get("name", {}))
    if part is not None:
        if verb == "remove":
            name.pop(part, None)
        else:
            name[part] = value
    elif verb == "remove":
        name = {}
    elif isinstance(value, Mapping):
        name |= {_PARTS.get(inner.lower(), inner): text for inner, text in value.items()}
    else:
        raise InvalidScim("name must be an object", "invalidValue")
    document["name"] = name


def _change_list(document: Document, verb: str, path: _Path, value: Any) -> None:
    values: list[dict[str, Any]] = document.get(path.attribute, [])
    if path.condition is not None or path.part is not None:
        values = _change_some(values, verb, path, value)
    elif verb == "remove":
        gone = {one["value"] for one in _objects(path.attribute, value)} if value else None
        values = [] if gone is None else [one for one in values if one["value"] not in gone]
    elif verb == "replace":
        values = _objects(path.attribute, value)
    else:
        added = _objects(path.attribute, value)
        if any(one.get("primary") is True for one in added):
            values = [one | {"primary": False} if "primary" in one else one for one in values]
        known = {one["value"] for one in added}
        values = [one for one in values if one["value"] not in known] + added
    document[path.attribute] = values


def _change_some(
    values: Sequence[dict[str, Any]], verb: str, path: _Path, value: Any
) -> list[dict[str, Any]]:
    """Changes the values that match the path's condition, or with none all."""
    condition, changed, num_found = path.condition, list[dict[str, Any]](), 0
    new = {path.part: value} if path.part is not None else value
    if verb != "remove" and not isinstance(new, Mapping):
        raise InvalidScim(f"the value for {path.attribute} must be an object", "invalidValue")
    for one in values:
        if condition is not None and not _fits(condition, one):
            changed.append(one)
            continue
        num_found += 1
        if verb != "remove":
            changed.append(one | new)
        elif path.part is not None and path.part != "value":
            changed.append({name: inner for name, inner in one.items() if name != path.part})
    if num_found or verb == "remove":
        return changed
    return [*changed, _created(condition, new)]


def _created(condition: Filter | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the value that `emails[type eq "work"].value` means where there is none yet."""
    match condition:
        case None:
            return dict(new)
        case Comparison(attribute, "eq", value):
            return {_PARTS.get(attribute, attribute): value, **new}
        case _:
            raise InvalidScim("no value matches the filter of the path", "noTarget")


def _fits(condition: Filter, value: Mapping[str, Any]) -> bool:
    try:
        return matches(condition, value)
    except InvalidFilter as error:
        raise InvalidScim(str(error), "invalidFilter") from error


def _objects(attribute: str, value: Any) -> list[dict[str, Any]]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(one, Mapping) and isinstance(one.get("value"), str) for one in listed):
        raise InvalidScim(f'{attribute} must be objects with "value"', "invalidValue")
    return [dict(one) for one in listed]
