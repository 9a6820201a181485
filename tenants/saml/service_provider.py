"""Describes this service to identity providers: its addresses per organization, its metadata, and the
requests by which it sends a browser to sign in.
"""

from __future__ import annotations

import base64
import re
import secrets
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit

from lxml import etree

from tenants.saml.documents import NAMESPACES, name

POST = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-POST"
REDIRECT = "urn:oasis:names:tc:SAML:2.0:bindings:HTTP-Redirect"
PROTOCOL = "urn:oasis:names:tc:SAML:2.0:protocol"
EMAIL_ADDRESS = "urn:oasis:names:tc:SAML:1.1:nameid-format:emailAddress"
PERSISTENT = "urn:oasis:names:tc:SAML:2.0:nameid-format:persistent"
_TENANT_ID = re.compile(r"tnt_[0-9A-Za-z]{1,40}")


@dataclass(frozen=True, slots=True)
class ServiceProvider:
    """This service, as one organization's identity provider knows it.

    Args:
        console_url: where browsers find the console, such as `https://rootstock.example/console`.
    """

    console_url: str
    tenant_id: str

    @property
    def entity_id(self) -> str:
        """The audience of assertions, and the address of the metadata."""
        return f"{self.console_url}{path_of(self.tenant_id, 'metadata')}"

    @property
    def acs_url(self) -> str:
        """Where the identity provider posts responses: the assertion consumer service."""
        return f"{self.console_url}{path_of(self.tenant_id, 'acs')}"

    @property
    def start_url(self) -> str:
        """Where a member begins to sign in."""
        return f"{self.console_url}{path_of(self.tenant_id, 'start')}"

    def metadata(self) -> bytes:
        """Returns the metadata document."""
        prefixes = {"md": NAMESPACES["md"]}
        root = etree.Element(name("md", "EntityDescriptor"), nsmap=prefixes, entityID=self.entity_id)
        descriptor = etree.SubElement(
            root,
            name("md", "SPSSODescriptor"),
            AuthnRequestsSigned="false",
            WantAssertionsSigned="true",
            protocolSupportEnumeration=PROTOCOL,
        )
        for accepted in (PERSISTENT, EMAIL_ADDRESS):
            etree.SubElement(descriptor, name("md", "NameIDFormat")).text = accepted
        etree.SubElement(
            descriptor,
            name("md", "AssertionConsumerService"),
            Binding=POST,
            Location=self.acs_url,
            index="0",
            isDefault="true",
        )
        document: bytes = etree.tostring(root, xml_declaration=True, encoding="UTF-8", pretty_print=True)
        return document

    def sign_in_url(self, sso_url: str, request_id: str) -> str:
        """Returns where to send a browser to sign in: the provider's address with an AuthnRequest (redirect
        binding). No RelayState is sent: where the person goes afterwards is kept in their session here.
        """
        prefixes = {"samlp": NAMESPACES["samlp"], "saml": NAMESPACES["saml"]}
        root = etree.Element(
            name("samlp", "AuthnRequest"),
            nsmap=prefixes,
            ID=request_id,
            Version="2.0",
            IssueInstant=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            Destination=sso_url,
            AssertionConsumerServiceURL=self.acs_url,
            ProtocolBinding=POST,
        )
        etree.SubElement(root, name("saml", "Issuer")).text = self.entity_id
        etree.SubElement(root, name("samlp", "NameIDPolicy"), AllowCreate="true")
        compressor = zlib.compressobj(wbits=-15)
        deflated = compressor.compress(etree.tostring(root)) + compressor.flush()
        joint = "&" if urlsplit(sso_url).query else "?"
        return f"{sso_url}{joint}{urlencode({'SAMLRequest': base64.b64encode(deflated).decode()})}"


def path_of(tenant_id: str, what: str) -> str:
    """Returns a path below the console."""
    return f"/saml/{tenant_id}/{what}"


def is_tenant_id(given: str) -> bool:
    """Returns whether this has the form of an organization's id, whether there is one or not."""
    return _TENANT_ID.fullmatch(given) is not None


def new_request_id() -> str:
    """Returns the id of a request: no XML name begins with a digit, so it begins with a letter."""
    return f"id-{secrets.token_hex(20)}"
