"""Verifies the signature of a packed adapter before its bytes go to the device.

Beside `ab/DIGEST.rsa` lies `ab/DIGEST.sig`: the platform's signature over all files of a version with these
weights, and the calibration report that it covers, in one canonical JSON document. The engine verifies the
signature, that it covers this digest, the report, and the engine's own base; reading the weights verifies
them against the digest, so nothing is read twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal

import msgspec

from engine.files import replacing
from engine.gauges import RefusedAdapter
from engine.lora.artifact import READ_BY_ALL, SUFFIX, ArtifactError, artifact_path
from engine.signing import folder
from engine.signing.bundle import Verified, verify_own
from engine.signing.errors import SignatureError
from engine.signing.keys import TrustedKeys

SIGNATURE_SUFFIX = ".sig"
MAX_SIGNED = 64 << 20
"""Bytes of a signature with its report that are read."""
MAX_REFUSALS = 64
"""Adapters whose refusal is remembered, for the operator's view."""

Cause = Literal["unsigned", "signature", "file"]


class SignedReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file beside a packed adapter."""

    bundle: str
    report: str | None
    """The calibration report, as stored; None before the version is measured."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> SignedReport:
        """Raises SignatureError for anything but what `encode` returns."""
        try:
            decoded = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SignatureError("bundle", f"the file is damaged: {error}") from error
        if decoded.encode() != raw:
            raise SignatureError("bundle", "the file is not in canonical form")
        return decoded


_decoder = msgspec.json.Decoder(SignedReport)


@dataclass(slots=True)
class SignatureCounters:
    """Monotonic since the start of the engine."""

    verified: int = 0
    unsigned: int = 0
    """Adapters without a signature that were loaded nevertheless."""
    refused: dict[str, int] = field(default_factory=dict)
    """By cause."""


def signature_path(directory: Path, digest: str) -> Path:
    """Returns the path of a packed adapter's signature."""
    return artifact_path(directory, digest).with_suffix(SIGNATURE_SUFFIX)


def write_signature(directory: Path, digest: str, content: bytes) -> None:
    """Writes a packed adapter's signature atomically; it replaces an earlier one."""
    path = signature_path(directory, digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, READ_BY_ALL) as file:
        file.write(content)


def verify_signed(raw: bytes, digest: str, keys: TrustedKeys, base_digest: str | None) -> Verified:
    """Verifies the content of a signature's file against the packed adapter's digest and the base's. Raises
    SignatureError.
    """
    signed = SignedReport.decode(raw)
    verified = verify_own(signed.bundle.encode(), keys)
    folder.check_packed(verified, digest)
    if base_digest is not None:
        folder.check_content(verified, folder.BASE, folder.base_document(base_digest))
    if signed.report is not None:
        folder.check_content(verified, folder.REPORT, signed.report.encode())
    elif folder.REPORT in verified.digests:
        raise SignatureError(folder.REPORT, "it was signed and is missing")
    return verified


class AdapterVerifier:
    """Verifies adapters for one engine. `check` may be called from several threads."""

    def __init__(
        self, keys: TrustedKeys, base_digest: str | None, *, requires_signature: bool = False
    ) -> None:
        """`base_digest`: of the engine's base; None where another process compares it."""
        self.counters = SignatureCounters()
        self._keys = keys
        self._base_digest = base_digest
        self._requires_signature = requires_signature
        self._trusted: set[str] = set()
        self._lock = Lock()
        self._refused: OrderedDict[str, RefusedAdapter] = OrderedDict()

    def trust(self, digest: str) -> None:
        """Lets an adapter be loaded without a signature: the operator configured it, as the base."""
        self._trusted.add(digest)

    def check(self, artifact: Path) -> None:
        """Verifies the signature of the packed adapter at this path. Raises ArtifactError, OSError."""
        digest = artifact.name.removesuffix(SUFFIX)
        if digest in self._trusted:
            return
        try:
            with artifact.with_suffix(SIGNATURE_SUFFIX).open("rb") as opened:
                raw = opened.read(MAX_SIGNED + 1)
        except FileNotFoundError:
            if self._requires_signature:
                reason = "it has none, and this engine loads signed adapters only"
                raise self.refused(digest, "unsigned", ArtifactError("signature", reason)) from None
            self._count_unsigned()
            return
        try:
            if len(raw) > MAX_SIGNED:
                raise SignatureError("bundle", f"larger than {MAX_SIGNED} bytes")
            verify_signed(raw, digest, self._keys, self._base_digest)
        except SignatureError as error:
            wrong = ArtifactError("signature", str(error))
            raise self.refused(digest, "signature", wrong) from error
        with self._lock:
            self.counters.verified += 1
            self._refused.pop(digest, None)

    def refused(self, digest: str, cause: Cause, error: ArtifactError) -> ArtifactError:
        """Counts and remembers that an adapter is refused; returns the error."""
        with self._lock:
            refused = self.counters.refused
            refused[cause] = refused.get(cause, 0) + 1
            self._refused.pop(digest, None)
            self._refused[digest] = RefusedAdapter(digest, str(error))
            if len(self._refused) > MAX_REFUSALS:
                self._refused.popitem(last=False)
        return error

    def refusals(self) -> Sequence[RefusedAdapter]:
        """Returns the adapters that were refused last, and not loaded since."""
        with self._lock:
            return list(self._refused.values())

    def _count_unsigned(self) -> None:
        with self._lock:
            self.counters.unsigned += 1
