"""Parses the IP networks that an API key is restricted to, and checks client addresses against them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_NETWORKS = 64
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
NETWORK = (
    rf"({_BYTE}(\.{_BYTE}){{3}}(/(3[0-2]|[12]?[0-9]))?"
    r"|([0-9a-fA-F]{0,4}:){2,7}([0-9a-fA-F]{0,4}|[0-9.]{7,15})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)"
)
"""Pattern that every network of `parse_networks` fits, and some texts that are none."""


def parse_networks(written: Iterable[str]) -> tuple[Network, ...]:
    """Parses networks and single addresses, such as `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`; returns each
    once, sorted.

    Raises ValueError naming the field, also for host bits after the prefix, which are usually a mistake.
    """
    networks: set[Network] = set()
    for one in written:
        try:
            networks.add(_plain(ip_network(one)))
        except ValueError as error:
            raise ValueError(f"networks: {str(one)[:60]!r} is not a network or address") from error
    if len(networks) > MAX_NETWORKS:
        raise ValueError(f"networks must be at most {MAX_NETWORKS}, not {len(networks)}")
    return tuple(sorted(networks, key=lambda network: (network.version, network)))  # type: ignore[type-var]


def is_inside(address: str | None, networks: tuple[Network, ...]) -> bool:
    """Returns whether `address` is in one of `networks`; without networks, every address is. None and invalid
    addresses are in no network: a connection over a Unix socket without a proxy has no address.
    """
    if not networks:
        return True
    found = _address(address or "")
    return found is not None and any(
        network.version == found.version and found in network for network in networks
    )


@lru_cache(maxsize=4096)
def _address(written: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(written.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped  # dual-stack sockets write IPv4 clients so
    return found


def _plain(network: Network) -> Network:
    """Returns IPv4-mapped IPv6 networks as the IPv4 networks that they stand for."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network
