"""Defines what a client names a request with, and encrypts it for storage.

AES-256-GCM under a key derived from the server's secret. Tenant and request are authenticated, so that a
ciphertext cannot be moved to another row.
"""

from __future__ import annotations

import msgspec

from tenants.identities.sealing import RotatingSealer
from tenants.key_secrets import KeySecrets

PURPOSE = "metadata of requests"


class RequestMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client named a request with. The service does not interpret it."""

    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RequestMetadata).decode


class MetadataSealer:
    """Encrypts and decrypts the metadata of requests."""

    def __init__(self, secret: str | KeySecrets) -> None:
        self._sealer = RotatingSealer(secret, PURPOSE)

    def seal(self, content: RequestMetadata, tenant_id: str, request_id: str) -> bytes:
        return self._sealer.seal(_encode(content), f"{tenant_id} {request_id}")

    def open(self, sealed: bytes, tenant_id: str, request_id: str) -> RequestMetadata:
        """Raises ValueError if it was encrypted for another request or under another secret."""
        return _decode(self._sealer.open(sealed, f"{tenant_id} {request_id}"))
