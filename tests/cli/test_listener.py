"""The address served on."""

from __future__ import annotations

import socket

import pytest

from cli.errors import CliError
from cli.listener import listen, visiting_url


def test_port_0_takes_a_free_one_and_connections_wait_in_its_backlog() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert visiting_url(listener) == f"http://127.0.0.1:{port}"
        assert listener.get_inheritable()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_wildcard_is_visited_over_loopback() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert visiting_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_ipv6_addresses_are_bracketed() -> None:
    with listen("::1", 0) as listener:
        assert visiting_url(listener) == f"http://[::1]:{listener.getsockname()[1]}"


def test_what_cannot_be_listened_on_is_said() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CliError, match=rf"port {port} of 127\.0\.0\.1 is in use"):
            listen("127.0.0.1", port)
    with pytest.raises(CliError, match=r"cannot listen on --host no\.such\.host\.invalid"):
        listen("no.such.host.invalid", 0)
