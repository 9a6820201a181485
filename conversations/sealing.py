"""Encrypts stored prompts and answers, so that a copy of the database alone reveals none.

AES-256-GCM under a key derived from the server's secret. Tenant, table and row are authenticated, so a
ciphertext cannot be moved to another row.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from tenants.identities.sealing import RotatingSealer
from tenants.key_secrets import KeySecrets

PURPOSE = "stored responses and conversations"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class ContentSealer:
    """Encrypts JSON values of stored rows, compressed."""

    def __init__(self, secret: str | KeySecrets) -> None:
        self._sealer = RotatingSealer(secret, PURPOSE)

    def seal(self, value: Any, tenant_id: str, row: str) -> bytes:
        """`row`: names the column and the row, such as `response.output resp_...`."""
        return self.seal_bytes(_encode(value), tenant_id, row)

    def open(self, sealed: bytes, tenant_id: str, row: str) -> Any:
        """Returns the value. Raises ValueError if it was encrypted for another row or under another
        secret.
        """
        return _decode(self.open_bytes(sealed, tenant_id, row))

    def seal_bytes(self, content: bytes, tenant_id: str, row: str) -> bytes:
        return self._sealer.seal(zlib.compress(content, 1), f"{tenant_id} {row}")

    def open_bytes(self, sealed: bytes, tenant_id: str, row: str) -> bytes:
        return zlib.decompress(self._sealer.open(sealed, f"{tenant_id} {row}"))
