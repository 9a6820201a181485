"""Renders the pages that the service itself makes: landing page, API reference, and those of errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from api.site.reference import Reference

HERE = Path(__file__).parent
_CODE = re.compile(r"`([^`]+)`")
_STRONG = re.compile(r"\*\*([^*]+)\*\*")

_templates = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Returns a page's HTML."""
    return _templates.get_template(template).render(**values)


def render_reference(document: dict[str, Any], base_url: str, model: str) -> str:
    """Returns the API reference's HTML. It takes some hundred milliseconds: not for the event loop."""
    reference = Reference(document, base_url, model)
    return render(
        "reference.html",
        sections=reference.sections(),
        errors=reference.errors(),
        version=document["info"]["version"],
        introduction=document["info"].get("description", ""),
        base_url=base_url.rstrip("/"),
    )


def prose(text: str) -> Markup:
    """Returns a description as HTML: paragraphs, with **bold** text and code in backticks."""
    html = [str(escape(part)) for part in text.split("\n\n") if part.strip()]
    html = [_STRONG.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", part)) for part in html]
    return Markup("").join(Markup(f"<p>{part}</p>") for part in html)


_templates.filters["prose"] = prose
