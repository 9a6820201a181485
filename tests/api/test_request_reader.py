"""What clients may send before a request is understood: bytes, seconds and syntax, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from api.request_reader import MAX_HEAD_BYTES
from tests.api.conftest import Served, build, serving, wait_until
from tests.api.test_edge import BODY, connection, head, read_answer
from tokenization.codec import TextCodec

GET = b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n"
SOON = 0.4
"""Seconds of the limits on time here."""
FLOOD = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def running(codec: TextCodec) -> Iterator[Served]:
    """One server for all tests that leave it as it was."""
    with serving(build(codec)) as served:
        yield served


@pytest.fixture(scope="module")
def impatient(codec: TextCodec) -> Iterator[Served]:
    """The same with a short limit on the time of a request's head."""
    with serving(build(codec), head_timeout=SOON) as served:
        yield served


def refused(opened: socket.socket) -> tuple[int, str]:
    """Status and code of an error in the API's envelope, after which the server closes the connection."""
    status, headers, body = read_answer(opened)
    assert headers["x-request-id"].startswith("req_")
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert opened.recv(1) == b""
    return status, error["code"]


def sent_until_closed(opened: socket.socket, piece: bytes) -> int:
    """How many bytes of a flood the server takes before it has answered or gone."""
    opened.setblocking(False)
    num_sent = 0
    end = time.monotonic() + 5
    while num_sent < FLOOD and time.monotonic() < end:
        try:
            if opened.recv(1, socket.MSG_PEEK) is not None:
                break
        except BlockingIOError:
            pass
        except ConnectionError:
            break
        try:
            num_sent += opened.send(piece)
        except BlockingIOError:
            time.sleep(0.001)
        except ConnectionError:
            break
    opened.settimeout(30)
    return num_sent


# Size -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /livez HTTP/1.1\r\nhost: test\r\nx-filler: ",
        b"GET /livez HTTP/1.1\r\nhost: test\r\n",
        b"GET /livez?",
        b"GET /livez HTTP/1.1\r\nhost: test\r\n" + b"x" * 100,
        b"",
    ],
    ids=["one line", "many lines", "target", "name", "empty lines"],
)
def test_a_head_that_never_ends_is_refused(running: Served, begin: bytes) -> None:
    piece = {b"": b"\r\n" * 512}.get(begin, b"x" * 1024)
    if begin.endswith(b"test\r\n"):
        piece = b"x-filler: " + b"x" * 1000 + b"\r\n"
    with connection(running) as opened:
        opened.sendall(begin)
        sent = sent_until_closed(opened, piece)
        assert sent < FLOOD, "the server took all of it"
        assert refused(opened) == (431, "headers_too_large")


@pytest.mark.parametrize("too_many", [0, 1])
def test_the_limit_is_exact(running: Served, too_many: int) -> None:
    begin = b"GET /livez HTTP/1.1\r\nhost: test\r\nx-filler: "
    request = begin + b"x" * (MAX_HEAD_BYTES - len(begin) - 4 + too_many) + b"\r\n\r\n"
    with connection(running) as opened:
        opened.sendall(request)
        assert read_answer(opened)[0] == (431 if too_many else 200)


def test_the_limit_is_for_each_request(running: Served) -> None:
    request = b"GET /livez HTTP/1.1\r\nhost: test\r\nx-filler: " + b"x" * 40_000 + b"\r\n\r\n"
    with connection(running) as opened:
        for _ in range(4):
            opened.sendall(request)
            assert read_answer(opened)[0] == 200


def test_trailers_are_bounded_too(running: Served) -> None:
    with connection(running) as opened:
        opened.sendall(head(content_type="application/json", transfer_encoding="chunked"))
        opened.sendall(b"2\r\n{}\r\n0\r\nx-filler: ")
        assert sent_until_closed(opened, b"x" * 1024) < FLOOD
        assert refused(opened) == (431, "headers_too_large")


def test_bodies_do_not_count(running: Served) -> None:
    filler = json.dumps("x" * 300_000).encode()
    body = BODY.replace(b'"x"', filler)
    with connection(running) as opened:
        for _ in range(2):
            opened.sendall(head(content_type="application/json", content_length=len(body)) + body)
            status, _, answer = read_answer(opened)
            assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")


# Time -----------------------------------------------------------------------------------------------------


def test_a_connection_that_sends_nothing_is_closed(impatient: Served) -> None:
    with connection(impatient) as opened:
        assert opened.recv(1) == b""


@pytest.mark.quiet
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_head_that_dribbles_is_refused(impatient: Served, asked_before: bool) -> None:
    with connection(impatient) as opened:
        if asked_before:
            opened.sendall(GET)
            assert read_answer(opened)[0] == 200
        opened.setblocking(False)
        began = time.monotonic()
        answered = False
        for byte in GET * 8:
            try:
                opened.send(bytes([byte]))
                answered = bool(opened.recv(1, socket.MSG_PEEK))
                break
            except BlockingIOError:
                time.sleep(SOON / 10)
        assert answered
        assert time.monotonic() - began < 30 * SOON
        opened.settimeout(30)
        assert refused(opened) == (408, "request_timeout")


def test_empty_lines_do_not_keep_a_connection_open(impatient: Served) -> None:
    with connection(impatient) as opened:
        opened.sendall(GET)
        assert read_answer(opened)[0] == 200
        opened.sendall(b"\r\n")
        assert opened.recv(1) in (b"", b"H"), "closed, or told that the request did not come in time"


def test_an_idle_connection_outlives_the_limit_of_a_head(impatient: Served) -> None:
    with connection(impatient) as opened:
        for _ in range(2):
            opened.sendall(GET)
            assert read_answer(opened)[0] == 200
            time.sleep(2 * SOON)


def test_what_is_left_of_a_refused_body_has_a_limit(codec: TextCodec) -> None:
    with serving(build(codec), head_timeout=SOON, keep_alive=1) as served, connection(served) as opened:
        opened.sendall(head(content_length=2_000_000) + b"x")
        assert read_answer(opened)[0] == 413
        opened.setblocking(False)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                opened.send(b"x")
                if opened.recv(1) == b"":
                    break
            except BlockingIOError:
                time.sleep(0.05)
            except ConnectionError:
                break
        assert time.monotonic() < end, "a byte at a time kept the connection open"


def test_a_running_request_is_not_cut(impatient: Served) -> None:
    engine = impatient.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", hang_after=1)
    body = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with connection(impatient) as opened:
        opened.sendall(head(content_type="application/json", content_length=len(body)) + body)
        end = time.monotonic() + 4 * SOON
        while time.monotonic() < end:
            assert opened.recv(65536), "the connection was closed"
    wait_until(lambda: engine.aborted)


# Syntax ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: test\r\nno colon\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: test\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: test\r\ncontent-length: many\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: test\r\nhost: other\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: test\r\nHost: test\r\n\r\n",
    ],
)
def test_malformed_requests_get_the_envelope(running: Served, sent: bytes) -> None:
    with connection(running) as opened:
        opened.sendall(sent)
        assert refused(opened) == (400, "invalid_value")


def test_a_malformed_body_gets_the_envelope(running: Served) -> None:
    with connection(running) as opened:
        opened.sendall(head(content_type="application/json", transfer_encoding="chunked") + b"zz\r\n")
        assert refused(opened) == (400, "invalid_value")


def test_garbage_behind_a_request_does_not_get_into_its_answer(served: Served) -> None:
    engine = served.world.engine
    body = json.dumps({**json.loads(BODY), "stream": True}).encode()
    with connection(served) as opened:
        opened.sendall(
            head(content_type="application/json", content_length=len(body)) + body + b"garbage\r\n\r\n"
        )
        answer = b""
        while piece := opened.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert engine.submitted


# HTTP/1.0 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_gets_bodies_as_they_are(served: Served, stream: bool) -> None:
    body = json.dumps({**json.loads(BODY), "stream": stream}).encode()
    request = head(content_type="application/json", content_length=len(body)).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    )
    with connection(served) as opened:
        opened.sendall(request + body)
        answer = b""
        while piece := opened.recv(65536):
            answer += piece
    top, _, content = answer.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding" not in top.lower()
    assert b"connection: close" in top.lower()
    if stream:
        events = [line for line in content.split(b"\n\n") if line]
        assert all(event.startswith((b"data: ", b": ")) for event in events)
        assert events[-1] == b"data: [DONE]"
    else:
        assert json.loads(content)["object"] == "chat.completion"


def test_http_1_0_head_requests_have_no_body(served: Served) -> None:
    with connection(served) as opened:
        opened.sendall(b"HEAD /metrics HTTP/1.0\r\n\r\n")
        answer = b""
        while piece := opened.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")
