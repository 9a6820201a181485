"""`/v1/files` behind uvicorn: the stock client, and bodies that no client of good will sends."""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tenants.context import TenantContext
from tenants.views import PlanView
from tests.api.conftest import wait_until
from tests.api.fakes import ADMIN_KEY, KEY, OTHER_KEY, RESTRICTED_KEY
from tests.api.file_server import IMPATIENT, LIMITS, FileServer, file_server
from tests.api.test_edge import read_answer
from tests.support.s3_server import S3Server, start_s3_server
from tests.support.weights import CONFIG, safetensors_file
from tokenization.codec import TextCodec

WEIGHTS = safetensors_file(300_000)
BOUNDARY = "--------boundary"


@pytest.fixture
def server(codec: TextCodec, database_url: str, tmp_path: Path) -> Iterator[FileServer]:
    with file_server(codec, database_url, tmp_path / "objects") as running:
        yield running


@pytest.fixture
def impatient(codec: TextCodec, database_url: str, tmp_path: Path) -> Iterator[FileServer]:
    """Waits half a second for the next bytes."""
    with file_server(codec, database_url, tmp_path / "objects", limits=IMPATIENT) as running:
        yield running


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    server = start_s3_server()
    yield server
    server.kill()


def form(*parts: tuple[str, bytes] | tuple[str, bytes, str], end: bool = True) -> bytes:
    """A body; parts with a third item are files of that name."""
    body = b""
    for name, data, *filename in parts:
        said = f'form-data; name="{name}"' + (f'; filename="{filename[0]}"' if filename else "")
        body += f"--{BOUNDARY}\r\ncontent-disposition: {said}\r\n\r\n".encode() + data + b"\r\n"
    return body + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


def head(server: FileServer | None, length: int | None, path: str = "/v1/files", key: str = KEY) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "host: test",
        f"authorization: Bearer {key}",
        f"content-type: multipart/form-data; boundary={BOUNDARY}",
        "transfer-encoding: chunked" if length is None else f"content-length: {length}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def post(server: FileServer, body: bytes, path: str = "/v1/files", **headers: str) -> httpx.Response:
    headers = {
        "authorization": f"Bearer {KEY}",
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        **headers,
    }
    return httpx.post(server.url + path, content=body, headers=headers, timeout=30)


def assert_refused(answer: httpx.Response, status: int, code: str, param: str | None) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_the_stock_client(
    kind: str, codec: TextCodec, database_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = None
    if kind == "s3":
        store = request.getfixturevalue("s3_server").store("files", tmp_path / "scratch")
    with file_server(codec, database_url, tmp_path / "objects", store) as server:
        client = server.client()
        weights = client.files.create(file=("adapter_model.safetensors", WEIGHTS), purpose="adapter")  # type: ignore[arg-type]
        path = tmp_path / "adapter_config.json"
        path.write_bytes(CONFIG)
        config = client.files.create(
            file=path,
            purpose="adapter",  # type: ignore[arg-type]
            expires_after={"anchor": "created_at", "seconds": 7200},
        )
        assert (weights.object, weights.bytes, weights.filename) == (
            "file", len(WEIGHTS), "adapter_model.safetensors",
        )  # fmt: skip
        assert (weights.purpose, weights.status, weights.expires_at) == ("adapter", "processed", None)
        assert abs(weights.created_at - time.time()) < 10
        assert weights.model_extra == {"sha256": hashlib.sha256(WEIGHTS).hexdigest()}
        assert config.expires_at == config.created_at + 7200
        assert client.files.retrieve(weights.id) == weights
        assert client.files.content(weights.id).read() == WEIGHTS
        assert [file.id for file in client.files.list()] == [config.id, weights.id]
        assert [file.id for file in client.files.list(limit=1, order="asc")] == [weights.id, config.id]
        assert list(client.files.list(purpose="calibration")) == []
        gone = client.files.delete(weights.id)
        assert (gone.id, gone.deleted, gone.object) == (weights.id, True, "file")
        for call in (client.files.retrieve, client.files.delete, client.files.content):
            with pytest.raises(openai.NotFoundError):
                call(weights.id)
        client.files.delete(config.id)
        assert server.left() == []


def test_what_the_sandbox_refuses(server: FileServer) -> None:
    lying = (2**40).to_bytes(8, "little") + WEIGHTS[8:]
    answer = post(server, form(("purpose", b"adapter"), ("file", lying, "adapter_model.safetensors")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "adapter_invalid")
    assert answer.json()["error"]["param"]
    bad = json.dumps({**json.loads(CONFIG), "use_dora": True}).encode()
    answer = post(server, form(("purpose", b"adapter"), ("file", bad, "adapter_config.json")))
    assert_refused(answer, 422, "adapter_invalid", "use_dora")
    assert server.left() == []
    assert server.client().files.list().data == []


@pytest.mark.parametrize("filename", ["adapter_model.bin", "adapter_model.pt", "a.zip", "a.tar.gz", "a"])
def test_pickles_and_archives(server: FileServer, filename: str) -> None:
    for parts in (
        (("purpose", b"adapter"), ("file", b"x", filename)),
        (("file", b"x", filename), ("purpose", b"adapter")),
    ):
        assert_refused(post(server, form(*parts)), 415, "unsupported_media_type", "file")
    assert server.left() == []


FILE = ("file", WEIGHTS, "adapter_model.safetensors")
PURPOSE = ("purpose", b"adapter")
ANCHOR, SECONDS = ("expires_after[anchor]", b"created_at"), ("expires_after[seconds]", b"7200")


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (form(FILE), 400, "invalid_value", "purpose"),
        (form(PURPOSE), 400, "invalid_value", "file"),
        (form(), 400, "invalid_value", "file"),
        (b"", 400, "invalid_value", "file"),
        (b"no form at all", 400, "invalid_value", "file"),
        (form(PURPOSE, FILE, FILE), 400, "invalid_value", "file"),
        (form(FILE, PURPOSE, FILE), 400, "invalid_value", "file"),
        (form(FILE, PURPOSE, PURPOSE), 400, "invalid_value", "purpose"),
        (form(FILE, PURPOSE, ("colour", b"red")), 400, "unsupported_parameter", "colour"),
        (form(("colour", b"red"), FILE, PURPOSE), 400, "unsupported_parameter", "colour"),
        (form(FILE, ("purpose", b"assistants")), 400, "invalid_value", "purpose"),
        (form(("purpose", b"x" * 5000), FILE), 400, "invalid_value", "purpose"),
        (form(("purpose", b"\xff"), FILE), 400, "invalid_value", "purpose"),
        (form(PURPOSE, ("file", WEIGHTS)), 400, "invalid_value", "file"),
        (form(PURPOSE, ("file", b"", "a.json")), 400, "invalid_value", "file"),
        (form(PURPOSE, ("file", b"{}", "../a.json")), 400, "invalid_value", "file"),
        (form(PURPOSE, FILE, ("", b"x")), 400, "invalid_value", "file"),
        (form(PURPOSE, FILE, end=False), 400, "invalid_value", "file"),
        (form(PURPOSE, FILE)[:-200_000], 400, "invalid_value", "file"),
        (form(PURPOSE, FILE)[:60], 400, "invalid_value", "file"),
        (form(*(("purpose", b"x"),) * 20), 400, "invalid_value", "purpose"),
        (form(FILE, PURPOSE, SECONDS), 400, "invalid_value", "expires_after[anchor]"),
        (form(FILE, PURPOSE, ANCHOR), 400, "invalid_value", "expires_after[seconds]"),
        (form(FILE, PURPOSE, ANCHOR, (SECONDS[0], b"5")), 400, "invalid_value", "expires_after"),
        (form(FILE, PURPOSE, ANCHOR, (SECONDS[0], b"soon")), 400, "invalid_value", SECONDS[0]),
    ],
)
def test_forms_that_are_wrong(server: FileServer, body: bytes, status: int, code: str, param: str) -> None:
    assert_refused(post(server, body), status, code, param)
    assert server.left() == []
    assert server.client().files.list().data == []


@pytest.mark.parametrize(
    "parts",
    [(PURPOSE, SECONDS, FILE, ANCHOR), (PURPOSE, ANCHOR, FILE, SECONDS), (ANCHOR, FILE, SECONDS, PURPOSE)],
)
def test_fields_come_in_any_order(server: FileServer, parts: tuple[Any, ...]) -> None:
    made = post(server, form(*parts)).json()
    assert made["expires_at"] == made["created_at"] + 7200


@pytest.mark.parametrize(
    ("content_type", "status", "code", "param"),
    [
        ("multipart/form-data", 400, "invalid_value", "content-type"),
        ("multipart/form-data; boundary=", 400, "invalid_value", "content-type"),
        (f"multipart/form-data; boundary={'b' * 300}", 400, "invalid_value", "content-type"),
        ("multipart/form-data; boundary=another", 400, "invalid_value", "file"),
        ("application/json", 415, "unsupported_media_type", None),
        ("", 415, "unsupported_media_type", None),
    ],
)
def test_content_types_that_are_wrong(
    server: FileServer, content_type: str, status: int, code: str, param: str | None
) -> None:
    answer = post(server, form(PURPOSE, FILE), **{"content-type": content_type})
    assert_refused(answer, status, code, param)
    assert server.left() == []


def test_fields_may_stand_on_either_side_of_the_file(server: FileServer) -> None:
    for parts in ((PURPOSE, FILE), (FILE, PURPOSE)):
        assert post(server, form(*parts)).json()["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()
    odd = ("file", WEIGHTS, "ünïcödé.safetensors")
    assert post(server, form(odd, PURPOSE)).json()["filename"] == "ünïcödé.safetensors"


def test_a_body_in_tiny_pieces(server: FileServer) -> None:
    """Boundaries cut anywhere, even through content that looks like one."""
    tricky = f"\r\n--{BOUNDARY[:-1]}\r\n--{BOUNDARY}x"[:-2].encode() * 50
    body = form(("file", tricky, "s.jsonl"), ("purpose", b"calibration"))
    for size in (1, 7, 61):
        with socket.create_connection((server.host, server.port), timeout=20) as opened:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.sendall(head(server, None))
            for begin in range(0, len(body), size):
                piece = body[begin : begin + size]
                opened.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            opened.sendall(b"0\r\n\r\n")
            status, _, answer = read_answer(opened)
        assert status == 200, answer
        assert json.loads(answer)["sha256"] == hashlib.sha256(tricky).hexdigest()


def small_plan(server: FileServer, max_file_bytes: int) -> None:
    plan = PlanView("plan_x", "x", max_file_bytes=max_file_bytes)
    server.world.keys.callers[KEY] = TenantContext("ten_one", "One", "key_one", "inference", plan=plan)


def test_the_plans_limit(server: FileServer) -> None:
    small_plan(server, len(WEIGHTS))
    assert post(server, form(PURPOSE, FILE)).status_code == 200
    small_plan(server, len(WEIGHTS) - 1)
    kept = server.left()
    assert_refused(post(server, form(PURPOSE, FILE)), 413, "file_too_large", "file")
    assert server.left() == kept
    # By its declared length it is refused before any of it came.
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, 100_000_000))
        status, headers, answer = read_answer(opened)
    assert (status, json.loads(answer)["error"]["param"]) == (413, "file")
    assert headers["connection"] == "close"


def test_the_processs_own_limit(server: FileServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, 10**12))
        status, headers, answer = read_answer(opened)
        assert (status, json.loads(answer)["error"]["code"]) == (413, "file_too_large")
        assert headers["connection"] == "close"
    # Elsewhere the limit is what it was.
    assert post(server, b"x" * 1_100_000, "/v1/files/file_1").status_code == 413
    assert post(server, b"x" * 1_100_000, "/v1/uploads").status_code == 413


def test_a_body_that_breaks_off_leaves_nothing(server: FileServer) -> None:
    body = form(PURPOSE, FILE)
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, len(body)) + body[:100_000])
        wait_until(lambda: server.left())
    wait_until(lambda: not server.left())
    http = server.world.services.metrics._http
    wait_until(lambda: http.labels("POST", "/v1/files", "499")._value.get() == 1)
    assert server.client().files.list().data == []


def test_a_declared_length_that_is_a_lie(server: FileServer) -> None:
    body = form(PURPOSE, FILE)
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, len(body) + 10) + body)  # the form is whole: nobody waits for the rest
        assert read_answer(opened)[0] == 200
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        # Either the form is found cut short, or the server's parser trips over what follows it first.
        opened.sendall(head(server, len(body) - 10) + body)
        assert read_answer(opened)[0] == 400
    assert len(server.client().files.list().data) == 1


def test_a_body_that_stops_is_given_up(impatient: FileServer) -> None:
    body = form(PURPOSE, FILE)
    with socket.create_connection((impatient.host, impatient.port), timeout=30) as opened:
        began = time.monotonic()
        opened.sendall(head(impatient, len(body)) + body[:250_000])
        status, _, answer = read_answer(opened)  # nothing more for 0.5 s
    assert (status, json.loads(answer)["error"]["code"]) == (408, "request_timeout")
    assert 0.4 < time.monotonic() - began < LIMITS.body_timeout / 2
    assert impatient.left() == []


def test_a_body_that_drips_is_given_up_though_it_never_stops(impatient: FileServer) -> None:
    body = form(PURPOSE, FILE)
    with socket.create_connection((impatient.host, impatient.port), timeout=30) as opened:
        began = time.monotonic()
        opened.sendall(head(impatient, len(body)) + body[:1000])
        opened.settimeout(0.05)
        sent = 1000
        answer = b""
        while not answer:
            assert time.monotonic() - began < LIMITS.body_timeout / 2, "it is still waited for"
            try:
                answer = opened.recv(65536)
            except TimeoutError:
                opened.sendall(body[sent : sent + 50])  # a thousand bytes per second: the least is 100 000
                sent += 50
    assert answer.startswith(b"HTTP/1.1 408")
    assert impatient.left() == []


def test_a_slow_body_above_the_least_rate_is_taken(impatient: FileServer) -> None:
    """It takes several times as long as other bodies may. One of a few: a stalled machine makes it stop."""
    body = form(PURPOSE, FILE)
    statuses: list[int] = []
    while 200 not in statuses and len(statuses) < 5:
        with socket.create_connection((impatient.host, impatient.port), timeout=30) as opened:
            began = time.monotonic()
            opened.sendall(head(impatient, len(body)))
            statuses.append(408)
            with suppress(ConnectionError):
                for begin in range(0, len(body), 20_000):
                    opened.sendall(body[begin : begin + 20_000])
                    time.sleep(0.1)
                statuses[-1] = read_answer(opened)[0]
    assert statuses[-1] == 200
    assert time.monotonic() - began > 1.4


def test_keys_and_scopes(server: FileServer) -> None:
    made = server.client().files.create(file=("adapter_config.json", CONFIG), purpose="adapter")  # type: ignore[arg-type]
    for key in (ADMIN_KEY, RESTRICTED_KEY):
        client = server.client(key)
        for call in (
            lambda client=client: client.files.create(file=("a.json", CONFIG), purpose="adapter"),
            lambda client=client: client.files.list(),
            lambda client=client: client.files.retrieve(made.id),
            lambda client=client: client.files.content(made.id),
            lambda client=client: client.files.delete(made.id),
        ):
            with pytest.raises(openai.PermissionDeniedError):
                call()
    reader = TenantContext("ten_one", "One", "key_r", "inference", frozenset({"files.read"}))
    server.world.keys.callers[KEY] = reader
    assert server.client().files.retrieve(made.id).id == made.id
    with pytest.raises(openai.PermissionDeniedError):
        server.client().files.delete(made.id)
    with pytest.raises(openai.AuthenticationError):
        server.client("sk-none").files.list()


def test_another_tenants_file_and_none_look_the_same(server: FileServer) -> None:
    made = server.client().files.create(file=("adapter_config.json", CONFIG), purpose="adapter")  # type: ignore[arg-type]
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    for method, suffix in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
        answers = [
            httpx.request(method, f"{server.url}/v1/files/{file_id}{suffix}", headers=headers)
            for file_id in (made.id, "file_00000000000000000000000000")
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        first, second = (answer.text for answer in answers)
        assert first.replace(made.id, "file_00000000000000000000000000") == second
    assert server.client(OTHER_KEY).files.list().data == []
    assert server.client().files.content(made.id).read() == CONFIG


def test_queries_that_are_wrong(server: FileServer) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    for query, code, param in [
        ("limit=0", "invalid_value", "limit"),
        ("limit=10001", "invalid_value", "limit"),
        ("order=up", "invalid_value", "order"),
        ("colour=red", "unsupported_parameter", "colour"),
    ]:
        assert_refused(httpx.get(f"{server.url}/v1/files?{query}", headers=headers), 400, code, param)


def test_a_store_that_is_away(codec: TextCodec, database_url: str, tmp_path: Path) -> None:
    s3 = start_s3_server()
    try:
        store = s3.store("away", tmp_path / "scratch", retries=0)
        with file_server(codec, database_url, tmp_path / "objects", store) as server:
            client = server.client()
            made: Any = client.files.create(file=("a.json", CONFIG), purpose="adapter")  # type: ignore[arg-type]
            s3.kill()
            with pytest.raises(openai.InternalServerError) as away:
                client.files.create(file=("b.json", CONFIG), purpose="adapter")  # type: ignore[arg-type]
            assert (away.value.status_code, away.value.code) == (503, "server_is_overloaded")
            assert s3.endpoint not in str(away.value)
            with pytest.raises(openai.InternalServerError) as away:
                client.files.content(made.id)
            assert away.value.status_code == 503
            assert [file.id for file in client.files.list()] == [made.id]
            client.files.delete(made.id)  # the row goes; its bytes are left to the sweep
            assert list((tmp_path / "scratch").iterdir()) == []
    finally:
        s3.kill()


def test_damage_breaks_the_download_off(server: FileServer) -> None:
    made = server.client().files.create(
        file=("a.safetensors", safetensors_file(5_000_000)), purpose="adapter"
    )  # type: ignore[arg-type]
    (path,) = server.left()
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(openai.APIError):  # either of the body's end, or of the connection's
        server.client().files.content(made.id).read()


def test_ids_that_no_row_can_have(server: FileServer) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    for path in ("/v1/files/%00", "/v1/files/a%00b/content", "/v1/uploads/%00", "/v1/files/" + "x" * 5000):
        answer = httpx.get(server.url + path, headers=headers)
        assert_refused(answer, 404, "not_found", None)
        if not path.endswith("content"):
            assert_refused(httpx.delete(server.url + path, headers=headers), *_absent(path))
    answer = httpx.get(f"{server.url}/v1/files?after=%00", headers=headers)
    assert_refused(answer, 400, "invalid_value", "after")


def _absent(path: str) -> tuple[int, str, None]:
    """Uploads are cancelled, not deleted."""
    return (405, "method_not_allowed", None) if "uploads" in path else (404, "not_found", None)
