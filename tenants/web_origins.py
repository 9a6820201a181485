"""Parses the web origins whose pages can use an API key."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ORIGINS = 32
ORIGIN = r"([A-Za-z][A-Za-z0-9+.-]{0,30})://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?"
"""Pattern of an origin."""
_ORIGIN = re.compile(ORIGIN)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def parse_origins(written: Iterable[str]) -> list[str]:
    """Returns origins as browsers send them, such as `https://app.example` or `http://localhost:3000`; each
    once, sorted.

    Raises ValueError naming the field.
    """
    origins: set[str] = set()
    for one in written:
        found = _ORIGIN.fullmatch(one)
        if found is None:
            raise ValueError(f"origins: {one[:100]!r} is not an origin, such as https://app.example")
        scheme, host, port = found[1].lower(), found[2].lower(), found[3]
        shown_port = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else port
        origins.add(f"{scheme}://{host}{shown_port}")
    if len(origins) > MAX_ORIGINS:
        raise ValueError(f"origins must be at most {MAX_ORIGINS}, not {len(origins)}")
    return sorted(origins)
