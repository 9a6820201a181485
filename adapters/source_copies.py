"""Copies uploaded files to keys of their own for an adapter version, and inspects them before any row names
them.

If the transaction that should name the copies fails, they are removed here, or later by the clean-up
(`deletion`) when this process was killed or cannot know whether the transaction was committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.files.models import StoredFile
from adapters.files.service import FileService
from adapters.inspection.sandbox import Sandbox
from adapters.models import Adapter
from adapters.object_keys import CONFIG_FILE, SOURCE_FILES, WEIGHTS_FILE, source_key
from adapters.signing.uploads import UploadSignatures
from adapters.storage import ObjectStore, StorageUnavailable, StoredObject
from db.base import new_id
from db.errors import DatabaseUnavailable

WHOLE_INSPECTION = 32 << 20
"""Bytes of both files up to which all values are inspected in the request; the job inspects them in
any case.
"""
HEADER_READ = (1 << 20) + 8
"""Bytes of a larger file that contain its header, or show that it has none."""
CALIBRATION_FILE = "calibration.jsonl"


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a version's files."""

    sources: dict[str, dict[str, Any]]
    """By file name; empty while the version still waits for its uploads."""
    calibration: dict[str, Any] | None
    uploader_key: dict[str, Any] | None = None
    """The organization's public key that the files were signed with."""


class SourceCopies:
    """Copies and inspects files for adapters."""

    def __init__(
        self,
        store: ObjectStore,
        files: FileService,
        sandbox: Sandbox,
        signatures: UploadSignatures,
        base_configs: Mapping[str, Path],
    ) -> None:
        """`base_configs`: by base model, the path of its `config.json`."""
        self._store = store
        self._files = files
        self._sandbox = sandbox
        self._signatures = signatures
        self.base_configs = base_configs

    @asynccontextmanager
    async def made(self, adapter: Adapter, files: Mapping[str, StoredFile]) -> AsyncIterator[Copies]:
        """Yields inspected copies of the adapter's files, by name; removes them when the block fails.

        Raises InspectionRefused, FileNotFound, ObjectNotFound, DigestMismatch, StorageUnavailable,
        SandboxUnavailable.
        """
        source_id = new_id("src")
        keys = {name: source_key(adapter.tenant_id, adapter.id, source_id, name) for name in files}
        try:
            made = {name: await self._copy(file, keys[name]) for name, file in files.items()}
            uploader_key = None
            if WEIGHTS_FILE in files:
                uploader_key = await self._signatures.check(adapter.tenant_id, files)
                await self._inspect(files, keys, self.base_configs[adapter.base])
            described = {
                name: {
                    "key": stored.key,
                    "size": stored.size,
                    "sha256": files[name].sha256,
                    "filename": files[name].filename,
                    "file_id": files[name].id,
                }
                for name, stored in made.items()
            }
            calibration = described.pop(CALIBRATION_FILE, None)
            yield Copies(described, calibration, uploader_key)
        except DatabaseUnavailable:
            raise
        except Exception:
            await self._remove(keys.values())
            raise

    async def discard(self, copies: Copies) -> None:
        """Removes copies that no row names after all."""
        kept = [source["key"] for source in copies.sources.values()]
        await self._remove([*kept, *([copies.calibration["key"]] if copies.calibration else [])])

    async def _copy(self, file: StoredFile, key: str) -> StoredObject:
        async with self._files.reading(file):
            return await self._store.copy(file.object_key, key)

    async def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            with contextlib.suppress(StorageUnavailable):  # the clean-up removes it later
                await self._store.delete(key)

    async def _inspect(
        self, files: Mapping[str, StoredFile], keys: Mapping[str, str], base_config: Path
    ) -> None:
        """Inspects small files completely; of large ones the header, which shows everything but the
        values.
        """
        whole = sum(files[name].size for name in SOURCE_FILES) <= WHOLE_INSPECTION
        self._store.scratch.mkdir(parents=True, exist_ok=True)
        weights, config = (self._store.scratch / new_id("look") for _ in SOURCE_FILES)
        try:
            await self._store.fetch(keys[CONFIG_FILE], config, sha256=files[CONFIG_FILE].sha256)
            if whole:
                await self._store.fetch(keys[WEIGHTS_FILE], weights, sha256=files[WEIGHTS_FILE].sha256)
            else:
                with weights.open("wb") as file:
                    async for piece in self._store.get(keys[WEIGHTS_FILE], start=0, length=HEADER_READ):
                        file.write(piece)
                    file.truncate(files[WEIGHTS_FILE].size)  # the rest is a hole that takes no space
            owner = files[WEIGHTS_FILE].tenant_id
            await self._sandbox.inspect(weights, config, base_config, owner=owner, values=whole)
        finally:
            for path in (weights, config):
                path.unlink(missing_ok=True)
