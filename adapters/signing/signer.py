"""Signs versions: states the digests of their files, and puts the signature where engines find it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.models import AdapterVersion
from adapters.published_artifacts.publishing import publish_signature
from adapters.storage import ObjectStore
from engine.lora.signatures import SignedReport, signature_path, verify_signed, write_signature
from engine.signing import bundle, folder
from engine.signing.errors import SignatureError
from engine.signing.keys import SigningKey, TrustedKeys
from engine.signing.statement import encode_statement


@dataclass(frozen=True, slots=True)
class SignedFiles:
    """The files of a version that its signature covers, without the calibration report."""

    name: str
    """Names the version in the statement: `adp_...@3`."""
    base_digest: str
    digests: Mapping[str, str]
    """SHA-256 by path in the version's folder (`engine.signing.folder`)."""
    artifacts: tuple[str, ...]
    """Digests of the packed adapters."""

    @classmethod
    def of(
        cls,
        adapter_id: str,
        version: int,
        base_digest: str,
        sources: Mapping[str, Mapping[str, Any]],
        artifacts: Mapping[str | None, str],
    ) -> SignedFiles:
        """`sources`: by file name, its `sha256`; `artifacts`: by dtype, the digest."""
        digests = {folder.source(name): source["sha256"] for name, source in sources.items()}
        digests |= {folder.packed(dtype): digest for dtype, digest in artifacts.items()}
        digests[folder.BASE] = folder.sha256(folder.base_document(base_digest))
        return cls(f"{adapter_id}@{version}", base_digest, digests, tuple(artifacts.values()))

    @classmethod
    def of_version(cls, row: AdapterVersion) -> SignedFiles:
        """Returns those of a packed version."""
        artifacts: dict[str | None, str] = {dtype: one["digest"] for dtype, one in row.artifacts.items()}
        if row.digest is not None and not artifacts:
            artifacts[row.dtype] = row.digest  # registered by the operator
        return cls.of(row.adapter_id, row.version, row.base_digest, row.sources, artifacts)

    def with_report(self, report: bytes | None) -> dict[str, str]:
        """Returns all digests that are signed."""
        return dict(self.digests) | ({} if report is None else {folder.REPORT: folder.sha256(report)})


@dataclass(frozen=True, slots=True)
class MadeSignature:
    """A new signature of a version."""

    key_id: str
    bundle: str
    report_key: str | None
    """The object of the report that it covers."""


class VersionSigner:
    """Signs with the platform's key, the first of `keys`; signatures of all are accepted."""

    def __init__(self, keys: Sequence[SigningKey], store: ObjectStore, artifacts_dir: Path) -> None:
        assert keys, "a signer has a key"
        self._key = keys[0]
        self.trusted = TrustedKeys(key.public for key in keys)
        self._store = store
        self._artifacts_dir = artifacts_dir

    @property
    def key_id(self) -> str:
        """Id of the key that is used."""
        return self._key.public.id

    async def sign(
        self, files: SignedFiles, report: bytes | None = None, report_key: str | None = None
    ) -> MadeSignature:
        """Signs a version, and writes the signature beside each of its packed adapters, here and in the
        store. Raises StorageUnavailable, OSError.
        """
        statement = encode_statement(files.name, files.with_report(report))
        signed = bundle.sign(self._key, statement).decode()
        await self.place(files, signed, report)
        return MadeSignature(self.key_id, signed, report_key)

    async def place(self, files: SignedFiles, signed: str, report: bytes | None) -> None:
        """Puts a signature where engines find it. Raises StorageUnavailable, OSError."""
        content = SignedReport(signed, None if report is None else report.decode()).encode()
        for digest in files.artifacts:
            await asyncio.to_thread(write_signature, self._artifacts_dir, digest, content)
            await publish_signature(self._store, digest, content)

    async def ensure(self, files: SignedFiles) -> None:
        """Signs a version without a report unless engines find a signature of each packed adapter already: so
        that an engine which requires signatures can measure it. Raises StorageUnavailable, OSError.
        """
        for digest in files.artifacts:
            if not await asyncio.to_thread(self._is_signed, files, digest):
                await self.sign(files)
                return

    def _is_signed(self, files: SignedFiles, digest: str) -> bool:
        try:
            raw = signature_path(self._artifacts_dir, digest).read_bytes()
            verify_signed(raw, digest, self.trusted, files.base_digest)
        except (FileNotFoundError, SignatureError):
            return False
        return True
