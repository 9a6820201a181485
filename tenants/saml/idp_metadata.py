"""Reads the metadata of an identity provider: its entity id, its sign-in address, and its certificates."""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from tenants.saml.certificates import MAX_CERTIFICATES, checked_certificates, pem_of, read_certificate
from tenants.saml.documents import child, name, parse, text_of
from tenants.saml.service_provider import REDIRECT

FIELD = "metadata"


@dataclass(frozen=True, slots=True)
class IdpMetadata:
    entity_id: str
    sso_url: str
    certificates: list[str]
    """PEM."""


def read_idp_metadata(document: str) -> IdpMetadata:
    """Returns what a metadata document says. Its signature, if it has one, is not checked: an owner has
    vouched for the document by uploading it. Raises ValueError naming the field `metadata`.
    """
    try:
        root = parse(document.strip().removeprefix("\ufeff").encode(), drops_comments=True)
        descriptor = _descriptor(root)
        entity = descriptor.getparent()
        if entity is None or entity.tag != name("md", "EntityDescriptor"):
            raise ValueError("it has no EntityDescriptor around the IDPSSODescriptor")
        services = {
            one.get("Binding"): one.get("Location")
            for one in descriptor.iterfind(name("md", "SingleSignOnService"))
        }
        if not services.get(REDIRECT):
            raise ValueError("it names no SingleSignOnService with the binding HTTP-Redirect")
        return IdpMetadata(entity.get("entityID", ""), services[REDIRECT], _certificates(descriptor))
    except ValueError as error:
        raise ValueError(f"{FIELD}: {error}") from error


def _descriptor(root: etree._Element) -> etree._Element:
    found = [*root.iter(name("md", "IDPSSODescriptor"))]
    if len(found) != 1:
        raise ValueError(
            f"it describes {len(found)} identity providers, not one: use the metadata of your application at "
            "the identity provider"
        )
    return found[0]


def _certificates(descriptor: etree._Element) -> list[str]:
    found: dict[str, None] = {}
    for key in descriptor.iterfind(name("md", "KeyDescriptor")):
        if key.get("use", "signing") != "signing":
            continue
        info = child(key, "ds", "KeyInfo")
        for one in () if info is None else info.iter(name("ds", "X509Certificate")):
            found[pem_of(read_certificate(text_of(one)))] = None
    if len(found) > MAX_CERTIFICATES:
        raise ValueError(
            f"it has {len(found)} signing certificates; enter the {MAX_CERTIFICATES} that are in use by hand"
        )
    return checked_certificates([*found])
