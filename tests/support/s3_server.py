"""A server that speaks S3, in a process of its own: moto's, which enforces S3's rules on parts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from adapters.storage import AccessKey, RetryPolicy, S3Store
from tests.support.ports import free_port

BUCKET = "rootstock"
KEYS_OF_A_PAGE = 50
"""In a list; S3 itself has 1 000, which take moto ten seconds to store."""


@dataclass
class S3Server:
    port: int
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str = BUCKET) -> None:
        httpx.put(f"{self.endpoint}/{name}").raise_for_status()

    def tamper(self, path: str, data: bytes, sha256: str) -> None:
        """Put other bytes below a digest, as a bucket's owner or a broken disk could."""
        url = f"{self.endpoint}/{BUCKET}/{path}"
        httpx.put(url, content=data, headers={"x-amz-meta-sha256": sha256}).raise_for_status()

    def settings(self, prefix: str) -> dict[str, str]:
        """ROOTSTOCK_STORAGE_* of a process that uses it."""
        return {
            "ROOTSTOCK_STORAGE_URL": f"s3://{BUCKET}/{prefix}",
            "ROOTSTOCK_STORAGE_ENDPOINT": self.endpoint,
            "ROOTSTOCK_STORAGE_ACCESS_KEY_ID": "test",
            "ROOTSTOCK_STORAGE_SECRET_ACCESS_KEY": "test",
        }

    def store(self, prefix: str, scratch: Path, retries: int = 1) -> S3Store:
        return S3Store(
            BUCKET,
            prefix,
            scratch=scratch,
            endpoint=self.endpoint,
            access_key=AccessKey("test", "test"),
            retry_policy=RetryPolicy(timeout=10, connect_timeout=1, retries=retries, retry_timeout=3),
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


def start_s3_server() -> S3Server:
    """Start one with an empty bucket; the caller kills it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environment = os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": str(KEYS_OF_A_PAGE)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = S3Server(port, process)
    end = time.monotonic() + 60
    while True:
        try:
            server.bucket()
            return server
        except httpx.TransportError:
            assert process.poll() is None, "the S3 server ended"
            assert time.monotonic() < end, "the S3 server does not answer"
            time.sleep(0.05)
