"""Defines a published base's manifest: names, sizes and SHA-256 of its files. Its own SHA-256 names the base.

The digest covers every file, the tokenizer too; the engine's base digest, which adapters are packed against,
covers the weights alone.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from adapters.published_bases.errors import InvalidBase

DIGEST = r"^[0-9a-f]{64}$"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class BaseFile(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str


class BaseManifest(msgspec.Struct, frozen=True):
    files: tuple[BaseFile, ...]
    """Sorted by name."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Returns the bytes whose SHA-256 is the base's digest."""
        return msgspec.json.encode(self)


_decoder = msgspec.json.Decoder(BaseManifest)


def digest_of(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()


def decode(encoded: bytes, digest: str) -> BaseManifest:
    """Returns the manifest if its digest is right and its names are safe. Raises InvalidBase."""
    if digest_of(encoded) != digest:
        raise InvalidBase(
            f"the manifest of base {digest} has the SHA-256 {digest_of(encoded)}: publish again"
        )
    try:
        manifest = _decoder.decode(encoded)
    except msgspec.DecodeError as error:
        raise InvalidBase(f"the manifest of base {digest} cannot be read: {error}") from None
    check(manifest)
    return manifest


def check(manifest: BaseManifest) -> None:
    """Raises InvalidBase for names that could leave the folder, for a base without config, and for values
    no file has.
    """
    names = [file.name for file in manifest.files]
    if len(set(names)) != len(names) or "config.json" not in names:
        raise InvalidBase("a base has one config.json, and no name twice: name a Hugging Face folder")
    for file in manifest.files:
        if not _NAME.fullmatch(file.name) or file.size < 0 or not re.fullmatch(DIGEST, file.sha256):
            raise InvalidBase(
                f"{file.name[:200]!r} cannot be a file of a base: use letters, digits, '.', '_' and '-'"
            )


def manifest_key(digest: str) -> str:
    return f"bases/manifests/{digest}"


def file_key(sha256: str) -> str:
    """Returns the object's key: bases that share a file store it once."""
    return f"bases/files/{sha256}"
