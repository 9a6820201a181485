"""Asks a running API how it is. Knows two endpoints and nothing else of it."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Health:
    """`alive`: it answers. `ready`: everything behind it does too; else `missing` says what does not."""

    alive: bool
    ready: bool
    missing: str = ""


async def look(base_url: str, timeout_s: float = 2.0) -> Health:
    """One look at `/readyz`. Never raises for a service that is down."""
    return await asyncio.to_thread(_look, base_url, timeout_s)


async def wait_until_alive(base_url: str) -> None:
    """Return once the API answers at all. Bound it from outside."""
    while not (await look(base_url)).alive:  # noqa: ASYNC110  another process's state
        await asyncio.sleep(0.05)


async def wait_until_ready(base_url: str) -> None:
    """Return once the API says it can serve. Bound it from outside."""
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
    return Health(alive=True, ready=answer.status == 200, missing=_missing(body))


def _missing(body: bytes) -> str:
    try:
        document: Any = json.loads(body)
    except ValueError:
        return "unknown"
    return json.dumps(document)
