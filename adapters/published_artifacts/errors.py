"""Defines why a packed adapter could not be fetched. Their messages name no path of this host."""

from __future__ import annotations

from typing import ClassVar

from adapters.errors import AdapterError


class ArtifactNotFetched(AdapterError):
    """Base of these errors."""

    cause: ClassVar[str]
    """In metrics."""


class ArtifactNotPublished(ArtifactNotFetched):
    cause = "missing"

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"the object store has no packed adapter {digest}: publish it with `rootstock adapter publish`"
        )


class DamagedArtifact(ArtifactNotFetched):
    """The published object is not what its digest says."""

    cause = "damaged"

    def __init__(self, digest: str, found: str) -> None:
        super().__init__(
            f"the object store's packed adapter {digest} has the SHA-256 {found or 'of nothing'}: delete the "
            "object, then publish it with `rootstock adapter publish`"
        )


class StoreUnavailable(ArtifactNotFetched):
    cause = "unavailable"

    def __init__(self, digest: str) -> None:
        super().__init__(f"the object store, which has packed adapter {digest}, is unavailable: retry later")


class NoRoomForArtifact(ArtifactNotFetched):
    cause = "no_room"

    def __init__(self, digest: str, needed: int, room: int) -> None:
        super().__init__(
            f"packed adapter {digest} needs {needed} bytes and the engine's cache has room for {room}: raise "
            "ROOTSTOCK_ADAPTERS_CACHE_BYTES, or free disk space"
        )


class DiskFailed(ArtifactNotFetched):
    cause = "disk"

    def __init__(self, digest: str, reason: str) -> None:
        super().__init__(f"packed adapter {digest} cannot be written to the engine's disk: {reason}")
