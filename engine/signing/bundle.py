"""Signs a statement into a Sigstore bundle with a DSSE envelope, and verifies bundles: the file `model.sig`.

Format: https://github.com/secure-systems-lab/dsse and https://docs.sigstore.dev/about/bundle/, with the
public key's id in place of a certificate, as `model_signing sign key` writes it.

What the platform signs has one spelling: `verify_own` refuses any other, so that no bit of a bundle, also of
those that no signature covers, can differ.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec

from engine.signing.errors import SignatureError
from engine.signing.keys import SigningKey, TrustedKeys, VerifyingKey
from engine.signing.statement import decode_statement

MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_BUNDLE = 1 << 20
"""Bytes of a bundle that is read."""


class _PublicKey(msgspec.Struct):
    hint: str | None = None


class _Material(msgspec.Struct, rename={"public_key": "publicKey", "tlog_entries": "tlogEntries"}):
    public_key: _PublicKey | None = None
    tlog_entries: list[msgspec.Raw] = []


class _Signature(msgspec.Struct):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, rename={"payload_type": "payloadType"}):
    payload: str
    payload_type: str
    signatures: list[_Signature]


class _Bundle(
    msgspec.Struct,
    rename={
        "media_type": "mediaType",
        "verification_material": "verificationMaterial",
        "dsse_envelope": "dsseEnvelope",
    },
):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


_decoder = msgspec.json.Decoder(_Bundle)


@dataclass(frozen=True, slots=True)
class Verified:
    """What a signature that holds says."""

    key: VerifyingKey
    digests: dict[str, str]
    """SHA-256 of each signed file, by its path in the model's folder."""


def sign(key: SigningKey, payload: bytes) -> bytes:
    """Returns the bundle of a statement."""
    return msgspec.json.encode(_bundle(key.public.id, payload, key.sign(_pae(payload))))


def verify(raw: bytes, keys: TrustedKeys) -> Verified:
    """Verifies a bundle of any maker. Raises SignatureError naming the field."""
    bundle = _decode(raw)
    material, envelope = bundle.verification_material, bundle.dsse_envelope
    if bundle.media_type != MEDIA_TYPE:
        raise SignatureError("mediaType", f"{bundle.media_type[:80]!r}, expected {MEDIA_TYPE}")
    if material.public_key is None:
        raise SignatureError(
            "verificationMaterial.publicKey", "it is missing: sign with a key (`model_signing sign key`)"
        )
    if envelope.payload_type != PAYLOAD_TYPE:
        raise SignatureError(
            "dsseEnvelope.payloadType", f"{envelope.payload_type[:80]!r}, expected {PAYLOAD_TYPE}"
        )
    if len(envelope.signatures) != 1:
        raise SignatureError("dsseEnvelope.signatures", f"{len(envelope.signatures)} of them, expected one")
    payload = _base64("dsseEnvelope.payload", envelope.payload)
    signature = _base64("dsseEnvelope.signatures[0].sig", envelope.signatures[0].sig)
    hint = material.public_key.hint
    named = keys.find(hint) if hint else None
    if hint and named is None:
        raise SignatureError(
            "verificationMaterial.publicKey.hint", f"the key {hint[:80]!r} is none that is accepted"
        )
    message = _pae(payload)
    for key in keys if named is None else (named,):
        if key.holds(signature, message):
            return Verified(key, decode_statement(payload))
    raise SignatureError("dsseEnvelope.signatures[0].sig", "it is not its key's signature of the statement")


def verify_own(raw: bytes, keys: TrustedKeys) -> Verified:
    """Verifies a bundle that the platform made, to the last bit. Raises SignatureError."""
    verified = verify(raw, keys)
    envelope = _decode(raw).dsse_envelope
    payload, signature = base64.b64decode(envelope.payload), base64.b64decode(envelope.signatures[0].sig)
    if raw != msgspec.json.encode(_bundle(verified.key.id, payload, signature)):
        raise SignatureError("bundle", "it is not spelled as the platform spells it: a byte has changed")
    return verified


def key_of(raw: bytes) -> str | None:
    """Returns the id of the key that a bundle says it was made with, unverified; None if it is none."""
    try:
        material = _decode(raw).verification_material
    except SignatureError:
        return None
    return None if material.public_key is None else material.public_key.hint


def _bundle(key_id: str, payload: bytes, signature: bytes) -> _Bundle:
    envelope = _Envelope(_text(payload), PAYLOAD_TYPE, [_Signature(_text(signature))])
    return _Bundle(MEDIA_TYPE, _Material(_PublicKey(key_id)), envelope)


def _decode(raw: bytes) -> _Bundle:
    if len(raw) > MAX_BUNDLE:
        raise SignatureError("bundle", f"{len(raw)} bytes, at most {MAX_BUNDLE} are read")
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SignatureError(
            "bundle", f"it is not a Sigstore bundle with a DSSE envelope: {error}"
        ) from error


def _pae(payload: bytes) -> bytes:
    """Returns what is signed: DSSE's encoding of payload and type before authentication."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _base64(field: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SignatureError(field, "it is not Base64") from error


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
