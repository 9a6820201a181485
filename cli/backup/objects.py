"""Copies objects and packed adapters into a backup, and back into a store.

Objects are copied twice around the database's snapshot: what a row of the snapshot names was stored before
the row, and may be deleted right after the snapshot. The first copy has what is deleted later, the second
what was stored since.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore, StoredObject
from cli.backup.archive import ARTIFACTS, OBJECTS, Backup, BackupWriter
from cli.backup.errors import TargetNotEmpty
from engine.lora.artifact import SUFFIX
from engine.lora.draft_adapters import NOTE_SUFFIX
from engine.lora.signatures import SIGNATURE_SUFFIX
from telemetry.tasks import run_together

BASES = "bases/"
"""Published bases (`adapters.published_bases`)."""
_AT_ONCE = 8
_READ = 1 << 20
OnBytes = Callable[[int], None]
"""Called with the number of bytes that were copied."""


@dataclass
class ObjectCopies:
    """The copies of a store's objects in a backup."""

    store: ObjectStore
    writer: BackupWriter
    with_bases: bool
    on_bytes: OnBytes
    damaged: dict[str, str] = field(default_factory=dict)
    """Why objects could not be copied, by key."""
    left_out: set[str] = field(default_factory=set)
    """Published bases that were not copied."""
    _seen: dict[str, StoredObject] = field(default_factory=dict)

    async def copy_new(self) -> None:
        """Copies all objects that are new or changed since the last call. Raises StorageUnavailable."""
        waiting: list[StoredObject] = []
        async for stored in self.store.list(""):
            if stored.key.startswith(BASES) and not self.with_bases:
                self.left_out.add(stored.key)
            elif self._seen.get(stored.key) != stored:
                waiting.append(stored)
        queue = iter(waiting)

        async def copy_some() -> None:
            for stored in queue:
                if await self._copy(stored.key):
                    self._seen[stored.key] = stored

        await run_together(*(copy_some() for _ in range(_AT_ONCE)))

    async def _copy(self, key: str) -> bool:
        try:
            with self.writer.writing(f"{OBJECTS}{key}") as file:
                async for piece in self.store.get(key):
                    file.write(piece)
                    self.on_bytes(len(piece))
        except ObjectNotFound:  # deleted since it was listed
            return False
        except DigestMismatch as error:
            self.damaged[key] = str(error)
            return False
        self.damaged.pop(key, None)
        return True


def copy_artifacts(folder: Path, writer: BackupWriter, on_bytes: OnBytes) -> Iterator[str]:
    """Copies packed adapters, their signatures and the notes of their draft adapters, that the backup does
    not have yet; yields the path of each. One that is deleted meanwhile is left out.
    """
    suffixes = (SUFFIX, SIGNATURE_SUFFIX, NOTE_SUFFIX)
    for path in sorted(path for suffix in suffixes for path in folder.rglob(f"*{suffix}")):
        name = f"{ARTIFACTS}{path.relative_to(folder).as_posix()}"
        if name in writer.files:
            continue
        try:
            source = path.open("rb")
        except FileNotFoundError:
            continue
        with source, writer.writing(name) as file:
            while data := source.read(_READ):
                file.write(data)
                on_bytes(len(data))
        yield name


async def assert_empty(store: ObjectStore, place: str) -> None:
    """Raises TargetNotEmpty, StorageUnavailable."""
    async for stored in store.list(""):
        raise TargetNotEmpty(place, f"it has {stored.key}")


async def restore_objects(backup: Backup, store: ObjectStore, on_bytes: OnBytes) -> int:
    """Stores every object of the backup; returns how many. Raises DamagedBackup, StorageUnavailable."""
    names = iter([name for name in backup.manifest.files if name.startswith(OBJECTS)])
    num_restored = 0

    async def restore_some() -> None:
        nonlocal num_restored
        for name in names:
            expected = backup.manifest.files[name].sha256
            await store.put(name.removeprefix(OBJECTS), _pieces(backup, name, on_bytes), sha256=expected)
            num_restored += 1

    await run_together(*(restore_some() for _ in range(_AT_ONCE)))
    return num_restored


async def _pieces(backup: Backup, name: str, on_bytes: OnBytes) -> AsyncIterator[bytes]:
    for chunk in backup.read(name):
        yield chunk
        on_bytes(len(chunk))
        await asyncio.sleep(0)


def restore_artifacts(backup: Backup, folder: Path, on_bytes: OnBytes) -> int:
    """Writes every packed adapter below `folder`; returns how many. Raises DamagedBackup, OSError."""
    names = [name for name in backup.manifest.files if name.startswith(ARTIFACTS)]
    for name in names:
        target = folder / name.removeprefix(ARTIFACTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.restoring")
        with partial.open("wb") as file:
            for chunk in backup.read(name):
                file.write(chunk)
                on_bytes(len(chunk))
        partial.replace(target)
    return len(names)
