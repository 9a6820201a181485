"""The edge: bodies too large and too slow, ids, clients that leave, over real sockets."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.api.conftest import LIMITS, Served, build, serving, wait_until
from tests.api.fakes import KEY
from tests.support.speed import calls_of_nothing, times_as_long
from tokenization.codec import TextCodec

AT_ONCE = 12
"""Times 100 000 calls of nothing: 50 ms on the machine of the benchmarks."""
BODY = json.dumps({"model": "sapling", "messages": [{"role": "user", "content": "x"}]}).encode()


@contextmanager
def connection(served: Served) -> Iterator[socket.socket]:
    with socket.create_connection((served.host, served.port), timeout=30) as opened:
        yield opened


def head(path: str = "/v1/chat/completions", **headers: Any) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: test", f"authorization: Bearer {KEY}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def read_answer(opened: socket.socket) -> tuple[int, dict[str, str], bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        received = opened.recv(65536)
        assert received, "closed without an answer"
        data += received
    top, _, body = data.partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    while len(body) < int(headers.get("content-length", 0)):
        body += opened.recv(65536)
    return int(status.split()[1]), headers, body


def test_ten_megabytes_are_refused_at_once(served: Served) -> None:
    payload = head(content_type="application/json", content_length=10_000_000) + b"x" * 10_000_000

    def ask() -> None:
        with connection(served) as opened:
            opened.sendall(payload)
            status, headers, body = read_answer(opened)
        assert status == 413
        assert json.loads(body)["error"]["code"] == "file_too_large"
        assert headers["x-request-id"]
        assert headers["x-should-retry"] == "false"

    assert times_as_long(ask, than=calls_of_nothing(100_000), rounds=20, enough=AT_ONCE) <= AT_ONCE
    assert served.world.engine.submitted == []


def test_a_declared_length_is_refused_before_any_of_it_came(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(head(content_length=2_000_000))
        assert read_answer(opened)[0] == 413
        # The connection stays in step: what was announced is read past, then comes the next request.
        opened.sendall(b"x" * 2_000_000)
        opened.sendall(head(content_type="application/json", content_length=len(BODY)) + BODY)
        assert read_answer(opened)[0] == 200


def test_an_absurd_length_closes_the_connection(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(head(content_length=10**12))
        status, headers, _ = read_answer(opened)
        assert (status, headers["connection"]) == (413, "close")
        assert opened.recv(1) == b""


def test_a_body_without_a_length_is_counted(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(head(content_type="application/json", transfer_encoding="chunked"))
        piece = b"x" * 65536
        for _ in range(17):  # 1.06 MiB over a limit of 1 MiB
            opened.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        status, _, body = read_answer(opened)
        assert status == 413
        assert json.loads(body)["error"]["code"] == "file_too_large"


def test_a_chunked_body_within_the_limit_is_read(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(head(content_type="application/json", transfer_encoding="chunked"))
        for byte in (BODY[:20], BODY[20:50], BODY[50:]):
            opened.sendall(b"%x\r\n%s\r\n" % (len(byte), byte))
            time.sleep(0.02)
        opened.sendall(b"0\r\n\r\n")
        assert read_answer(opened)[0] == 200


def test_a_slow_body_is_given_up(codec: TextCodec) -> None:
    with serving(build(codec, replace(LIMITS, body_timeout=0.5))) as served, connection(served) as opened:
        opened.sendall(head(content_type="application/json", content_length=len(BODY)) + BODY[:10])
        status, headers, body = read_answer(opened)
        assert status == 408
        assert json.loads(body)["error"]["code"] == "request_timeout"
        assert headers["x-should-retry"] == "true"
        assert headers["connection"] == "close"
        assert opened.recv(1) == b""


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
def test_a_compressed_body_is_refused_by_its_encoding(served: Served, encoding: str) -> None:
    body = gzip.compress(BODY)
    with connection(served) as opened:
        json_type = "application/json"
        opened.sendall(
            head(content_type=json_type, content_length=len(body), content_encoding=encoding) + body
        )
        status, headers, answer = read_answer(opened)
        assert (status, headers["accept-encoding"]) == (415, "identity")
        error = json.loads(answer)["error"]
        assert error["code"] == "unsupported_media_type"
        assert f"Content-Encoding '{encoding}'" in error["message"]
        # The connection stays in step.
        plain = head(content_type=json_type, content_length=len(BODY), content_encoding="identity")
        opened.sendall(plain + BODY)
        assert read_answer(opened)[0] == 200


@pytest.mark.parametrize(
    ("offered", "kept"),
    [
        ("trace-0123456789", True),
        ("short", False),
        ("a" * 65, False),
        ("sp ace-0123", False),
        ('quo"te-0123', False),
    ],
)
def test_request_ids_from_outside(served: Served, offered: str, kept: bool) -> None:
    with connection(served) as opened:
        opened.sendall(
            head(content_type="application/json", content_length=len(BODY), x_request_id=offered) + BODY
        )
        answered = read_answer(opened)[1]["x-request-id"]
    assert (answered == offered) is kept
    assert kept or answered.startswith("req_")


def test_ids_stand_on_every_kind_of_answer(served: Served) -> None:
    for request in (b"GET /livez", b"GET /nowhere", b"DELETE /v1/models", b"GET /readyz"):
        with connection(served) as opened:
            opened.sendall(request + b" HTTP/1.1\r\nhost: test\r\n\r\n")
            assert read_answer(opened)[1]["x-request-id"].startswith("req_")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_hangs_up_aborts_its_request(served: Served, stream: bool) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", hang_after=1)
    body = json.dumps({**json.loads(BODY), "stream": stream, "n": 2}).encode()
    with connection(served) as opened:
        opened.sendall(head(content_type="application/json", content_length=len(body)) + body)
        if stream:
            assert opened.recv(20).startswith(b"HTTP/1.1 200")
        wait_until(lambda: engine.submitted)
        assert not engine.aborted
    assert wait_until(lambda: engine.aborted) < 0.3
    assert set(engine.aborted) == {engine.submitted[0].request_id}
    # Nothing of it is left behind.
    metrics = served.world.services.metrics
    wait_until(lambda: metrics.open_streams._value.get() == 0)


def test_hanging_up_before_the_first_token_aborts_too(served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one", hang_after=0)
    body = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with connection(served) as opened:
        opened.sendall(head(content_type="application/json", content_length=len(body)) + body)
        wait_until(lambda: engine.submitted)
    wait_until(lambda: engine.aborted)


def test_hanging_up_aborts_every_prompt_of_a_list(served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", hang_after=1)
    body = json.dumps({"model": "sapling", "prompt": ["a", "b", "c"], "stream": True}).encode()
    with connection(served) as opened:
        opened.sendall(
            head("/v1/completions", content_type="application/json", content_length=len(body)) + body
        )
        assert opened.recv(20).startswith(b"HTTP/1.1 200")
    wait_until(lambda: len(set(engine.aborted)) == 3)


def test_hanging_up_in_the_middle_of_a_body_is_no_error(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(head(content_type="application/json", content_length=len(BODY)) + BODY[:10])
        time.sleep(0.05)
    http = served.world.services.metrics._http
    wait_until(lambda: http.labels("POST", "/v1/chat/completions", "499")._value.get() == 1)
    assert served.world.engine.submitted == []
