"""Writes all files of a signed version into a folder that `model_signing verify key` accepts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from adapters.models import AdapterVersion
from adapters.object_keys import artifact_key
from adapters.signing.models import AdapterSignature
from adapters.signing.signer import SignedFiles
from adapters.signing.stored import verify_row
from adapters.storage import ObjectStore
from engine.lora.artifact import artifact_path
from engine.signing import folder
from engine.signing.keys import TrustedKeys
from engine.signing.statement import SIGNATURE_FILE


async def export_version(
    store: ObjectStore,
    artifacts_dir: Path | None,
    row: AdapterVersion,
    signature: AdapterSignature,
    keys: TrustedKeys,
    target: Path,
) -> None:
    """Writes the version's files, and its `model.sig` last, into a new folder, and verifies them there.

    `artifacts_dir`: the engines' folder, which alone has what an operator registered. Raises SignatureError,
    ObjectNotFound, DigestMismatch, StorageUnavailable, OSError; FileExistsError when the folder exists.
    """
    verified = verify_row(row, signature, keys)
    await asyncio.to_thread(target.mkdir, parents=True)
    objects = {folder.source(name): source["key"] for name, source in row.sources.items()}
    for dtype in row.artifacts:
        objects[folder.packed(dtype)] = artifact_key(row.tenant_id, row.adapter_id, row.version, dtype)
    if signature.report_key is not None:
        objects[folder.REPORT] = signature.report_key
    for name, key in objects.items():
        path = target / name
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        await store.fetch(key, path)
    for name, digest in SignedFiles.of_version(row).digests.items():
        path = target / name
        if name.startswith("packed/") and name not in objects and artifacts_dir is not None:
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(shutil.copyfile, artifact_path(artifacts_dir, digest), path)
    (target / folder.BASE).write_bytes(folder.base_document(row.base_digest))
    (target / SIGNATURE_FILE).write_text(signature.bundle)
    await asyncio.to_thread(folder.check_folder, verified, target)
