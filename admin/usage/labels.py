"""Resolves ids in usage records to names and links: keys, members, projects and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from adapters.catalogue import AdapterCatalogue
from tenants.object_names import CALIBRATION_KEY, NamedObject
from tenants.roles import Right

TIERS = {"priority": "Priority", "default": "Default", "flex": "Flex"}
_NO_VALUE = {
    "project": "No project",
    "user": "–",
    "key": "No key",
    "model": "Unknown model",
    "adapter": "Base model",
    "tier": "No service tier",
}
_DELETED = {
    "project": "Deleted project",
    "user": "Deleted member",
    "key": "Deleted key",
    "adapter": "Deleted adapter",
}

May = Callable[[Right], bool]


@dataclass(frozen=True, slots=True)
class Label:
    text: str
    detail: str = ""
    """Shown beside it, smaller."""
    path: str = ""
    """Of its own page; empty where there is none that the user may see."""


class Labels:
    """Names and links of the ids that were looked up."""

    def __init__(
        self, names: Mapping[str, NamedObject], adapters: Mapping[str, tuple[str, bool]], may: May
    ) -> None:
        self._names = names
        self._adapters = adapters
        self._may = may

    def of(self, dimension: str, value: str) -> Label:
        """`dimension` is one of `query.DIMENSIONS`, by its id."""
        if not value:
            return Label(_NO_VALUE[dimension])
        if dimension == "model":
            return Label(value)
        if dimension == "tier":
            return Label(TIERS.get(value, value))
        if dimension == "adapter":
            return self._adapter(value)
        if value == CALIBRATION_KEY:
            return Label("Calibration")
        named = self._names.get(value)
        return Label(_DELETED[dimension], value) if named is None else self._named(dimension, value, named)

    def is_deleted(self, key_id: str) -> bool:
        """Whether there is no key, or person in place of one, with this id."""
        return key_id not in self._names and key_id not in ("", CALIBRATION_KEY)

    def _adapter(self, id: str) -> Label:
        found = self._adapters.get(id)
        if found is None:
            return Label(_DELETED["adapter"], id)
        name, is_gone = found
        if is_gone:
            return Label(name, "deleted")
        return Label(name, "", f"/adapters/{id}" if self._may("adapters.read") else "")

    def _named(self, dimension: str, id: str, named: NamedObject) -> Label:
        if named.kind == "key":
            path = f"/keys/{id}" if self._may("keys.read") else ""
            return Label(named.name, "revoked" if named.is_gone else "", path)
        if named.kind == "user":
            # Requests of the playground and of batches created here have no key, but the member's id.
            detail = "removed" if named.is_gone else "console" if dimension == "key" else ""
            path = f"/members/{id}" if self._may("members.write") and not named.is_gone else ""
            return Label(named.name, detail, path)
        if named.kind == "service_account":
            return Label(named.name, "deleted service account" if named.is_gone else "service account")
        path = f"/projects/{id}" if self._may("projects.read") and not named.is_gone else ""
        return Label(named.name, "archived" if named.is_gone else "", path)


class LabelLookup:
    """Looks up the names of many ids at once."""

    def __init__(self, catalogue: AdapterCatalogue) -> None:
        self._catalogue = catalogue

    async def of(self, tenant_id: str, ids: Iterable[tuple[str, str]], may: May) -> Labels:
        """`ids` are pairs of a dimension's id and a value of it. Raises DatabaseUnavailable."""
        named, adapters = set(), set()
        for dimension, value in ids:
            if value and dimension == "adapter":
                adapters.add(value)
            elif value and dimension in ("project", "user", "key"):
                named.add(value)
        called, names = await self._catalogue.names(tenant_id, adapters, named)
        return Labels(names, called, may)
