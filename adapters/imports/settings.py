"""Reads what may be imported from where, from ROOTSTOCK_IMPORT_*. Only the processes' mains build it."""

from __future__ import annotations

import re

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from adapters.imports.policy import ImportPolicy
from tenants.outbound.addresses import read_url

_HOST = re.compile(r"([a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


class ImportSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_IMPORT_")

    hubs: str = "https://huggingface.co"
    """URLs of the hubs that tenants may import from, separated by commas, the default first. Empty: none."""
    s3_endpoints: str = "aws"
    """URLs of the S3 servers that tenants may import from, separated by commas; `aws` stands for Amazon's.
    Empty: none."""
    private_hosts: str = ""
    """Hosts of these, `host` or `host:port`, separated by commas, that may have private addresses and speak
    plain HTTP: own mirrors. Every other host must have public addresses only."""
    timeout: float = Field(default=30.0, gt=0, le=600)
    """Seconds to connect, and without a byte, after which a request is tried again."""
    min_rate: float = Field(default=64 * 1024, gt=0)
    """Lowest average rate of a download, in bytes per second; a slower one fails."""

    def policy(self) -> ImportPolicy:
        return ImportPolicy(
            hubs=_listed(self.hubs),
            s3_endpoints=_listed(self.s3_endpoints),
            private_hosts=frozenset(_listed(self.private_hosts)),
            timeout=self.timeout,
            min_rate=self.min_rate,
        )

    @field_validator("hubs", "s3_endpoints")
    @classmethod
    def _are_urls(cls, urls: str) -> str:
        for url in _listed(urls):
            if url != "aws":
                read_url(url, http_allowed=True)
        return urls

    @field_validator("private_hosts")
    @classmethod
    def _are_hosts(cls, hosts: str) -> str:
        for host in _listed(hosts):
            if _HOST.fullmatch(host) is None:
                raise ValueError(f"{host[:80]!r} is no 'host' or 'host:port'")
        return hosts


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
