"""Addresses a key may be used from: reading them as people write them, and telling whether one is inside."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_NETWORKS = 64


def parse_networks(written: Iterable[str]) -> tuple[Network, ...]:
    """Networks or single addresses, as `10.0.0.0/8`, `2001:db8::/32`, `192.0.2.7`; each once, in order.

    Raises ValueError naming the field: also for host bits behind the prefix, which are a slip more often than
    meant.
    """
    networks: set[Network] = set()
    for one in written:
        try:
            networks.add(_plain(ip_network(one)))
        except ValueError as error:
            raise ValueError(f"networks: {str(one)[:60]!r} is no network or address") from error
    if len(networks) > MAX_NETWORKS:
        raise ValueError(f"networks must be at most {MAX_NETWORKS}, not {len(networks)}")
    return tuple(sorted(networks, key=lambda network: (network.version, network)))  # type: ignore[type-var]


def is_inside(address: str | None, networks: tuple[Network, ...]) -> bool:
    """Whether `address` is in one of `networks`; any is where there are none. What is no address is in none:
    a connection over a Unix socket that no proxy spoke for.
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
        return found.ipv4_mapped  # a dual-stack socket's way to write an IPv4 client
    return found


def _plain(network: Network) -> Network:
    """IPv4 networks written as IPv6 mean the same clients."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network
