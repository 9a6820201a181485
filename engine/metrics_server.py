"""Serves an engine's /metrics over HTTP, for Prometheus and for endpoint pickers."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

REUSED_SECONDS = 0.1
"""A picker asks up to twenty times a second, and the text is made on the step loop's interpreter."""
SILENCE_SECONDS = 30.0
"""After which a connection is closed."""


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, scrape: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), scrape)

    def server_bind(self) -> None:
        """Binds without looking up the host's name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)


class MetricsServer:
    """Answers GET /metrics on a thread of its own. `close` it."""

    def __init__(self, host: str, port: int, collector: Collector) -> None:
        """Port 0 picks a free one. Raises OSError when it cannot listen there."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)
        self._lock = threading.Lock()
        self._text = b""
        self._made_at = float("-inf")
        text_of = self._latest

        class Scrape(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = SILENCE_SECONDS

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                body = text_of() if found else b"GET /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", CONTENT_TYPE_LATEST if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Writes no line for each scrape."""

        self._server = _HttpServer(host, port, Scrape)
        self.port: int = self._server.server_address[1]
        """The port as bound."""
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _latest(self) -> bytes:
        with self._lock:
            now = time.monotonic()
            if now - self._made_at > REUSED_SECONDS:
                self._text, self._made_at = generate_latest(self._registry), now
            return self._text
