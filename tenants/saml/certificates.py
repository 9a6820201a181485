"""Reads the signing certificates of an identity provider.

A certificate stands for its key, which an owner has entered: its issuer and dates are shown, but decide
nothing, as the metadata interoperability profile of SAML 2.0 says.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

MAX_CERTIFICATES = 2
"""The one in use and, while the provider changes it, the next."""
MAX_TEXT = 16_000
MIN_RSA_BITS = 2048
CURVES = ("secp256r1", "secp384r1", "secp521r1")
_PEM = re.compile(r"-----(?:BEGIN|END) CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class CertificateView:
    """A certificate, as it is shown."""

    subject: str
    fingerprint: str
    """SHA-256 of the certificate, as identity providers show it: hexadecimal pairs between colons."""
    expires_at: datetime
    pem: str


def read_certificate(given: str) -> x509.Certificate:
    """Returns a certificate from PEM or from base64 alone. Raises ValueError."""
    if len(given) > MAX_TEXT:
        raise ValueError(f"certificate must have at most {MAX_TEXT} characters")
    inner = "".join(_PEM.sub("", given).split())
    try:
        found = x509.load_der_x509_certificate(base64.b64decode(inner, validate=True))
        key = found.public_key()
    except UnsupportedAlgorithm as error:
        raise ValueError("certificate has a key of an unknown kind") from error
    except (ValueError, TypeError) as error:
        raise ValueError("certificate must be an X.509 certificate in PEM format") from error
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        return found
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES:
        return found
    raise ValueError(
        f"certificate must have an RSA key of at least {MIN_RSA_BITS} bits or an elliptic-curve key (P-256, "
        "P-384 or P-521)"
    )


def checked_certificates(given: list[str]) -> list[str]:
    """Returns certificates in PEM format, each once. Raises ValueError naming the field."""
    found: dict[str, None] = {}
    for one in given:
        try:
            found[pem_of(read_certificate(one))] = None
        except ValueError as error:
            raise ValueError(f"certificates: the {error}") from error
    if not 1 <= len(found) <= MAX_CERTIFICATES:
        raise ValueError(f"certificates must be 1 or {MAX_CERTIFICATES}, not {len(found)}")
    return [*found]


def pem_of(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def certificate_view(pem: str) -> CertificateView:
    certificate = x509.load_pem_x509_certificate(pem.encode())
    try:
        subject = certificate.subject.rfc4514_string()
    except ValueError:
        subject = ""
    return CertificateView(
        subject,
        certificate.fingerprint(hashes.SHA256()).hex(":").upper(),
        certificate.not_valid_after_utc,
        pem,
    )
