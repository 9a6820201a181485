"""Names the files of an adapter version that the platform signs, as they lie in an exported folder.

| path | content |
|---|---|
| `source/...` | the files that the version was made from, the uploader's `model.sig` among them |
| `packed/TYPE.rsa` | the packed adapters that engines load |
| `base.json` | the digest of the base model that they were packed for |
| `calibration/report.json` | the calibration report, once there is one |
| `model.sig` | the signature over all of these |
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from engine.signing.bundle import Verified
from engine.signing.errors import SignatureError
from engine.signing.statement import SIGNATURE_FILE

BASE = "base.json"
REPORT = "calibration/report.json"


def source(filename: str) -> str:
    return f"source/{filename}"


def is_source(path: str) -> bool:
    """Returns whether a signed path is one that `source` returns."""
    return path.startswith("source/")


def packed(dtype: str | None) -> str:
    """Returns the path of a packed adapter; `dtype` None: of one that the operator registered."""
    return f"packed/{dtype or 'weights'}.rsa"


def base_document(base_digest: str) -> bytes:
    """Returns the content of `base.json`."""
    return msgspec.json.encode({"base_digest": base_digest}) + b"\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_content(verified: Verified, path: str, content: bytes) -> None:
    """Raises SignatureError unless the content is what was signed under this path."""
    check_digest(verified, path, sha256(content))


def check_digest(verified: Verified, path: str, digest: str) -> None:
    """Raises SignatureError unless a file with this SHA-256 was signed under this path."""
    signed = verified.digests.get(path)
    if signed is None:
        raise SignatureError(path, "the signature does not cover it")
    if signed != digest:
        raise SignatureError(path, f"its SHA-256 is {digest}, the signature says {signed}")


def check_packed(verified: Verified, digest: str) -> None:
    """Raises SignatureError unless a packed adapter with this digest was signed."""
    if all(signed != digest for path, signed in verified.digests.items() if path.startswith("packed/")):
        raise SignatureError("packed", f"the signature covers no packed adapter {digest}")


def check_folder(verified: Verified, folder: Path) -> None:
    """Compares every file of a folder with what was signed. Raises SignatureError naming the first file that
    differs, is missing, or was not signed; OSError.
    """
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }
    found.discard(SIGNATURE_FILE)
    for name in sorted(verified.digests.keys() - found):
        raise SignatureError(name, "it was signed and is missing")
    for name in sorted(found):
        path = folder / name
        if path.is_symlink():
            raise SignatureError(name, "it is a symbolic link")
        check_digest(verified, name, file_sha256(path))


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
