"""Verifies the XML signatures of a SAML response, and returns the signed assertion as it was signed.

What is read afterwards is parsed from the bytes that the signature covers, never from the document. Before
anything is verified, the document must have the one form that this service accepts: one response, one
assertion inside it, and signatures only as children of these two, each with one reference to its parent. The
known ways to wrap a signed assertion into another document all break this form.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from lxml import etree
from signxml import DigestAlgorithm, SignatureConfiguration, SignatureMethod, XMLVerifier
from signxml.exceptions import SignXMLException

from tenants.saml.documents import child, name, parse, parser, required
from tenants.saml.errors import SamlRefused

METHODS: Final = frozenset(
    {
        SignatureMethod.RSA_SHA256,
        SignatureMethod.RSA_SHA384,
        SignatureMethod.RSA_SHA512,
        SignatureMethod.SHA256_RSA_MGF1,
        SignatureMethod.SHA384_RSA_MGF1,
        SignatureMethod.SHA512_RSA_MGF1,
        SignatureMethod.ECDSA_SHA256,
        SignatureMethod.ECDSA_SHA384,
        SignatureMethod.ECDSA_SHA512,
    }
)
"""Signatures that only the holder of a private key can make: neither SHA-1 nor a shared secret."""
DIGESTS: Final = frozenset({DigestAlgorithm.SHA256, DigestAlgorithm.SHA384, DigestAlgorithm.SHA512})
EXCLUSIVE: Final = "http://www.w3.org/2001/10/xml-exc-c14n#"
_CANONICAL: Final = (EXCLUSIVE, EXCLUSIVE + "WithComments")
_ENVELOPED: Final = "http://www.w3.org/2000/09/xmldsig#enveloped-signature"
_RESPONSE, _ASSERTION, _SIGNATURE = (
    name("samlp", "Response"),
    name("saml", "Assertion"),
    name("ds", "Signature"),
)
_ENCRYPTED: Final = (
    "The assertion is encrypted, which is not supported. Turn off assertion encryption at the identity "
    "provider: the response travels over HTTPS."
)


class SignedResponse:
    """A response whose form is checked, and its verified assertion.

    Attributes:
        response: the root element. Only trustworthy if `response_is_signed`.
        assertion: the assertion, parsed from what was signed.
    """

    def __init__(self, response: etree._Element, assertion: etree._Element, response_is_signed: bool) -> None:
        self.response = response
        self.assertion = assertion
        self.response_is_signed = response_is_signed


def read_response(document: bytes) -> etree._Element:
    """Returns the root of a response in the accepted form, of which nothing is verified. Raises SamlRefused.

    A response that reports an error may have no assertion.
    """
    try:
        root = parse(document)
    except ValueError as error:
        raise SamlRefused.because_of(error) from error
    if root.tag != _RESPONSE:
        raise SamlRefused("The document is not a SAML 2.0 response.")
    if root.find(f".//{name('saml', 'EncryptedAssertion')}") is not None:
        raise SamlRefused(_ENCRYPTED)
    assertions = [*root.iter(_ASSERTION)]
    if len(assertions) > 1 or any(one.getparent() is not root for one in assertions):
        raise SamlRefused("The response must have one assertion, directly inside it.")
    if sum(1 for _ in root.iter(_RESPONSE)) != 1:
        raise SamlRefused("The document must have one response.")
    carriers = [root, *assertions]
    for signature in root.iter(_SIGNATURE):
        if signature.getparent() not in carriers:
            raise SamlRefused("The response has a signature in an unexpected place.")
    ids = [
        value
        for one in root.iter()
        for key, value in one.items()
        if etree.QName(key).localname.lower() == "id"
    ]
    if len(ids) != len(set(ids)):
        raise SamlRefused("Two elements of the response have the same ID.")
    return root


def verify(document: bytes, root: etree._Element, certificates: list[str]) -> SignedResponse:
    """Verifies every signature of a response that `read_response` returned for `document`. Raises SamlRefused
    if the assertion is not covered by one.

    Args:
        certificates: PEM; a signature must have been made with the key of one of them.
    """
    try:
        assertion = required(root, "saml", "Assertion")
        keys = [x509.load_pem_x509_certificate(one.encode()) for one in certificates]
        verified: dict[str, etree._Element] = {}
        for carrier, place in ((root, "./"), (assertion, f"./{_ASSERTION}/")):
            signature = child(carrier, "ds", "Signature")
            if signature is not None:
                _check_form(carrier, signature)
                verified[str(carrier.tag)] = _verified(document, carrier, place, keys)
        if _ASSERTION in verified:
            signed = verified[_ASSERTION]
        elif _RESPONSE in verified:
            signed = required(verified[_RESPONSE], "saml", "Assertion")
        else:
            raise SamlRefused(
                "Neither the response nor the assertion is signed. Turn on signing at the identity provider."
            )
    except ValueError as error:
        raise SamlRefused.because_of(error) from error
    return SignedResponse(verified.get(_RESPONSE, root), signed, _RESPONSE in verified)


def _check_form(carrier: etree._Element, signature: etree._Element) -> None:
    """Checks that a signature covers its parent and nothing else, with algorithms that are accepted. Raises
    SamlRefused, ValueError.
    """
    if child(signature, "ds", "Object") is not None:
        raise SamlRefused("The signature has an Object inside, which is not accepted.")
    signed_info = required(signature, "ds", "SignedInfo")
    _require(required(signed_info, "ds", "CanonicalizationMethod"), _CANONICAL)
    _require(required(signed_info, "ds", "SignatureMethod"), [one.value for one in METHODS])
    reference = required(signed_info, "ds", "Reference")
    identity = carrier.get("ID")
    if not identity or reference.get("URI") != f"#{identity}":
        raise SamlRefused("The signature does not cover the element that it is in.")
    transforms = required(reference, "ds", "Transforms")
    used = [one.get("Algorithm") for one in transforms]
    if len(used) != 2 or used[0] != _ENVELOPED or used[1] not in _CANONICAL:
        raise SamlRefused(
            "The signature must have two transforms: enveloped signature and exclusive canonicalization."
        )
    for one in signed_info.iter(name("ds", "Transform"), name("ds", "CanonicalizationMethod")):
        if any(inner.tag != name("ec", "InclusiveNamespaces") for inner in one):
            raise SamlRefused("The signature has a transform with parameters that are not accepted.")
    _require(required(reference, "ds", "DigestMethod"), [one.value for one in DIGESTS])


def _require(element: etree._Element, accepted: list[str] | tuple[str, ...]) -> None:
    algorithm = element.get("Algorithm", "")
    if algorithm not in accepted:
        kind = etree.QName(element).localname
        raise SamlRefused(
            f"The signature's {kind} {algorithm[-80:]!r} is not accepted. Choose RSA or ECDSA with SHA-256 "
            "at the identity provider."
        )


def _verified(
    document: bytes, carrier: etree._Element, place: str, keys: list[x509.Certificate]
) -> etree._Element:
    """Returns the element that the signature at `place` covers, parsed from what was signed. Raises
    SamlRefused.
    """
    for key in keys:
        accepted = SignatureConfiguration(
            location=place,
            expect_references=1,
            signature_methods=METHODS,
            digest_algorithms=DIGESTS,
            ignore_ambiguous_key_info=True,  # no key of the document is used
            # The owner's word makes a key the provider's, not its certificate's dates.
            verification_time=key.not_valid_before_utc,
        )
        try:
            result = XMLVerifier().verify(
                document, x509_cert=key, id_attribute="ID", parser=parser(), expect_config=accepted
            )
        except (SignXMLException, etree.LxmlError, ValueError, TypeError):
            continue
        if isinstance(result, list) or result.signed_xml is None:
            continue
        signed = result.signed_xml
        if signed.tag != carrier.tag or signed.get("ID") != carrier.get("ID"):
            raise SamlRefused("The signature does not cover the element that it is in.")
        return signed
    raise SamlRefused(
        "The signature was not made with a certificate of this organization's identity provider. Check the "
        "certificates in the single sign-on settings."
    )
