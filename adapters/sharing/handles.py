"""Makes the handles that stand for owners in the names of shared adapters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import count

MAX_LEN = 40
_OTHER = re.compile(r"[^a-z0-9]+")


def handles(name: str) -> Iterator[str]:
    """Yields handles for an organization's name, until one is free: `acme`, `acme-2`, `acme-3`, ..."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    first = _OTHER.sub("-", plain).strip("-")[:MAX_LEN].rstrip("-") or "organization"
    yield first
    for number in count(2):
        yield f"{first}-{number}"
