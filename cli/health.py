"""Polls a running API's `/readyz` until it is alive or ready."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Health:
    """`is_alive`: the API answers. `is_ready`: everything behind it does too; else `missing` lists what does
    not.
    """

    alive: bool
    ready: bool
    missing: str = ""


async def look(base_url: str, timeout_s: float = 2.0) -> Health:
    """Requests `/readyz` once. Never raises for a service that is down."""
    return await asyncio.to_thread(_look, base_url, timeout_s)


async def wait_until_alive(base_url: str) -> None:
    """Returns once the API answers at all. Has no timeout of its own."""
    while not (await look(base_url)).alive:  # noqa: ASYNC110  another process's state
        await asyncio.sleep(0.05)


async def wait_until_ready(base_url: str) -> None:
    """Returns once the API reports that it is ready. Has no timeout of its own."""
    while not (await look(base_url)).ready:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _look(base_url: str, timeout_s: float) -> Health:
    parts = urlsplit(base_url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return Health(alive=False, ready=False, missing="api")
    finally:
        connection.close()
    missing = _missing(body)
    return Health(alive=True, ready=answer.status == 200 and not missing, missing=missing)


def _missing(body: bytes) -> str:
    """Returns what is not ready; of several bases, one without engines is, although the others serve."""
    try:
        document: Any = json.loads(body)
        return ", ".join(document["not_ready"])
    except (ValueError, KeyError, TypeError):
        return "unknown"
