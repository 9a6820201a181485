"""Defines the errors of published bases. Their messages are written for operators."""

from __future__ import annotations

from adapters.errors import AdapterError


class BaseError(AdapterError):
    """Base of the errors of published bases."""


class InvalidBase(BaseError):
    """The folder or the manifest does not describe a base that can be served."""


class BaseNotPublished(BaseError):
    def __init__(self, digest: str) -> None:
        super().__init__(
            f"the object store has no base {digest}: publish it with `rootstock base publish DIRECTORY`"
        )


class DamagedBase(BaseError):
    """A file of the published base differs from its manifest, or is missing."""

    def __init__(self, name: str, expected: str, found: str) -> None:
        super().__init__(
            f"{name} of the published base has the SHA-256 {found}, not {expected}: publish the base again "
            "with `rootstock base publish --verify DIRECTORY`"
        )
        self.name = name


class NoRoomForBase(BaseError):
    def __init__(self, folder: object, needed: int, room: int) -> None:
        super().__init__(
            f"{folder} has room for {room} bytes and the base needs {needed}: free disk space, or raise "
            "ROOTSTOCK_BASE_CACHE_BYTES"
        )
