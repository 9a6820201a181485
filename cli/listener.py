"""Opens the socket `rootstock up` serves on; the API process inherits it.

Because the supervisor holds the socket, a port that is in use is noticed before anything starts, and while
the API process restarts, connections wait in the backlog instead of being refused.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from cli.errors import CliError

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening, inheritable socket; port 0 picks a free one. Raises `CliError` if that fails."""
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
                f"port {port} of {host} is in use: stop the program that uses it or pass another --port"
            ) from None
        raise CliError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


def visiting_url(listener: socket.socket) -> str:
    """Returns the URL of the socket on this machine: a wildcard address is reached over loopback."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
