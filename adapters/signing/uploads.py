"""Verifies the signature that an upload brings (`model.sig`) with the keys that its organization registered.

A signature by a key that is not registered is kept and counts as none, unless the organization accepts signed
adapters only. A signature by a registered key must hold, and cover every file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adapters.files.models import StoredFile
from adapters.inspection import InspectionRefused
from adapters.object_keys import SOURCE_FILES
from adapters.storage import ObjectStore
from db.session import Database
from engine.signing.bundle import MAX_BUNDLE, Verified, key_of, verify
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys, VerifyingKey
from engine.signing.statement import SIGNATURE_FILE
from tenants.repository import TenantDirectory
from tenants.signing_keys.models import TenantSigningKey
from tenants.signing_keys.repository import SigningKeyRepository

REMEDY = (
    "sign the folder with `model_signing sign key`, and give its model.sig as a third file; the organization "
    "accepts only signed adapters"
)


@dataclass(frozen=True, slots=True)
class _Policy:
    keys: dict[str, TenantSigningKey]
    """By key id."""
    signed_only: bool

    @property
    def trusted(self) -> TrustedKeys:
        return TrustedKeys(VerifyingKey.from_pem(row.pem) for row in self.keys.values())


class UploadSignatures:
    """Signatures of uploads of all organizations."""

    def __init__(self, database: Database, store: ObjectStore) -> None:
        self._database = database
        self._store = store

    async def check(self, tenant_id: str, files: Mapping[str, StoredFile]) -> dict[str, Any] | None:
        """Returns the registered key that files were signed with: `id`, `name` and `key_id`; None for files
        without such a signature. `files`: by the name in an adapter's folder.

        Raises InspectionRefused naming the file, StorageUnavailable, DatabaseUnavailable.
        """
        async with self._database.read(tenant_id) as session:
            tenant = await TenantDirectory(session).tenant(tenant_id)
            rows = await SigningKeyRepository(session, tenant_id).list()
        policy = _Policy(
            {row.key_id: row for row in rows}, tenant is not None and bool(tenant.signed_adapters_only)
        )
        signature = files.get(SIGNATURE_FILE)
        if signature is None:
            if policy.signed_only:
                raise InspectionRefused(SIGNATURE_FILE, f"the file is missing: {REMEDY}")
            return None
        if not policy.keys and not policy.signed_only:
            return None
        raw = await self._read(signature)
        is_ours = key_of(raw) in policy.keys
        try:
            verified = verify(raw, policy.trusted)
            _check_files(verified, files)
        except SignatureError as error:
            if not is_ours and not policy.signed_only:
                return None
            raise InspectionRefused(_file_of(error), _reason(error)) from error
        row = policy.keys[verified.key.id]
        return {"id": row.id, "name": row.name, "key_id": row.key_id}

    async def _read(self, signature: StoredFile) -> bytes:
        if signature.size > MAX_BUNDLE:
            raise InspectionRefused(
                SIGNATURE_FILE, f"it has {signature.size} bytes, a signature has at most {MAX_BUNDLE}"
            )
        return b"".join([piece async for piece in self._store.get(signature.object_key)])


def _check_files(verified: Verified, files: Mapping[str, StoredFile]) -> None:
    """Raises SignatureError unless the signature covers the files. Other files that it covers, such as a
    README, are not uploaded.
    """
    for name in SOURCE_FILES:
        file = files[name]
        signed = verified.digests.get(name, verified.digests.get(file.filename))
        if signed is None:
            raise SignatureError(name, "the signature does not cover it")
        if signed != file.sha256:
            raise SignatureError(name, f"its SHA-256 is {file.sha256}, the signature says {signed}")


def _file_of(error: SignatureError) -> str:
    return error.field if error.field in SOURCE_FILES else SIGNATURE_FILE


def _reason(error: SignatureError) -> str:
    return error.reason if error.field in SOURCE_FILES else f"{error.field}: {error.reason}"
