"""Which SAML responses sign someone in, and every known way to make one that should not."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenants.saml.documents import MAX_BYTES
from tenants.saml.errors import SamlRefused
from tenants.saml.responses import read_assertion
from tenants.saml.service_provider import ServiceProvider
from tenants.saml.statements import Assertion, IdentityProvider
from tests.support import saml_provider
from tests.support.saml_provider import (
    DSIG,
    ENTITY_ID,
    EXCLUSIVE,
    MORE,
    SAML,
    SamlProvider,
    Statement,
    certificate,
    new_key,
)

SP = ServiceProvider("https://rootstock.example/console", "tnt_1")
IDP = IdentityProvider(ENTITY_ID, (certificate("idp"),), groups_attribute="groups")
REQUEST = "id-1234"
SAMPLES = Path(__file__).parent / "saml_samples"
SIGNED_AT = datetime(2026, 11, 26, 13, 57, 17, tzinfo=UTC)


def said(**changes: Any) -> Statement:
    right = {"acs_url": SP.acs_url, "audience": SP.entity_id, "in_response_to": REQUEST}
    return Statement(**(right | changes))


def read(document: bytes, idp: IdentityProvider = IDP) -> Assertion:
    return read_assertion(document, idp, SP)


def refusal(document: bytes, idp: IdentityProvider = IDP) -> str:
    with pytest.raises(SamlRefused) as caught:
        read(document, idp)
    return caught.value.reason


# What is accepted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("signs", ["assertion", "response", "both"])
def test_a_signed_response_is_read(signs: str) -> None:
    attributes = {"email": ["Grace@ACME.example"], "displayName": ["Grace Hopper"], "groups": ["a", "b"]}
    found = read(SamlProvider(signs=signs).respond(said(attributes=attributes)))
    assert (found.subject, found.email, found.name) == ("u-1815", "grace@acme.example", "Grace Hopper")
    assert found.groups == ("a", "b")
    assert found.in_response_to == REQUEST


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("rsa", "sha256"), ("rsa", "sha512"), ("ec", "sha256"), ("ec", "sha512")]
)
def test_algorithms(kind: str, algorithm: str) -> None:
    idp = replace(IDP, certificates=(certificate(kind, kind),))
    assert read(SamlProvider(new_key(kind, kind), algorithm).respond(said()), idp).subject == "u-1815"


def test_both_certificates_of_a_rotation_are_accepted_and_none_after_it() -> None:
    old, new = SamlProvider(new_key("old")), SamlProvider(new_key("new"))
    both = replace(IDP, certificates=(certificate("old"), certificate("new")))
    assert read(old.respond(said()), both).id != read(new.respond(said()), both).id
    assert "not made with a certificate" in refusal(
        old.respond(said()), replace(IDP, certificates=(certificate("new"),))
    )


def test_an_expired_certificate_is_still_the_providers_key() -> None:
    idp = replace(IDP, certificates=(certificate("idp", days=-30),))
    assert read(SamlProvider().respond(said()), idp).subject == "u-1815"


@pytest.mark.parametrize(
    ("changes", "email"),
    [
        (
            {"attributes": {"http://schemas.xmlsoap.org/ws/2005/05/identity/claims/emailaddress": ["a@b.c"]}},
            "a@b.c",
        ),
        ({"attributes": {}, "subject": "A@b.c", "name_format": saml_provider.PERSISTENT}, "a@b.c"),
        ({"attributes": {"urn:oid:0.9.2342.19200300.100.1.3": ["x@y.z"]}, "subject": "a@b.c"}, "x@y.z"),
        ({"attributes": {}}, ""),
        ({"attributes": {"email": ["not an address"]}}, ""),
    ],
)
def test_where_the_address_is_read(changes: dict[str, Any], email: str) -> None:
    assert read(SamlProvider().respond(said(**changes))).email == email


def test_a_named_address_attribute_is_the_only_one() -> None:
    idp = replace(IDP, email_attribute="upn")
    both = {"email": ["a@b.c"], "upn": ["u@b.c"]}
    assert read(SamlProvider().respond(said(attributes=both)), idp).email == "u@b.c"
    assert read(SamlProvider().respond(said(attributes={"email": ["a@b.c"]})), idp).email == ""


def test_groups_are_none_unless_an_attribute_is_named() -> None:
    with_groups = SamlProvider().respond(said(attributes={"groups": ["a"]}))
    assert read(with_groups, replace(IDP, groups_attribute=None)).groups is None
    assert read(SamlProvider().respond(said(attributes={}))).groups == ()


@pytest.mark.parametrize(
    ("sample", "issuer", "email"),
    [
        ("xmlsec.xml", ENTITY_ID, "grace@acme.example"),  # indented, with a list of inclusive namespaces
        ("samlify.xml", "https://idp.samlify.example/", "ada@acme.example"),
    ],
)
def test_responses_that_other_libraries_signed_are_read(sample: str, issuer: str, email: str) -> None:
    """Signed once, response and assertion, by libxmlsec1 1.3 and by samlify 2.13."""
    idp = IdentityProvider(issuer, ((SAMPLES / "certificate.pem").read_text(),))
    document = (SAMPLES / sample).read_bytes()
    assert read_assertion(document, idp, SP, SIGNED_AT).email == email
    with pytest.raises(SamlRefused):
        read_assertion(document.replace(email.encode(), b"eve@acme.example"), idp, SP, SIGNED_AT)
    with pytest.raises(SamlRefused):
        read_assertion(document, idp, SP, SIGNED_AT + timedelta(hours=1))


# Conditions -----------------------------------------------------------------------------------------------

AUDIENCE = "<saml:AudienceRestriction><saml:Audience>{0}</saml:Audience></saml:AudienceRestriction>"
FAILS: dict[str, tuple[dict[str, Any], str]] = {
    "another issuer": ({"issuer": "https://evil.example"}, "issuer"),
    "another audience": ({"audience": "https://other.example"}, "audience"),
    "one of two audience restrictions": (
        {"audiences": AUDIENCE.format(SP.entity_id) + AUDIENCE.format("https://other.example")},
        "audience",
    ),
    "no audience": ({"audiences": ""}, "names no audience"),
    "another recipient": ({"recipient": "https://rootstock.example/console/saml/tnt_2/acs"}, "recipient"),
    "no recipient": ({"recipient": None}, "recipient"),
    "another destination": ({"destination": "https://other.example/acs"}, "is for"),
    "not yet": ({"not_before": timedelta(minutes=2)}, "not valid yet"),
    "over": ({"not_on_or_after": timedelta(minutes=-2)}, "has expired"),
    "confirmation over": ({"confirmed_until": timedelta(minutes=-2)}, "has expired"),
    "confirmation without end": ({"confirmed_until": None}, "NotOnOrAfter"),
    "valid for ever": ({"confirmed_until": timedelta(days=9)}, "24 hours"),
    "issued tomorrow": ({"issued": timedelta(days=1)}, "future"),
    "session over": ({"session_until": timedelta(minutes=-2)}, "session"),
    "no statement of a sign-in": ({"authn": False}, "no statement"),
    "not successful": ({"status": "urn:oasis:names:tc:SAML:2.0:status:Responder"}, "Responder"),
    "SAML 1.1": ({"version": "1.1"}, "version 2.0"),
    "unknown condition": ({"condition": "<saml:Condition></saml:Condition>"}, "not known"),
    "holder of key": ({"confirmation_method": "urn:oasis:names:tc:SAML:2.0:cm:holder-of-key"}, "bearer"),
    "two requests": ({"response_in_response_to": "id-other"}, "different requests"),
    "transient name": ({"name_format": "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"}, "transient"),
    "no name": ({"subject": ""}, "NameID"),
    "a long name": ({"subject": "x" * 256}, "NameID"),
    "a name with elements": ({"subject": "a@b.c<saml:Audience>x</saml:Audience>"}, "text only"),
}


@pytest.mark.parametrize("signs", ["assertion", "response"])
def test_each_condition_is_checked(signs: str) -> None:
    for what, (changes, words) in FAILS.items():
        reason = refusal(SamlProvider(signs=signs).respond(said(**changes)))
        assert words.lower() in reason.lower(), (what, reason)


def test_clocks_may_differ_by_a_minute() -> None:
    early = timedelta(seconds=40)
    read(SamlProvider().respond(said(not_before=early, issued=early)))
    read(SamlProvider().respond(said(not_on_or_after=-early, confirmed_until=-early)))


def test_a_signed_response_names_its_destination() -> None:
    assert "Destination" in refusal(SamlProvider(signs="response").respond(said(destination=None)))
    read(SamlProvider(signs="assertion").respond(said(destination=None)))


# Signatures -----------------------------------------------------------------------------------------------


def test_unsigned_responses_are_refused() -> None:
    assert "signed" in refusal(SamlProvider(signs="none").respond(said()))


def test_another_key_is_refused_whatever_certificate_it_shows() -> None:
    forged = SamlProvider(new_key("thief")).respond(said()).decode()
    assert "not made with a certificate" in refusal(forged.encode())
    for shown in ("thief", "idp"):
        inner = "".join(certificate(shown).splitlines()[1:-1])
        data = f"<ds:X509Data><ds:X509Certificate>{inner}</ds:X509Certificate></ds:X509Data>"
        info = f"<ds:KeyInfo>{data}</ds:KeyInfo>"
        shows = forged.replace("</ds:Signature>", f"{info}</ds:Signature>")
        assert "not made with a certificate" in refusal(shows.encode())


def test_a_changed_assertion_is_refused() -> None:
    for signs in ("assertion", "response", "both"):
        document = SamlProvider(signs=signs).respond(said())
        assert "not made with" in refusal(document.replace(b"u-1815", b"u-0001"))


def test_sha_1_is_refused() -> None:
    assert "SHA-256" in refusal(SamlProvider(algorithm="sha1").respond(said()))
    signed = SamlProvider().respond(said()).decode()
    weak_digest = signed.replace(saml_provider.DIGESTS["sha256"], saml_provider.DIGESTS["sha1"])
    assert "DigestMethod" in refusal(weak_digest.encode())


@pytest.mark.parametrize(
    "method",
    [
        "none",
        "",
        "http://www.w3.org/2000/09/xmldsig#hmac-sha1",
        f"{MORE}hmac-sha256",
        f"{MORE}rsa-md5",
        f"{DSIG}dsa-sha1",
        f"{MORE}RSA-SHA256",
        f"{MORE}rsa-sha256 ",
    ],
)
def test_methods_without_a_private_key_are_refused(method: str) -> None:
    if method:
        document = SamlProvider(method=method).respond(said())
    else:
        document = re.sub(
            rb'<ds:SignatureMethod Algorithm="[^"]+"', b"<ds:SignatureMethod", SamlProvider().respond(said())
        )
    assert "SignatureMethod" in refusal(document)


def test_an_hmac_with_the_public_certificate_is_refused() -> None:
    class Hmac(SamlProvider):
        def _signed(self, content: bytes) -> bytes:
            import hmac

            return hmac.digest(certificate("idp").encode(), content, "sha256")

    assert "SignatureMethod" in refusal(Hmac(method=f"{MORE}hmac-sha256").respond(said()))


def swap(old: str, new: str, count: int = 1) -> Callable[[str], str]:
    def changed(document: str) -> str:
        assert old in document, old
        return document.replace(old, new, count)

    return changed


TRANSFORM = f'<ds:Transform Algorithm="{EXCLUSIVE}"></ds:Transform>'
ODD: dict[str, Callable[[str], str]] = {
    "XSLT": swap(
        TRANSFORM, '<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116"></ds:Transform>'
    ),
    "XPath": swap(
        TRANSFORM,
        f'<ds:Transform Algorithm="http://www.w3.org/TR/1999/REC-xpath-19991116"><ds:XPath>1</ds:XPath></ds:Transform>{TRANSFORM}',
    ),
    "base64": swap(TRANSFORM, f'<ds:Transform Algorithm="{DSIG}base64"></ds:Transform>'),
    "not exclusive": swap(EXCLUSIVE, "http://www.w3.org/TR/2001/REC-xml-c14n-20010315", 9),
    "no transforms": lambda document: re.sub("<ds:Transforms>.*</ds:Transforms>", "", document),
    "the whole document": lambda document: re.sub('URI="#[^"]+"', 'URI=""', document),
    "no URI": lambda document: re.sub(' URI="#[^"]+"', "", document),
    "another element": lambda document: re.sub('URI="#[^"]+"', 'URI="#other"', document),
    "XPointer": lambda document: re.sub('URI="#([^"]+)"', r"""URI="#xpointer(id('\1'))\"""", document),
    "an address": lambda document: re.sub('URI="#[^"]+"', 'URI="https://evil.example/a.xml"', document),
    "two references": lambda document: re.sub("(<ds:Reference .*</ds:Reference>)", r"\1\1", document),
    "two signatures": lambda document: re.sub("(<ds:Signature .*</ds:Signature>)", r"\1\1", document),
    "no value": lambda document: re.sub("<ds:SignatureValue>.*</ds:SignatureValue>", "", document),
    "an empty value": lambda document: re.sub(
        "<ds:SignatureValue>.*</ds:SignatureValue>", "<ds:SignatureValue></ds:SignatureValue>", document
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_odd_signatures_are_refused(what: str) -> None:
    refusal(ODD[what](SamlProvider().respond(said()).decode()).encode())


# Wrapping -------------------------------------------------------------------------------------------------
# Eight places for the signed original, as Somorovsky et al. number them ("On Breaking SAML", 2012): the first
# two wrap a signed response, the others a signed assertion.

_SIGNATURE = re.compile("<ds:Signature .*?</ds:Signature>")
_ASSERTION = re.compile("<saml:Assertion .*</saml:Assertion>")
EVIL = "u-0001"


def parts(document: str, element: str) -> tuple[str, str, str]:
    """The signature, the original without it, and an evil copy of the original without it."""
    (signature,) = _SIGNATURE.findall(document)
    original = element.replace(signature, "")
    evil = re.sub(' ID="[^"]+"', ' ID="_evil"', original, count=1).replace("u-1815", EVIL)
    return signature, original, evil


def wrapped(number: int) -> str:
    document = SamlProvider(signs="response" if number <= 2 else "assertion").respond(said()).decode()
    if number <= 2:
        signature, original, evil = parts(document, document)
        evil = re.sub('<saml:Assertion ([^>]*)ID="[^"]+"', r'<saml:Assertion \1ID="_evil2"', evil)
        head, end, rest = evil.partition("</saml:Issuer>")
        if number == 1:
            return head + end + signature.replace("</ds:Signature>", f"{original}</ds:Signature>") + rest
        return head + end + original + signature + rest
    (element,) = _ASSERTION.findall(document)
    signature, original, evil = parts(document, element)
    inside = evil.replace("</saml:Assertion>", "")
    signed = {
        3: evil + element,
        4: f"{inside}{element}</saml:Assertion>",
        5: evil.replace("</saml:Issuer>", f"</saml:Issuer>{signature}") + original,
        6: evil.replace(
            "</saml:Issuer>",
            f"</saml:Issuer>{signature.replace('</ds:Signature>', f'{original}</ds:Signature>')}",
        ),
        7: f"<samlp:Extensions>{evil}</samlp:Extensions>{element}",
        8: evil.replace(
            "</saml:Issuer>",
            "</saml:Issuer>"
            + signature.replace("</ds:Signature>", f"<ds:Object>{original}</ds:Object></ds:Signature>"),
        ),
    }[number]
    return document.replace(element, signed)


@pytest.mark.parametrize("number", range(1, 9))
def test_a_wrapped_signature_is_refused(number: int) -> None:
    document = wrapped(number)
    assert EVIL in document
    assert "u-1815" in document
    refusal(document.encode())


def test_an_evil_assertion_with_the_originals_id_is_refused() -> None:
    document = SamlProvider().respond(said()).decode()
    (element,) = _ASSERTION.findall(document)
    same = element.replace("u-1815", EVIL)
    for where in (same + element, element + same, f"<samlp:Extensions>{same}</samlp:Extensions>{element}"):
        refusal(document.replace(element, where).encode())


def test_ids_are_unique_under_every_name() -> None:
    document = SamlProvider().respond(said()).decode()
    (identity,) = re.findall('<saml:Assertion [^>]*ID="([^"]+)"', document)
    for name in ("Id", "id", "xml:id"):
        double = document.replace("<samlp:Status>", f'<samlp:Status {name}="{identity}">')
        assert "same ID" in refusal(double.encode())


def test_what_is_not_signed_is_not_read() -> None:
    # The assertion is signed, the response around it is not: nothing of it can add to the assertion.
    document = SamlProvider().respond(said()).decode()
    value = "<saml:AttributeValue>owners</saml:AttributeValue>"
    attribute = f'<saml:Attribute Name="groups">{value}</saml:Attribute>'
    more = f'<saml:AttributeStatement xmlns:saml="{SAML}">{attribute}</saml:AttributeStatement>'
    found = read(document.replace("</samlp:Response>", f"{more}</samlp:Response>").encode())
    assert found.groups == ()


# Documents ------------------------------------------------------------------------------------------------


def test_comments_cannot_cut_a_name_short() -> None:
    evil = said(subject="admin@acme.example<!-- -->.evil.example")
    for signs in ("assertion", "response"):
        assert "comments" in refusal(SamlProvider(signs=signs).respond(evil))
    # Put in after signing: the canonical form has no comments, so the signature would hold.
    signed = SamlProvider().respond(said(subject="admin@acme.example.evil.example"))
    assert "comments" in refusal(signed.replace(b"example.evil", b"example<!-- -->.evil"))
    assert "comments" in refusal(signed.replace(b"example.evil", b"example<?x?>.evil"))
    assert "comments" in refusal(b"<!-- x -->" + signed)


def test_entities_are_neither_read_nor_expanded() -> None:
    body = SamlProvider().respond(said()).decode()
    external = '<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    parameter = '<!DOCTYPE r [<!ENTITY % x SYSTEM "http://127.0.0.1:9/x.dtd"> %x;]>'
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    expansion = f'<!DOCTYPE r [<!ENTITY l0 "lol">{laughs}]>'
    for doctype, used in ((external, "&x;"), (parameter, ""), (expansion, "&l11;"), ("<!DOCTYPE r>", "")):
        began = time.perf_counter()
        assert "document type" in refusal((doctype + body.replace("u-1815", used or "u-1815")).encode())
        assert time.perf_counter() - began < 1
    assert "document type" in refusal(('<?xml version="1.0" encoding="utf-8"?>' + external + body).encode())
    # In an encoding in which the words look otherwise, or that the parser would take for another one.
    assert "UTF-8" in refusal((external + body).encode("utf-16"))
    assert "UTF-8" in refusal(('<?xml version="1.0" encoding="utf-7"?>' + body).encode())
    assert "well-formed" in refusal(body.replace("u-1815", "&x;").encode())


def test_huge_documents_are_refused() -> None:
    body = SamlProvider().respond(said()).decode()
    assert "bytes" in refusal(body.replace("u-1815", "x" * MAX_BYTES).encode())
    many = body.replace("</samlp:Response>", "<a/>" * 6000 + "</samlp:Response>")
    assert "elements" in refusal(many.encode())
    deep = body.replace("</samlp:Response>", "<a>" * 3000 + "</a>" * 3000 + "</samlp:Response>")
    refusal(deep.encode())


def test_other_documents_are_refused() -> None:
    for document in (b"", b"<", b"<a/>", b"\xff\xfe", b"<samlp:Response/>", base64.b64encode(b"<a/>")):
        refusal(document)
    response = SamlProvider().respond(said()).decode()
    (element,) = _ASSERTION.findall(response)
    refusal(element.encode())  # an assertion alone
    assert "no Assertion" in refusal(response.replace(element, "").encode())


def test_encrypted_assertions_are_refused_with_a_remedy() -> None:
    body = SamlProvider().respond(said()).decode()
    encrypted = f'<saml:EncryptedAssertion xmlns:saml="{SAML}"></saml:EncryptedAssertion>'
    assert "Turn off assertion encryption" in refusal(_ASSERTION.sub(encrypted, body).encode())
