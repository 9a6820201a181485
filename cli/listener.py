"""The address `up` serves on: bound by the supervisor and inherited by the API process.

Owns the listening socket. Since the supervisor holds it, a taken port is found before anything is started,
and while a dead API process is started again connections wait in the backlog instead of being refused.
Refuses to know HTTP.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from cli.errors import CliError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening, inheritable socket; port 0 takes a free one. Raises `CliError` saying what is wrong with
    it.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CliError(f"cannot listen on --host {host}: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise CliError(
                f"port {port} of {host} is taken: stop what uses it or pass another --port"
            ) from None
        raise CliError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


def visiting_url(listener: socket.socket) -> str:
    """The URL to visit it under from this machine: a wildcard address is reached over loopback."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
