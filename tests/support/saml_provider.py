"""An identity provider that signs SAML responses by hand: without an XML library.

Everything is written in its canonical form, so that what is digested and signed is the text itself. What it
says is right unless a test changes it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from xml.sax.saxutils import escape, quoteattr

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

ENTITY_ID = "https://idp.acme.example/saml"
SSO_URL = "https://idp.acme.example/saml/sso"
SAML, SAMLP = "urn:oasis:names:tc:SAML:2.0:assertion", "urn:oasis:names:tc:SAML:2.0:protocol"
DSIG = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
MORE = "http://www.w3.org/2001/04/xmldsig-more#"
PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
SUCCESS = "urn:oasis:names:tc:SAML:2.0:status:Success"
METHODS = {"sha1": f"{DSIG}rsa-sha1", "sha256": f"{MORE}rsa-sha256", "sha512": f"{MORE}rsa-sha512"}
DIGESTS = {
    "sha1": f"{DSIG}sha1",
    "sha256": "http://www.w3.org/2001/04/xmlenc#sha256",
    "sha512": "http://www.w3.org/2001/04/xmlenc#sha512",
}
HASHES: dict[str, hashes.HashAlgorithm] = {
    "sha1": hashes.SHA1(),  # noqa: S303  what must be refused
    "sha256": hashes.SHA256(),
    "sha512": hashes.SHA512(),
}
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def new_key(name: str, kind: str = "rsa", bits: int = 2048) -> Key:
    """The same for the same name."""
    return _key(name, kind, bits)


@cache
def _key(name: str, kind: str, bits: int) -> Key:
    return ec.generate_private_key(ec.SECP256R1()) if kind == "ec" else rsa.generate_private_key(65537, bits)


@cache
def certificate(name: str, kind: str = "rsa", *, days: int = 3650, bits: int = 2048) -> str:
    """PEM, signed by itself. Negative `days`: it expired that long ago."""
    key, now = new_key(name, kind, bits), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=4000))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(Encoding.PEM).decode()


def instant(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Statement:
    """What a response says. None leaves an attribute or element out."""

    acs_url: str
    audience: str
    in_response_to: str | None = None
    subject: str = "u-1815"
    name_format: str = PERSISTENT
    attributes: Mapping[str, Sequence[str]] = field(default_factory=lambda: {"email": ["grace@acme.example"]})
    issuer: str = ENTITY_ID
    recipient: str | None = ""
    """Empty: the ACS URL."""
    destination: str | None = ""
    issued: timedelta = timedelta()
    """From now, as the next ones."""
    not_before: timedelta | None = timedelta(minutes=-2)
    not_on_or_after: timedelta | None = timedelta(minutes=5)
    confirmed_until: timedelta | None = timedelta(minutes=5)
    session_until: timedelta | None = None
    status: str = SUCCESS
    condition: str = ""
    """XML in Conditions."""
    audiences: str | None = None
    """XML in place of the audience restriction."""
    assertion_id: str = ""
    response_in_response_to: str | None = ""
    version: str = "2.0"
    confirmation_method: str = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
    authn: bool = True


@dataclass
class SamlProvider:
    key: Key = field(default_factory=lambda: new_key("idp"))
    algorithm: str = "sha256"
    signs: str = "assertion"
    """Or `response`, `both`, `none`."""
    method: str | None = None
    """Claimed as the signature method in place of the true one."""
    canonicalization: str = EXCLUSIVE

    def respond(self, statement: Statement) -> bytes:
        """A response document."""
        assertion_id = statement.assertion_id or f"_a{secrets.token_hex(16)}"
        assertion = _assertion(statement, assertion_id)
        if self.signs in ("assertion", "both"):
            assertion = self.sign(assertion, assertion_id)
        response_id = f"_r{secrets.token_hex(16)}"
        response = _response(statement, response_id, assertion)
        if self.signs in ("response", "both"):
            response = self.sign(response, response_id)
        return response.encode()

    def sign(self, element: str, identity: str) -> str:
        """The element with its signature after its issuer."""
        head, end, rest = element.partition("</saml:Issuer>")
        return head + end + self.signature(element, identity) + rest

    def signature(self, element: str, identity: str) -> str:
        digest = base64.b64encode(hashlib.new(self.algorithm, element.encode()).digest()).decode()
        method = METHODS[self.algorithm]
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            method = f"{MORE}ecdsa-{self.algorithm}"
        signed_info = (
            f'<ds:SignedInfo xmlns:ds="{DSIG}">'
            f'<ds:CanonicalizationMethod Algorithm="{self.canonicalization}"></ds:CanonicalizationMethod>'
            f'<ds:SignatureMethod Algorithm="{self.method or method}"></ds:SignatureMethod>'
            f'<ds:Reference URI="#{identity}"><ds:Transforms>'
            f'<ds:Transform Algorithm="{DSIG}enveloped-signature"></ds:Transform>'
            f'<ds:Transform Algorithm="{EXCLUSIVE}"></ds:Transform></ds:Transforms>'
            f'<ds:DigestMethod Algorithm="{DIGESTS[self.algorithm]}"></ds:DigestMethod>'
            f"<ds:DigestValue>{digest}</ds:DigestValue></ds:Reference></ds:SignedInfo>"
        )
        value = base64.b64encode(self._signed(signed_info.encode())).decode()
        inside = signed_info.replace(f' xmlns:ds="{DSIG}"', "", 1)  # as around it, in a canonical form
        return (
            f'<ds:Signature xmlns:ds="{DSIG}">{inside}'
            f"<ds:SignatureValue>{value}</ds:SignatureValue></ds:Signature>"
        )

    def _signed(self, content: bytes) -> bytes:
        if isinstance(self.key, rsa.RSAPrivateKey):
            return self.key.sign(content, padding.PKCS1v15(), HASHES[self.algorithm])
        r, s = decode_dss_signature(self.key.sign(content, ec.ECDSA(HASHES[self.algorithm])))
        size = self.key.key_size // 8
        return r.to_bytes(size) + s.to_bytes(size)


def metadata(*certificates: str, entity_id: str = ENTITY_ID, sso_url: str = SSO_URL) -> str:
    """The provider's metadata, as most write it."""
    keys = "".join(
        f'<KeyDescriptor use="signing"><KeyInfo xmlns="{DSIG}"><X509Data><X509Certificate>'
        f"{''.join(pem.splitlines()[1:-1])}</X509Certificate></X509Data></KeyInfo></KeyDescriptor>"
        for pem in certificates
    )
    binding = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<EntityDescriptor xmlns="urn:oasis:names:tc:SAML:2.0:metadata" entityID={quoteattr(entity_id)}>'
        f'<IDPSSODescriptor protocolSupportEnumeration="{SAMLP}">{keys}'
        f'<SingleSignOnService Binding="{binding}-POST" Location="{sso_url}/post"/>'
        f'<SingleSignOnService Binding="{binding}-Redirect" Location="{sso_url}"/>'
        "</IDPSSODescriptor></EntityDescriptor>"
    )


def _assertion(said: Statement, identity: str) -> str:
    now = datetime.now(UTC)
    recipient = said.acs_url if said.recipient == "" else said.recipient
    audiences = (
        f"<saml:AudienceRestriction><saml:Audience>{escape(said.audience)}</saml:Audience>"
        "</saml:AudienceRestriction>"
    )
    return (
        f'<saml:Assertion xmlns:saml="{SAML}" ID="{identity}" IssueInstant="{instant(now + said.issued)}"'
        f' Version="{said.version}">'
        f"<saml:Issuer>{escape(said.issuer)}</saml:Issuer>"
        f'<saml:Subject><saml:NameID Format="{said.name_format}">{said.subject}</saml:NameID>'
        f'<saml:SubjectConfirmation Method="{said.confirmation_method}"><saml:SubjectConfirmationData'
        f"{_attribute('InResponseTo', said.in_response_to)}"
        f"{_time('NotOnOrAfter', now, said.confirmed_until)}{_attribute('Recipient', recipient)}>"
        "</saml:SubjectConfirmationData></saml:SubjectConfirmation></saml:Subject>"
        f"<saml:Conditions{_time('NotBefore', now, said.not_before)}"
        f"{_time('NotOnOrAfter', now, said.not_on_or_after)}>"
        f"{audiences if said.audiences is None else said.audiences}{said.condition}</saml:Conditions>"
        f"{_authn(said, now) if said.authn else ''}{_attributes(said.attributes)}</saml:Assertion>"
    )


def _authn(said: Statement, now: datetime) -> str:
    return (
        f'<saml:AuthnStatement AuthnInstant="{instant(now)}"'
        f"{_time('SessionNotOnOrAfter', now, said.session_until)}><saml:AuthnContext>"
        "<saml:AuthnContextClassRef>urn:oasis:names:tc:SAML:2.0:ac:classes:Password"
        "</saml:AuthnContextClassRef></saml:AuthnContext></saml:AuthnStatement>"
    )


def _attributes(attributes: Mapping[str, Sequence[str]]) -> str:
    if not attributes:
        return ""
    told = "".join(
        f'<saml:Attribute Name="{name}">'
        + "".join(f"<saml:AttributeValue>{escape(value)}</saml:AttributeValue>" for value in values)
        + "</saml:Attribute>"
        for name, values in attributes.items()
    )
    return f"<saml:AttributeStatement>{told}</saml:AttributeStatement>"


def _response(said: Statement, identity: str, assertion: str) -> str:
    answered = said.in_response_to if said.response_in_response_to == "" else said.response_in_response_to
    destination = said.acs_url if said.destination == "" else said.destination
    return (
        f'<samlp:Response xmlns:samlp="{SAMLP}"{_attribute("Destination", destination)} ID="{identity}"'
        f"{_attribute('InResponseTo', answered)}"
        f' IssueInstant="{instant(datetime.now(UTC) + said.issued)}" Version="{said.version}">'
        f'<saml:Issuer xmlns:saml="{SAML}">{escape(said.issuer)}</saml:Issuer>'
        f'<samlp:Status><samlp:StatusCode Value="{said.status}"></samlp:StatusCode></samlp:Status>'
        f"{assertion}</samlp:Response>"
    )


def _attribute(name: str, value: str | None) -> str:
    return "" if value is None else f' {name}="{escape(value)}"'


def _time(name: str, now: datetime, offset: timedelta | None) -> str:
    return "" if offset is None else f' {name}="{instant(now + offset)}"'
