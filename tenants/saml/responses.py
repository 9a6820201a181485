"""Decides whether a SAML response signs someone in, and returns what its assertion says of them.

All conditions of the assertion are checked here except the two that need memory: that its id is new, and that
the request it answers was made in the same browser.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from lxml import etree

from tenants.saml.documents import child, name, required, text_of
from tenants.saml.errors import SamlRefused
from tenants.saml.service_provider import EMAIL_ADDRESS, ServiceProvider
from tenants.saml.signatures import SignedResponse, read_response, verify
from tenants.saml.statements import Assertion, IdentityProvider
from tenants.validation import is_email, is_printable

SKEW: Final = timedelta(seconds=60)
"""By how much clocks may differ."""
MAX_AHEAD: Final = timedelta(hours=24)
"""How long an assertion may be valid: as long as its id is remembered."""
MAX_SUBJECT_LEN: Final = 255
MAX_ID_LEN: Final = 200
MAX_VALUES: Final = 500
MAX_VALUE_LEN: Final = 254
_SUCCESS = "urn:oasis:names:tc:SAML:2.0:status:Success"
_BEARER = "urn:oasis:names:tc:SAML:2.0:cm:bearer"
_TRANSIENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:transient"
_ENTITY = "urn:oasis:names:tc:SAML:2.0:nameid-format:entity"
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_EMAILS = (
    "email",
    "mail",
    "emailaddress",
    "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/emailaddress",
    "urn:oid:0.9.2342.19200300.100.1.3",
)
_NAMES = (
    "displayname",
    "name",
    "http://schemas.microsoft.com/identity/claims/displayname",
    "urn:oid:2.16.840.1.113730.3.1.241",
)
_GIVEN = (
    "givenname",
    "firstname",
    "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/givenname",
    "urn:oid:2.5.4.42",
)
_FAMILY = (
    "surname",
    "sn",
    "lastname",
    "http://schemas.xmlsoap.org/ws/2005/05/identity/claims/surname",
    "urn:oid:2.5.4.4",
)


def read_assertion(
    document: bytes, idp: IdentityProvider, sp: ServiceProvider, now: datetime | None = None
) -> Assertion:
    """Returns the assertion of a response. Raises SamlRefused, whose reason says which condition fails."""
    now = now or datetime.now(UTC)
    root = read_response(document)
    try:
        _check_response(root, idp, sp, now)
        signed = verify(document, root, [*idp.certificates])
        if signed.response_is_signed:
            _check_response(signed.response, idp, sp, now)
            if signed.response.get("Destination") is None:
                raise SamlRefused("The signed response has no Destination.")
        return _assertion(signed, idp, sp, now)
    except ValueError as error:
        raise SamlRefused.because_of(error) from error


def _check_response(
    response: etree._Element, idp: IdentityProvider, sp: ServiceProvider, now: datetime
) -> None:
    _check_version(response)
    status = required(required(response, "samlp", "Status"), "samlp", "StatusCode")
    if status.get("Value") != _SUCCESS:
        inner = child(status, "samlp", "StatusCode")
        told = (status if inner is None else inner).get("Value", "").rpartition(":")[2]
        raise SamlRefused(f"The identity provider did not sign you in: {told[:80] or 'it gives no reason'}.")
    destination = response.get("Destination")
    if destination is not None and destination != sp.acs_url:
        raise SamlRefused(f"The response is for {destination[:200]!r}, not for {sp.acs_url!r}.")
    if child(response, "saml", "Issuer") is not None:
        _check_issuer(response, idp)
    if _moment(response, "IssueInstant") > now + SKEW:
        raise SamlRefused("The response was issued in the future: compare the clocks of both servers.")


def _assertion(
    signed: SignedResponse, idp: IdentityProvider, sp: ServiceProvider, now: datetime
) -> Assertion:
    assertion = signed.assertion
    _check_version(assertion)
    _check_issuer(assertion, idp)
    identity = assertion.get("ID", "")
    if not 1 <= len(identity) <= MAX_ID_LEN:
        raise SamlRefused(f"The assertion must have an ID of at most {MAX_ID_LEN} characters.")
    if _moment(assertion, "IssueInstant") > now + SKEW:
        raise SamlRefused("The assertion was issued in the future: compare the clocks of both servers.")
    _check_conditions(required(assertion, "saml", "Conditions"), sp, now)
    subject = required(assertion, "saml", "Subject")
    confirmation = _confirmed(subject, sp, now)
    in_response_to = confirmation.get("InResponseTo")
    outer = signed.response.get("InResponseTo")
    if outer is not None and outer != in_response_to:
        raise SamlRefused("The response and its assertion answer different requests.")
    _check_statement(assertion, now)
    attributes = _attributes(assertion)
    name_id, email = _subject(subject, idp, attributes)
    return Assertion(
        identity,
        name_id,
        email,
        _shown_name(attributes),
        None if idp.groups_attribute is None else _values(attributes, [idp.groups_attribute]),
        in_response_to,
        _moment(confirmation, "NotOnOrAfter") + SKEW,
    )


def _check_version(element: etree._Element) -> None:
    if element.get("Version") != "2.0":
        raise SamlRefused(f"{etree.QName(element).localname} must have the version 2.0.")


def _check_issuer(element: etree._Element, idp: IdentityProvider) -> None:
    issuer = required(element, "saml", "Issuer")
    found = text_of(issuer)
    if issuer.get("Format", _ENTITY) != _ENTITY or found != idp.entity_id:
        raise SamlRefused(f"The issuer is {found[:200]!r}, not {idp.entity_id!r}, as configured.")


def _check_conditions(conditions: etree._Element, sp: ServiceProvider, now: datetime) -> None:
    _check_times(conditions, now, "assertion")
    restrictions = 0
    for one in conditions:
        if one.tag == name("saml", "AudienceRestriction"):
            audiences = [text_of(audience) for audience in one.iterfind(name("saml", "Audience"))]
            if sp.entity_id not in audiences:
                told = ", ".join(audiences)[:200]
                raise SamlRefused(f"The audience is {told!r}, not {sp.entity_id!r}.")
            restrictions += 1
        elif one.tag not in (name("saml", "OneTimeUse"), name("saml", "ProxyRestriction")):
            raise SamlRefused("The assertion has a condition that is not known here.")
    if not restrictions:
        raise SamlRefused("The assertion names no audience.")


def _confirmed(subject: etree._Element, sp: ServiceProvider, now: datetime) -> etree._Element:
    """Returns the data of the first bearer confirmation that holds. Raises SamlRefused with what the last one
    lacks.
    """
    refused = SamlRefused("The assertion has no bearer confirmation of its subject.")
    for one in subject.iterfind(name("saml", "SubjectConfirmation")):
        data = child(one, "saml", "SubjectConfirmationData")
        if one.get("Method") != _BEARER or data is None:
            continue
        try:
            recipient = data.get("Recipient", "")
            if recipient != sp.acs_url:
                raise SamlRefused(f"The recipient is {recipient[:200]!r}, not {sp.acs_url!r}.")
            _check_times(data, now, "subject confirmation")
            if _moment(data, "NotOnOrAfter") > now + MAX_AHEAD:
                raise SamlRefused("The subject confirmation is valid for more than 24 hours.")
        except SamlRefused as error:
            refused = error
            continue
        return data
    raise refused


def _check_statement(assertion: etree._Element, now: datetime) -> None:
    statements = assertion.findall(name("saml", "AuthnStatement"))
    if not statements:
        raise SamlRefused("The assertion has no statement that the user has signed in.")
    for one in statements:
        if one.get("SessionNotOnOrAfter") is not None and _moment(one, "SessionNotOnOrAfter") + SKEW <= now:
            raise SamlRefused("The user's session at the identity provider has ended.")


def _subject(
    subject: etree._Element, idp: IdentityProvider, attributes: Mapping[str, list[str]]
) -> tuple[str, str]:
    """Returns the subject and its address."""
    name_id = required(subject, "saml", "NameID")
    found, form = text_of(name_id), name_id.get("Format", "")
    if form == _TRANSIENT:
        raise SamlRefused(
            "The NameID is transient: it changes with each sign-in. Choose the format persistent or "
            "emailAddress at the identity provider."
        )
    if not found or len(found) > MAX_SUBJECT_LEN or not is_printable(found):
        raise SamlRefused(f"The NameID must have 1 to {MAX_SUBJECT_LEN} printable characters.")
    if idp.email_attribute is not None:
        emails = _values(attributes, [idp.email_attribute])
    else:
        emails = (*_values(attributes, _EMAILS), *([found] if form == EMAIL_ADDRESS or "@" in found else []))
    email = emails[0].strip() if emails else ""
    return found, email.lower() if is_email(email) else ""


def _shown_name(attributes: Mapping[str, list[str]]) -> str:
    whole = _values(attributes, _NAMES)[:1] or (
        " ".join((*_values(attributes, _GIVEN)[:1], *_values(attributes, _FAMILY)[:1])),
    )
    return whole[0].strip()[:100]


def _attributes(assertion: etree._Element) -> dict[str, list[str]]:
    """Returns values by the attribute's name in lower case."""
    found: dict[str, list[str]] = {}
    for statement in assertion.iterfind(name("saml", "AttributeStatement")):
        for attribute in statement.iterfind(name("saml", "Attribute")):
            values = found.setdefault(attribute.get("Name", "").lower(), [])
            for value in attribute.iterfind(name("saml", "AttributeValue")):
                if len(value):
                    continue  # XML, such as a NameID: nothing here reads it
                text = (value.text or "").strip()
                if text and len(text) <= MAX_VALUE_LEN and is_printable(text):
                    values.append(text)
    return found


def _values(attributes: Mapping[str, list[str]], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the values of the first of these attributes that there is."""
    for one in names:
        if found := attributes.get(one.lower()):
            return tuple(found[:MAX_VALUES])
    return ()


def _check_times(element: etree._Element, now: datetime, what: str) -> None:
    if element.get("NotBefore") is not None and _moment(element, "NotBefore") > now + SKEW:
        raise SamlRefused(f"The {what} is not valid yet: compare the clocks of both servers.")
    if element.get("NotOnOrAfter") is not None and _moment(element, "NotOnOrAfter") + SKEW <= now:
        raise SamlRefused(f"The {what} has expired: sign in again, or compare the clocks of both servers.")


def _moment(element: etree._Element, attribute: str) -> datetime:
    text = element.get(attribute, "")
    if _INSTANT.fullmatch(text) is None:
        raise SamlRefused(f"{etree.QName(element).localname} has no {attribute} in UTC.")
    try:
        # More than six digits of a second are dropped: Python keeps microseconds.
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError as error:
        raise SamlRefused(f"{etree.QName(element).localname} has no {attribute} in UTC.") from error
