"""Defines what an import knows of the files at its source, and chooses those that an upload would have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from adapters.imports.client import SourceRequest
from adapters.jobs.errors import JobFailed
from adapters.object_keys import CONFIG_FILE, WEIGHTS_FILE

PICKLED = "adapter_model.bin"
_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as its source describes it. Digests are hex; None where the source states none."""

    name: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None
    """Git's object id of the content."""
    etag: str | None = None
    """The object's version in a bucket."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """The files of an import, and the commit that the revision was when they were looked up."""

    files: tuple[RemoteFile, ...]
    commit: str | None = None

    @property
    def size(self) -> int:
        """Returns the bytes of all files."""
        return sum(file.size for file in self.files)

    def stored(self) -> dict[str, Any]:
        """Returns it in JSON values, as the job stores it."""
        return {"commit": self.commit, "files": [asdict(file) for file in self.files]}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Pinned:
        return cls(tuple(RemoteFile(**file) for file in stored["files"]), stored["commit"])


class Remote(Protocol):
    """A source whose files are looked up and downloaded."""

    async def pin(self) -> Pinned:
        """Looks the files up. Raises JobFailed for what a retry would not change, EndpointUnreachable."""
        ...

    def request(self, file: RemoteFile, pinned: Pinned) -> SourceRequest:
        """Returns the request that downloads a file."""
        ...

    def refusal(self, status: int, headers: Mapping[str, str], name: str) -> JobFailed:
        """Returns the error for a response that a retry would not change. `name`: the file, or `source`."""
        ...


def is_pickle(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in _PICKLES


def check_present(found: Iterable[str], pickles: Iterable[str], where: str) -> None:
    """Raises JobFailed if a file of an adapter is missing; `where` names the source."""
    names, pickled = set(found), sorted(pickles)
    if WEIGHTS_FILE not in names and pickled:
        raise JobFailed(
            "pickle_only",
            f"{where} has its weights as {pickled[0]} only. Pickle files can run code and are never opened: "
            f"save the adapter with safe_serialization=True, which writes {WEIGHTS_FILE}.",
            WEIGHTS_FILE,
        )
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if name not in names:
            raise JobFailed("source_not_found", f"{where} has no {name}, which PEFT saves.", name)
