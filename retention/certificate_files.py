"""Names the files of a certificate of deletion, and draws its PDF when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_drawing = ThreadPoolExecutor(1, "certificate-pdf")


async def certificate_pdf(document: Mapping[str, Any]) -> bytes:
    """Returns the PDF. One is drawn at a time, in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_drawing, _drawn, document)


def file_name(document: Mapping[str, Any], suffix: str) -> str:
    statement = document["statement"]
    return f"deletion-certificate-{statement['number']}-{statement['issued_at'][:10]}.{suffix}"


def _drawn(document: Mapping[str, Any]) -> bytes:
    from retention.rendering import render  # large; only a process that draws needs it

    return render(document)
