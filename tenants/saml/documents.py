"""Parses XML of other parties: of bounded size, in UTF-8, without document types, entities, comments or
processing instructions, and without reading anything else.

A document type is refused before the parser sees it, so that there is no entity to expand or fetch. Comments
are refused because readers differ about the text around them.
"""

from __future__ import annotations

import re
from typing import Final

from lxml import etree

MAX_BYTES: Final = 256 * 1024
MAX_ELEMENTS: Final = 5000
NAMESPACES: Final = {
    "saml": "urn:oasis:names:tc:SAML:2.0:assertion",
    "samlp": "urn:oasis:names:tc:SAML:2.0:protocol",
    "md": "urn:oasis:names:tc:SAML:2.0:metadata",
    "ds": "http://www.w3.org/2000/09/xmldsig#",
    "ec": "http://www.w3.org/2001/10/xml-exc-c14n#",
}
_DECLARED = re.compile(r"<\?xml\b[^>]{0,200}?\bencoding\s*=\s*[\"']([^\"'>]{1,40})[\"']")


def parse(document: bytes, *, drops_comments: bool = False) -> etree._Element:
    """Returns the root element. Raises ValueError, which says what is wrong with the document.

    Args:
        drops_comments: leaves out comments and processing instructions instead of refusing them, for
            documents in which no signature is verified.
    """
    if len(document) > MAX_BYTES:
        raise ValueError(f"the document has {len(document)} bytes, more than {MAX_BYTES}")
    try:
        text = document.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError("the document is not UTF-8") from error
    declared = _DECLARED.match(text.removeprefix("\ufeff"))
    if declared is not None and declared[1].lower() not in ("utf-8", "us-ascii"):
        raise ValueError(f"the document is declared as {declared[1]}, not UTF-8")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise ValueError("the document has a document type, which is not accepted")
    try:
        root = etree.fromstring(document, parser(drops_comments=drops_comments))
    except etree.XMLSyntaxError as error:
        raise ValueError("the document is not well-formed XML") from error
    tree = root.getroottree()
    if tree.docinfo.internalDTD is not None or tree.docinfo.externalDTD is not None:
        raise ValueError("the document has a document type, which is not accepted")
    if root.getprevious() is not None or root.getnext() is not None:
        raise ValueError("the document has comments or processing instructions, which are not accepted")
    for number, node in enumerate(root.iter()):
        if not isinstance(node.tag, str):
            raise ValueError("the document has comments or processing instructions, which are not accepted")
        if number >= MAX_ELEMENTS:
            raise ValueError(f"the document has more than {MAX_ELEMENTS} elements")
    return root


def parser(*, drops_comments: bool = False) -> etree.XMLParser:
    """Returns a parser that expands no entity, fetches nothing, and keeps the parser's own limits."""
    return etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        no_network=True,
        huge_tree=False,
        remove_comments=drops_comments,
        remove_pis=drops_comments,
        recover=False,
    )


def name(prefix: str, local: str) -> str:
    """Returns an element's name with its namespace, as lxml writes it."""
    return f"{{{NAMESPACES[prefix]}}}{local}"


def text_of(element: etree._Element) -> str:
    """Returns the text of an element that has no elements inside, without surrounding spaces. Raises
    ValueError.
    """
    if len(element):
        raise ValueError(f"{etree.QName(element).localname} must have text only")
    return (element.text or "").strip()


def child(element: etree._Element, prefix: str, local: str) -> etree._Element | None:
    """Returns the only child of this name; None if there is none. Raises ValueError if there are several."""
    found = element.findall(name(prefix, local))
    if len(found) > 1:
        raise ValueError(f"{etree.QName(element).localname} has {len(found)} elements {local}, not one")
    return found[0] if found else None


def required(element: etree._Element, prefix: str, local: str) -> etree._Element:
    """Returns the only child of this name. Raises ValueError."""
    found = child(element, prefix, local)
    if found is None:
        raise ValueError(f"{etree.QName(element).localname} has no {local}")
    return found
