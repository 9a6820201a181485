"""A client with four endless requests, to be killed: `python -m ...doomed_client ENDPOINT`."""

from __future__ import annotations

import asyncio
import sys

from engine.client import EngineClient
from tests.engine.process.engines import read, submission


async def main(endpoint: str) -> None:
    client = EngineClient(endpoint, "doomed")
    await client.start()
    await client.wait_ready()
    await asyncio.gather(*(read(client.submit(submission(f"d{i}", 5000))) for i in range(4)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
