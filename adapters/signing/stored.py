"""Compares the stored files of a version with its signature: rows, objects, and what engines read."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from adapters.models import AdapterVersion
from adapters.object_keys import artifact_key
from adapters.signing.models import AdapterSignature
from adapters.signing.signer import SignedFiles
from adapters.storage import DigestMismatch, ObjectNotFound, ObjectStore
from engine.lora.artifact import artifact_path
from engine.lora.signatures import signature_path, verify_signed
from engine.signing import bundle, folder
from engine.signing.bundle import Verified
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys


def verify_row(row: AdapterVersion, signature: AdapterSignature, keys: TrustedKeys) -> Verified:
    """Verifies a signature against its version's row, without reading a file. Raises SignatureError.

    A version without any source has lost all of them to the period of its organization, and goes on serving:
    that they were signed is no difference.
    """
    verified = bundle.verify_own(signature.bundle.encode(), keys)
    if verified.key.id != signature.key_id:
        raise SignatureError("key_id", f"{signature.key_id[:80]!r} is not the key of the signature")
    expected = SignedFiles.of_version(row).digests
    for path, digest in expected.items():
        folder.check_digest(verified, path, digest)
    if row.digest is not None:
        folder.check_packed(verified, row.digest)
    for path in verified.digests.keys() - expected.keys() - {folder.REPORT}:
        if row.sources or not folder.is_source(path):
            raise SignatureError(path, "it was signed, and the version does not have it")
    if (folder.REPORT in verified.digests) != (signature.report_key is not None):
        raise SignatureError(folder.REPORT, "the version and its signature differ in whether there is one")
    return verified


def signs_deleted_sources(row: AdapterVersion, verified: Verified) -> bool:
    """Returns whether a signature covers sources that an organization's period has deleted since."""
    return not row.sources and any(folder.is_source(path) for path in verified.digests)


class StoredVersions:
    """Reads what is stored of versions, and compares it with their signatures."""

    def __init__(self, store: ObjectStore, artifacts_dir: Path | None, keys: TrustedKeys) -> None:
        """`artifacts_dir`: where engines read packed adapters; None: only objects are compared."""
        self._store = store
        self._artifacts_dir = artifacts_dir
        self._keys = keys

    async def check(self, row: AdapterVersion, signature: AdapterSignature) -> Verified:
        """Compares every stored file, to the last bit; returns what is signed. Raises SignatureError naming
        the first that differs; StorageUnavailable, OSError.
        """
        verified = verify_row(row, signature, self._keys)
        for name, source in row.sources.items():
            await self._check_object(verified, folder.source(name), source["key"])
        for dtype in row.artifacts:
            key = artifact_key(row.tenant_id, row.adapter_id, row.version, dtype)
            await self._check_object(verified, folder.packed(dtype), key)
        if signature.report_key is not None:
            await self._check_object(verified, folder.REPORT, signature.report_key)
        if self._artifacts_dir is not None:
            for digest in SignedFiles.of_version(row).artifacts:
                await asyncio.to_thread(self._check_artifact, self._artifacts_dir, digest, row.base_digest)
        return verified

    async def lacks_signature(self, row: AdapterVersion) -> bool:
        """Returns whether engines find a packed adapter of the version without a signature beside it."""
        return await asyncio.to_thread(self._lacks_signature, row)

    def _lacks_signature(self, row: AdapterVersion) -> bool:
        folder = self._artifacts_dir
        return folder is not None and any(
            artifact_path(folder, digest).exists() and not signature_path(folder, digest).exists()
            for digest in SignedFiles.of_version(row).artifacts
        )

    async def _check_object(self, verified: Verified, path: str, key: str) -> None:
        digest = hashlib.sha256()
        try:
            async for piece in self._store.get(key):
                digest.update(piece)
        except ObjectNotFound:
            raise SignatureError(path, "the stored file is missing") from None
        except DigestMismatch as error:
            reason = f"the stored file has the SHA-256 {error.found or 'of nothing'}"
            raise SignatureError(path, reason) from None
        folder.check_digest(verified, path, digest.hexdigest())

    def _check_artifact(self, directory: Path, digest: str, base_digest: str) -> None:
        path = artifact_path(directory, digest)
        try:
            found = folder.file_sha256(path)
        except FileNotFoundError:
            return  # it is restored when it is needed
        if found != digest:
            raise SignatureError(f"packed/{path.name}", f"the engines' copy has the SHA-256 {found}")
        try:
            raw = signature_path(directory, digest).read_bytes()
        except FileNotFoundError:
            return  # see `lacks_signature`
        verify_signed(raw, digest, self._keys, base_digest)
