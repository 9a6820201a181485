"""Makes a server on a Unix socket reachable by TCP, as compose's networks make its services."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tcp_port_of(path: Path) -> Iterator[int]:
    """A port of 127.0.0.1 whose connections lead to the socket at `path`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(str(path))
                back = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
                back.start()
                _copy(self.request, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as forwarder:
        forwarder.daemon_threads = True
        threading.Thread(target=forwarder.serve_forever, daemon=True).start()
        yield forwarder.server_address[1]
        forwarder.shutdown()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            to.sendall(piece)
    with contextlib.suppress(OSError):
        to.shutdown(socket.SHUT_WR)
