"""An application behind a real server, for tests that ask it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from tests.support.waiting import eventually


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """The address of `app` behind a server on this very event loop."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        http="httptools",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, seconds=20)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
