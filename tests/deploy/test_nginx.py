"""`deploy/nginx.conf` in a real nginx, before two small servers that say what reached them."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support import unpacked_programs
from tests.support.ports import free_port
from tests.support.waiting import until

CONF = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
MAIN = """
daemon off;
{user}
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/rootstock.conf;
}}
"""


class Upstream(BaseHTTPRequestHandler):
    """Streams two pieces, the second when told to; says what it was asked otherwise."""

    protocol_version = "HTTP/1.1"
    go_on = threading.Event()
    first_arrived = threading.Event()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"6\r\nfirst\n\r\n")
            last = b"second\n" if self.go_on.wait(10) else b"late\n"
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(last), last))
            return
        self._answer({"headers": {name.lower(): value for name, value in self.headers.items()}})

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        received = len(self.rfile.read1(1024))
        self.first_arrived.set()
        while received < length:
            received += len(self.rfile.read(min(65536, length - received)))
        self._answer({"received": received})

    def _answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document | {"port": self.server.server_address[1]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("connection", "close")  # so that a server that was shut down is gone at once
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Site:
    client: httpx.Client
    plain_port: int
    upstreams: list[ThreadingHTTPServer] = field(default_factory=list)


@pytest.fixture(scope="module")
def site(servers_dir: Path) -> Iterator[Site]:
    program, folder = unpacked_programs.program("nginx"), servers_dir / "nginx"
    folder.mkdir()
    upstreams = [ThreadingHTTPServer(("127.0.0.1", 0), Upstream) for _ in range(2)]
    for server in upstreams:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    plain, secure = free_port(), free_port()
    write_certificate(folder)
    shipped = CONF.read_text()
    for before, after in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ", f"listen 127.0.0.1:{secure} "),
        ("    listen [::]:80;\n", ""),
        ("    listen [::]:443 ssl http2;\n", ""),
        ("/etc/ssl/rootstock", str(folder)),
        ("127.0.0.1:8001", f"127.0.0.1:{upstreams[0].server_address[1]}"),
        ("127.0.0.1:8002", f"127.0.0.1:{upstreams[1].server_address[1]}"),
    ):
        assert before in shipped
        shipped = shipped.replace(before, after)
    (folder / "rootstock.conf").write_text(shipped)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
    command = [program, "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    checked = subprocess.run(
        [*command, "-t"], env=unpacked_programs.environment(), capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    nginx = subprocess.Popen(command, env=unpacked_programs.environment())
    context = ssl.create_default_context(cafile=str(folder / "fullchain.pem"))
    try:
        with httpx.Client(base_url=f"https://localhost:{secure}", verify=context, timeout=20) as client:
            until(lambda: answers(secure), 20, "nginx listens")
            yield Site(client, plain, upstreams)
    finally:
        nginx.terminate()
        nginx.wait(20)
        for server in upstreams:
            server.shutdown()
            server.server_close()


def write_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "fullchain.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "privkey.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_first_piece_of_a_stream_goes_out_before_the_second_exists(site: Site) -> None:
    Upstream.go_on.clear()
    with site.client.stream("GET", "/stream") as response:
        pieces = response.iter_raw()
        assert next(pieces) == b"first\n"
        Upstream.go_on.set()
        assert b"".join(pieces) == b"second\n"


def test_an_upload_is_passed_on_as_it_comes_and_not_bounded(site: Site) -> None:
    Upstream.first_arrived.clear()
    size = 3 << 20

    def body() -> Iterator[bytes]:
        yield b"x" * (size // 2)
        assert Upstream.first_arrived.wait(20), "nginx kept the body until it was whole"
        yield b"x" * (size // 2)

    answer = site.client.post("/v1/files", content=body(), headers={"content-length": str(size)})
    assert answer.json()["received"] == size


def test_what_a_client_claims_of_itself_is_dropped(site: Site) -> None:
    claims = {"x-forwarded-for": "10.9.8.7", "x-forwarded-proto": "http"}
    headers = site.client.get("/v1/models", headers=claims).json()["headers"]
    assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert headers["host"] == "localhost"


def test_metrics_are_not_passed_on(site: Site) -> None:
    assert site.client.get("/metrics").status_code == 404


def test_plain_http_is_sent_to_tls(site: Site) -> None:
    answer = httpx.get(
        f"http://127.0.0.1:{site.plain_port}/v1/models?a=b", headers={"host": "rootstock.example"}
    )
    assert (answer.status_code, answer.headers["location"]) == (
        308,
        "https://rootstock.example/v1/models?a=b",
    )


def test_a_process_that_restarts_costs_no_request_and_is_asked_again_at_once(site: Site) -> None:
    def ports(number: int) -> set[int]:
        return {site.client.get("/v1/models").json()["port"] for _ in range(number)}

    first, second = (server.server_address[1] for server in site.upstreams)
    assert ports(8) == {first, second}
    site.upstreams[0].shutdown()
    site.upstreams[0].server_close()
    assert ports(8) == {second}
    site.upstreams[0] = ThreadingHTTPServer(("127.0.0.1", first), Upstream)
    threading.Thread(target=site.upstreams[0].serve_forever, daemon=True).start()
    began = time.monotonic()
    while ports(2) != {first, second}:
        assert time.monotonic() - began < 5, "shut out for seconds, as with max_fails=1"
