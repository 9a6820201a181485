"""Encodes and decodes the in-toto statement of Model Signing 1.0: names and SHA-256 of all files of a model.

Format: https://github.com/sigstore/model-transparency, predicate `https://model_signing/signature/v1.0`. The
subject's digest is the SHA-256 of the files' digests, in the statement's order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from engine.signing.errors import SignatureError

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://model_signing/signature/v1.0"
SIGNATURE_FILE = "model.sig"
"""The name of a signature in a model's folder; it is not among the signed files."""
MAX_RESOURCES = 4096

_SHA256 = re.compile(r"[0-9a-f]{64}")


class _Subject(msgspec.Struct):
    name: str
    digest: dict[str, str]


class _Resource(msgspec.Struct):
    name: str
    algorithm: str
    digest: str


class _Predicate(msgspec.Struct):
    serialization: dict[str, Any]
    resources: list[_Resource]


class _Statement(msgspec.Struct, rename={"type": "_type", "predicate_type": "predicateType"}):
    type: str
    subject: list[_Subject]
    predicate_type: str
    predicate: _Predicate


_decoder = msgspec.json.Decoder(_Statement)


def encode_statement(name: str, digests: Mapping[str, str]) -> bytes:
    """Returns the statement, as JSON, that a model of this name has these files: by path below its folder,
    their SHA-256 in hexadecimal.
    """
    paths = sorted(digests, key=PurePosixPath)
    root = hashlib.sha256(b"".join(bytes.fromhex(digests[path]) for path in paths))
    statement = _Statement(
        type=STATEMENT_TYPE,
        subject=[_Subject(name, {"sha256": root.hexdigest()})],
        predicate_type=PREDICATE_TYPE,
        predicate=_Predicate(
            {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE_FILE],
            },
            [_Resource(path, "sha256", digests[path]) for path in paths],
        ),
    )
    return msgspec.json.encode(statement)


def decode_statement(payload: bytes) -> dict[str, str]:
    """Returns the SHA-256 of each file that a statement names. Raises SignatureError."""
    try:
        statement = _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SignatureError("statement", f"it is not one of in-toto: {error}") from error
    if statement.type != STATEMENT_TYPE:
        raise SignatureError("_type", f"{statement.type[:80]!r}, expected {STATEMENT_TYPE}")
    if statement.predicate_type != PREDICATE_TYPE:
        raise SignatureError("predicateType", f"{statement.predicate_type[:80]!r}, expected {PREDICATE_TYPE}")
    if len(statement.subject) != 1:
        raise SignatureError("subject", f"it has {len(statement.subject)} entries, expected one")
    form = statement.predicate.serialization
    for field, expected in (("method", "files"), ("hash_type", "sha256")):
        if form.get(field) != expected:
            found = str(form.get(field))[:80]
            raise SignatureError(
                f"predicate.serialization.{field}", f"{found!r} is not supported: sign with {expected!r}"
            )
    digests = _digests(statement.predicate.resources)
    root = hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests.values())).hexdigest()
    if statement.subject[0].digest.get("sha256") != root:
        raise SignatureError("subject.digest", f"it is not the digest of the resources, which is {root}")
    return digests


def _digests(resources: list[_Resource]) -> dict[str, str]:
    if not 1 <= len(resources) <= MAX_RESOURCES:
        raise SignatureError(
            "predicate.resources", f"{len(resources)} files, allowed are 1 to {MAX_RESOURCES}"
        )
    digests: dict[str, str] = {}
    for resource in resources:
        if resource.algorithm != "sha256" or _SHA256.fullmatch(resource.digest) is None:
            raise SignatureError("predicate.resources", f"{resource.name[:80]!r} has no SHA-256")
        if resource.name in digests:
            raise SignatureError("predicate.resources", f"{resource.name[:80]!r} is there twice")
        digests[resource.name] = resource.digest
    return digests
