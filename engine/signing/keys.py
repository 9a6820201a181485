"""Reads and makes the keys of signatures: private keys on P-256, public keys also on P-384 and P-521.

A key's id is the SHA-256 of its public half in PEM, which is what a signature of Model Signing names it by.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_HASHES: dict[str, hashes.HashAlgorithm] = {
    "secp256r1": hashes.SHA256(),
    "secp384r1": hashes.SHA384(),
    "secp521r1": hashes.SHA512(),
}
_BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----[^-]+-----END \1-----\n?")
MAX_PEM = 4096
"""Characters of one public key: those of P-521 have about 270."""


@dataclass(frozen=True)
class VerifyingKey:
    """A public key that signatures are verified with."""

    id: str
    pem: str
    _key: ec.EllipticCurvePublicKey = field(repr=False)

    @classmethod
    def from_pem(cls, pem: str) -> VerifyingKey:
        """Reads one public key. Raises ValueError."""
        key = _load(serialization.load_pem_public_key, pem, "public key")
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
            raise ValueError("it must be a public key on the curve P-256, P-384 or P-521")
        return cls._of(key)

    @classmethod
    def _of(cls, key: ec.EllipticCurvePublicKey) -> VerifyingKey:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        pem = key.public_bytes(serialization.Encoding.PEM, form)
        return cls(hashlib.sha256(pem).hexdigest(), pem.decode(), key)

    @property
    def algorithm(self) -> str:
        """Returns such as `ECDSA P-256`."""
        return f"ECDSA P-{self._key.curve.key_size}"

    def holds(self, signature: bytes, message: bytes) -> bool:
        """Returns whether the DER-encoded ECDSA signature over the message was made by this key's owner."""
        try:
            self._key.verify(signature, message, ec.ECDSA(_HASHES[self._key.curve.name]))
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key on P-256."""

    public: VerifyingKey
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls) -> SigningKey:
        return cls._of(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: str) -> SigningKey:
        """Reads one private key without a password. Raises ValueError."""
        key = _load(lambda data: serialization.load_pem_private_key(data, None), pem, "private key")
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise ValueError("it must be a private key on the curve P-256")
        return cls._of(key)

    @classmethod
    def _of(cls, key: ec.EllipticCurvePrivateKey) -> SigningKey:
        return cls(VerifyingKey._of(key.public_key()), key)

    @property
    def pem(self) -> str:
        """Returns the private key, in PKCS 8 without a password."""
        form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.PEM, form, plain).decode()

    def sign(self, message: bytes) -> bytes:
        """Returns the DER-encoded ECDSA signature over the message."""
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))


class TrustedKeys:
    """The public keys whose signatures are accepted, by id, in a fixed order."""

    def __init__(self, keys: Iterable[VerifyingKey]) -> None:
        self._keys = {key.id: key for key in keys}

    @classmethod
    def from_pem(cls, text: str) -> TrustedKeys:
        """Reads public keys, one PEM block after the other. Raises ValueError without any."""
        keys = [VerifyingKey.from_pem(block) for block in pem_blocks(text)]
        if not keys:
            raise ValueError("there is no public key in PEM")
        return cls(keys)

    @classmethod
    def from_setting(cls, value: str) -> TrustedKeys:
        """Reads what `setting` returns; nothing from an empty value. Raises ValueError."""
        bodies = [body.strip() for body in value.split(",")] if value else []
        return cls(
            VerifyingKey.from_pem(f"-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n")
            for body in bodies
        )

    @property
    def setting(self) -> str:
        """Returns the keys on one line: the Base64 of each, separated by commas."""
        return ",".join("".join(key.pem.splitlines()[1:-1]) for key in self)

    @property
    def pem(self) -> str:
        return "".join(key.pem for key in self)

    def find(self, key_id: str) -> VerifyingKey | None:
        return self._keys.get(key_id)

    def __iter__(self) -> Iterator[VerifyingKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)


NO_KEYS = TrustedKeys(())


def pem_blocks(text: str) -> list[str]:
    """Returns the PEM blocks of a text."""
    return [match.group(0) for match in _BLOCK.finditer(text)]


def _load(load: Any, pem: str, what: str) -> Any:
    try:
        return load(pem.encode("ascii"))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"it is not a {what} in PEM") from error
