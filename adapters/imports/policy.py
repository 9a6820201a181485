"""Decides which endpoints tenants may import from. The operator lists them; the addresses behind them are
checked at each request (`client`).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from adapters.errors import InvalidAdapter
from adapters.imports.sources import BucketSource, HubSource, Source
from tenants.outbound.addresses import Target, read_url

AWS = "aws"
_AWS_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,12}){1,3}-[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class ImportPolicy:
    """What the operator allows. URLs have no slash at their end."""

    hubs: tuple[str, ...] = ("https://huggingface.co",)
    """The default first."""
    s3_endpoints: tuple[str, ...] = (AWS,)
    private_hosts: frozenset[str] = frozenset()
    """Hosts, with their ports where these are not the scheme's, that may have private addresses and speak
    HTTP."""
    timeout: float = 30.0
    min_rate: float = 64 * 1024

    def admitted(self, source: Source) -> Source:
        """Returns the source with its endpoint. Raises InvalidAdapter naming the field."""
        if isinstance(source, HubSource):
            if not self.hubs:
                raise InvalidAdapter("source.type", "imports from hubs are disabled here: upload the files")
            endpoint = self._listed(source.endpoint or self.hubs[0], self.hubs)
            return dataclasses.replace(source, endpoint=endpoint)
        if not self.s3_endpoints:
            raise InvalidAdapter("source.type", "imports from S3 are disabled here: upload the files")
        if source.endpoint is None and AWS in self.s3_endpoints:
            if _AWS_REGION.fullmatch(source.region) is None:
                raise InvalidAdapter("source.region", f"{source.region!r} is no region of Amazon's")
            return source
        if source.endpoint is None:
            named = ", ".join(self.s3_endpoints)
            raise InvalidAdapter("source.endpoint", f"Amazon S3 is not allowed here: give one of {named}")
        return dataclasses.replace(source, endpoint=self._listed(source.endpoint, self.s3_endpoints))

    def is_private(self, target: Target) -> bool:
        """Returns whether the operator vouches for the host: it may be private, and speak HTTP."""
        return target.authority in self.private_hosts or target.host in self.private_hosts

    def _listed(self, endpoint: str, allowed: tuple[str, ...]) -> str:
        wanted = endpoint.rstrip("/")
        if wanted == AWS or wanted not in allowed:
            named = ", ".join(url for url in allowed if url != AWS) or "none"
            raise InvalidAdapter(
                "source.endpoint", f"{endpoint[:80]!r} is not allowed; the operator allows: {named}"
            )
        target = read_url(wanted, http_allowed=True)
        if target.scheme == "http" and not self.is_private(target):
            raise InvalidAdapter("source.endpoint", "it must begin with https://")
        return wanted


def bucket_url(source: BucketSource) -> str:
    """Returns the bucket's URL. Amazon's are addressed by host where the name allows it, others by path."""
    if source.endpoint is not None:
        return f"{source.endpoint}/{source.bucket}"
    domain = "amazonaws.com.cn" if source.region.startswith("cn-") else "amazonaws.com"
    if "." in source.bucket:  # the certificate covers one label
        return f"https://s3.{source.region}.{domain}/{source.bucket}"
    return f"https://{source.bucket}.s3.{source.region}.{domain}"
