"""Checks which addresses a tenant's URL leads to: only public ones, however they are written.

The URL is parsed and its host resolved once, so the address that was checked is the one connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

from tenants.outbound.errors import AddressRefused, EndpointUnreachable

MAX_URL = 2_000
_PORT = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
URL = (
    rf"https://([A-Za-z0-9_][A-Za-z0-9._-]{{0,252}}|\[[0-9A-Fa-f:.]{{2,45}}\])(:{_PORT})?"
    r"([/?][!$-;=?-Z\[\]_a-z~]*)?"
)
"""Pattern of URLs in the OpenAPI document; `read_url` decides."""
_CARRYING = (
    # IPv6 networks whose addresses embed an IPv4 address, and its shift: NAT64 (two prefixes), 6to4.
    (IPv6Network("64:ff9b::/96"), 0),
    (IPv6Network("64:ff9b:1::/48"), 0),
    (IPv6Network("2002::/16"), 80),
    (IPv6Network("::/96"), 0),
)

_PUBLIC_V6 = (IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96"))
_SPECIAL_V4 = tuple(
    # Protocol assignments, among them cloud metadata, and 6to4 relays: `ipaddress` calls them global.
    IPv4Network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24")
)

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(host, port) -> addresses. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL, parsed once."""

    scheme: str
    host: str
    port: int
    path: str
    """The path with its query."""

    @property
    def authority(self) -> str:
        """The host and port as in the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"https": 443, "http": 80}[self.scheme] else f"{host}:{self.port}"


def read_url(url: str, *, http_allowed: bool = False, max_length: int = MAX_URL) -> Target:
    """Parses a URL. Raises ValueError naming the field."""
    if (
        len(url) > max_length
        or not url.isascii()
        or not url.isprintable()
        or any(c in url for c in ' "<>\\^`{|}')
    ):
        raise ValueError(f"url must be at most {max_length} printable characters of ASCII, without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"url cannot be read: {error}") from error
    if parts.scheme != "https" and not (http_allowed and parts.scheme == "http"):
        raise ValueError("url must begin with https://")
    if not parts.hostname or "@" in parts.netloc:
        raise ValueError("url must name a host, and no user")
    if parts.fragment or url.endswith("#"):
        raise ValueError("url must have no fragment")
    if port == 0 or "%" in parts.hostname:
        raise ValueError("url must name a host and a port that can be connected to")
    path = parts.path or "/"
    return Target(
        parts.scheme,
        parts.hostname,
        port or {"https": 443, "http": 80}[parts.scheme],
        f"{path}?{parts.query}" if parts.query else path,
    )


def is_public(address: str) -> bool:
    """Whether the address is on the public internet, and so is every address embedded in it."""
    found = ip_address(address)
    if isinstance(found, IPv4Address):
        return _is_public_v4(found)
    carried = _carried(found)
    if not any(found in network for network in _PUBLIC_V6) or not (found.is_global or carried):
        return False
    return all(map(_is_public_v4, carried))


def _is_public_v4(address: IPv4Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in _SPECIAL_V4)


def _carried(address: IPv6Address) -> list[IPv4Address]:
    found = [IPv4Address((int(address) >> shift) & 0xFFFFFFFF) for net, shift in _CARRYING if address in net]
    if address.ipv4_mapped is not None:
        found.append(address.ipv4_mapped)
    if address.teredo is not None:
        found += address.teredo
    return found


async def system_resolve(host: str, port: int) -> list[str]:
    """Returns the addresses from the system's resolver, which accepts `127.1` and `0x7f000001` too."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def pinned_address(target: Target, resolve: Resolve, *, private_allowed: bool = False) -> str:
    """Returns the address to connect to. A name that resolves to any private address is rejected, because
    the resolver's order would decide between them.

    Raises EndpointUnreachable; AddressRefused if an address is private.
    """
    try:
        addresses = await resolve(target.host, target.port)
    except (OSError, UnicodeError) as error:
        raise EndpointUnreachable("its host cannot be resolved") from error
    if not addresses:
        raise EndpointUnreachable("its host cannot be resolved")
    if not private_allowed and not all(map(is_public, addresses)):
        raise AddressRefused("its host is no public address")
    return addresses[0]
