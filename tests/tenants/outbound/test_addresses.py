"""Where a tenant's URL must not lead, in whatever form it is written, and whoever answers for its name."""

from __future__ import annotations

import pytest

from tenants.outbound.addresses import is_public, pinned_address, read_url, system_resolve
from tenants.outbound.errors import EndpointUnreachable

PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.0.192",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2001:0:7f00:1::",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::101:101"])
def test_what_is(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0"],
)
async def test_forms_that_only_the_resolver_reads(host: str) -> None:
    """Looked at after they are resolved: what they mean, not how they are written."""
    with pytest.raises(EndpointUnreachable):
        await pinned_address(read_url(f"https://{host}/"), system_resolve)


async def test_a_name_is_refused_if_any_of_its_addresses_is_private() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.1"]

    with pytest.raises(EndpointUnreachable, match="public"):
        await pinned_address(read_url("https://mixed.example/"), resolve)


async def test_a_name_that_nobody_knows() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    with pytest.raises(EndpointUnreachable, match="resolved"):
        await pinned_address(read_url("https://nobody.example/"), resolve)


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://example.com/#part",
        "https://example.com/#",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:port/",
        "https://exa mple.com/",
        "https://example.com/\r\nhost: other",
        "https://example.com\\@127.0.0.1/",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://ex\u00e4mple.com/",
        "https://example.com/" + "x" * 2000,
        "",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"^url"):
        read_url(url)


def test_what_is_read_of_a_url() -> None:
    target = read_url("https://Example.com:8443/hook/a?b=c&d=%20")
    assert (target.host, target.port, target.path) == ("example.com", 8443, "/hook/a?b=c&d=%20")
    assert target.authority == "example.com:8443"
    assert read_url("https://[2606:4700::1111]").authority == "[2606:4700::1111]"
    assert read_url("https://example.com?x").path == "/?x"
