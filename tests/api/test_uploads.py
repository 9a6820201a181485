"""`/v1/uploads` behind uvicorn: the stock client, parallel parts, clients that lose their place, memory."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from adapters.files.uploads import MAX_PART_BYTES
from tests.api.conftest import wait_until
from tests.api.fakes import KEY, OTHER_KEY, RESTRICTED_KEY
from tests.api.file_server import IMPATIENT, FileServer, file_server
from tests.api.test_edge import read_answer
from tests.api.test_files import assert_refused, form, head, post, small_plan
from tests.support.s3_server import start_s3_server
from tests.support.speed import slowness
from tests.support.weights import safetensors_file
from tokenization.codec import TextCodec

WEIGHTS = safetensors_file(20_000_000)
MD5 = hashlib.md5(WEIGHTS, usedforsecurity=False).hexdigest()
PART = 3_000_000
SECONDS = "expires_after.seconds"
ANNOUNCED: dict[str, Any] = {
    "bytes": len(WEIGHTS),
    "filename": "adapter_model.safetensors",
    "mime_type": "application/octet-stream",
    "purpose": "adapter",
}
AUTHORIZED = {"authorization": f"Bearer {KEY}"}


@pytest.fixture
def server(codec: TextCodec, database_url: str, tmp_path: Path) -> Iterator[FileServer]:
    with file_server(codec, database_url, tmp_path / "objects", max_pending=4) as running:
        yield running


def pieces() -> list[bytes]:
    return [WEIGHTS[begin : begin + PART] for begin in range(0, len(WEIGHTS), PART)]


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_the_stock_clients_chunked_upload(
    kind: str, codec: TextCodec, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(WEIGHTS)
    s3 = start_s3_server() if kind == "s3" else None
    try:
        store = None if s3 is None else s3.store("uploads", tmp_path / "scratch")
        with file_server(codec, database_url, tmp_path / "objects", store) as server:
            client = server.client()
            upload = client.uploads.upload_file_chunked(
                file=path,
                mime_type="application/octet-stream",
                purpose="adapter",  # type: ignore[arg-type]
                part_size=PART,
                md5=MD5,
            )
            assert (upload.object, upload.status, upload.bytes) == ("upload", "completed", len(WEIGHTS))
            assert upload.expires_at == upload.created_at + 3600
            assert upload.file is not None
            assert upload.file.filename == "adapter_model.safetensors"
            assert upload.file.model_extra == {"sha256": hashlib.sha256(WEIGHTS).hexdigest()}
            assert client.files.content(upload.file.id).read() == WEIGHTS
            from_memory = client.uploads.upload_file_chunked(
                file=b'{"messages": []}\n',
                filename="samples.jsonl",
                bytes=17,
                mime_type="application/jsonl",
                purpose="calibration",  # type: ignore[arg-type]
            )
            assert from_memory.file is not None
            assert [file.id for file in client.files.list(purpose="calibration")] == [from_memory.file.id]
            for file in client.files.list():
                client.files.delete(file.id)
            assert server.left() == []
    finally:
        if s3 is not None:
            s3.kill()


def test_parts_in_parallel_again_and_after_a_break(server: FileServer) -> None:
    client = server.client()
    upload = client.uploads.create(**ANNOUNCED)
    assert (upload.status, upload.file) == ("pending", None)

    def add(piece: bytes) -> str:
        return client.uploads.parts.create(upload.id, data=piece).id

    with ThreadPoolExecutor(4) as threads:
        part_ids = list(threads.map(add, pieces()[:4]))
    part_ids[1] = add(pieces()[1])
    # A client that was started again asks what has arrived.
    state = httpx.get(f"{server.url}/v1/uploads/{upload.id}", headers=AUTHORIZED).json()
    assert state["status"] == "pending"
    arrived = {part["sha256"]: part["id"] for part in state["parts"]}
    assert all(part["object"] == "upload.part" and part["upload_id"] == upload.id for part in state["parts"])
    assert len(state["parts"]) == 5
    ids = [arrived.get(hashlib.sha256(piece).hexdigest()) or add(piece) for piece in pieces()]
    assert ids[1] == part_ids[1]  # of two that are the same, the later one
    done = client.uploads.complete(upload.id, part_ids=ids, md5=MD5)
    again = client.uploads.complete(upload.id, part_ids=ids, md5=MD5)
    assert done.file is not None
    assert again == done
    assert client.files.content(done.file.id).read() == WEIGHTS
    assert len(server.left()) == 1
    with pytest.raises(openai.ConflictError) as closed:
        client.uploads.parts.create(upload.id, data=b"x")
    assert (closed.value.code, closed.value.param) == ("upload_not_pending", "upload_id")
    with pytest.raises(openai.ConflictError):
        client.uploads.cancel(upload.id)
    client.files.delete(done.file.id)
    state = httpx.get(f"{server.url}/v1/uploads/{upload.id}", headers=AUTHORIZED).json()
    assert (state["status"], state["file"], state["parts"]) == ("completed", None, [])


def test_cancelling(server: FileServer) -> None:
    client = server.client()
    upload = client.uploads.create(**ANNOUNCED)
    part = client.uploads.parts.create(upload.id, data=b"x" * 1000)
    assert client.uploads.cancel(upload.id).status == "cancelled"
    assert client.uploads.cancel(upload.id).status == "cancelled"
    assert server.left() == []
    with pytest.raises(openai.ConflictError):
        client.uploads.complete(upload.id, part_ids=[part.id])


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"bytes": ...}, 400, "invalid_value", "bytes"),
        ({"bytes": 0}, 400, "invalid_value", "bytes"),
        ({"bytes": -5}, 400, "invalid_value", "bytes"),
        ({"bytes": 1.5}, 400, "invalid_value", "bytes"),
        ({"bytes": True}, 400, "invalid_value", "bytes"),
        ({"bytes": 2**62}, 400, "invalid_value", "bytes"),
        ({"bytes": 3 * 2**30}, 413, "file_too_large", "bytes"),
        ({"filename": ...}, 400, "invalid_value", "filename"),
        ({"filename": "../x.json"}, 400, "invalid_value", "filename"),
        ({"filename": "x.pkl"}, 415, "unsupported_media_type", "filename"),
        ({"mime_type": ...}, 400, "invalid_value", "mime_type"),
        ({"mime_type": "a\nb"}, 400, "invalid_value", "mime_type"),
        ({"purpose": "assistants"}, 400, "invalid_value", "purpose"),
        ({"expires_after": {"anchor": "created_at", "seconds": 5}}, 400, "invalid_value", SECONDS),
        ({"expires_after": {"anchor": "now", "seconds": 5000}}, 400, "invalid_value", "expires_after.anchor"),
        ({"colour": "red"}, 400, "unsupported_parameter", "colour"),
    ],
)
def test_announcements_that_are_wrong(
    server: FileServer, changes: dict[str, Any], status: int, code: str, param: str
) -> None:
    body = {name: value for name, value in (ANNOUNCED | changes).items() if value is not ...}
    answer = httpx.post(f"{server.url}/v1/uploads", json=body, headers=AUTHORIZED)
    assert_refused(answer, status, code, param)


def test_the_plans_limit_and_that_of_pending_uploads(server: FileServer) -> None:
    small_plan(server, len(WEIGHTS) - 1)
    with pytest.raises(openai.APIStatusError) as large:
        server.client().uploads.create(**ANNOUNCED)
    assert (large.value.status_code, large.value.param) == (413, "bytes")
    small_plan(server, len(WEIGHTS))
    for _ in range(4):
        last = server.client().uploads.create(**ANNOUNCED)
    with pytest.raises(openai.RateLimitError) as many:
        server.client().uploads.create(**ANNOUNCED)
    assert many.value.code == "insufficient_quota"
    server.client().uploads.cancel(last.id)
    server.client().uploads.create(**ANNOUNCED)


def test_completions_that_are_wrong(server: FileServer) -> None:
    client = server.client()
    upload = client.uploads.create(**ANNOUNCED)
    part = client.uploads.parts.create(upload.id, data=WEIGHTS)
    for body, param in [
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": ["part_x"]}, "part_ids"),
        ({"part_ids": [part.id, part.id]}, "part_ids"),
        ({}, "part_ids"),
        ({"part_ids": [part.id], "md5": "0" * 32}, "md5"),
        ({"part_ids": [part.id], "md5": "zz"}, "md5"),
    ]:
        answer = httpx.post(f"{server.url}/v1/uploads/{upload.id}/complete", json=body, headers=AUTHORIZED)
        assert_refused(answer, 400, "invalid_value", param)
    short = client.uploads.create(**{**ANNOUNCED, "bytes": len(WEIGHTS) - 1})
    part = client.uploads.parts.create(short.id, data=WEIGHTS)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.uploads.complete(short.id, part_ids=[part.id])
    assert wrong.value.param == "part_ids"


def test_a_file_that_the_sandbox_refuses(server: FileServer) -> None:
    client = server.client()
    broken = WEIGHTS[:-1]
    upload = client.uploads.create(**{**ANNOUNCED, "bytes": len(broken)})
    part = client.uploads.parts.create(upload.id, data=broken)
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.uploads.complete(upload.id, part_ids=[part.id])
    assert refused.value.code == "adapter_invalid"
    assert refused.value.param
    assert server.left() == []
    assert client.files.list().data == []


def test_parts_that_are_wrong(server: FileServer) -> None:
    upload = server.client().uploads.create(**ANNOUNCED)
    path = f"/v1/uploads/{upload.id}/parts"
    data = ("data", b"x", "upload")
    for body, code, param in [
        (form(), "invalid_value", "data"),
        (form(data, data), "invalid_value", "data"),
        (form(data, ("purpose", b"adapter")), "unsupported_parameter", "purpose"),
        (form(("data", b"", "upload")), "invalid_value", "data"),
        (form(data, end=False), "invalid_value", "data"),
    ]:
        assert_refused(post(server, body, path), 400, code, param)
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, MAX_PART_BYTES + 100_000, path))
        status, _, answer = read_answer(opened)
    assert (status, json.loads(answer)["error"]["code"]) == (413, "file_too_large")
    over = b"x" * (MAX_PART_BYTES + 1)
    assert_refused(post(server, form(("data", over, "upload")), path), 413, "file_too_large", "data")
    assert server.left() == []
    with socket.create_connection((server.host, server.port), timeout=30) as opened:
        opened.sendall(head(server, 1_000_000, path) + form(("data", b"x" * 500_000, "upload")))
        wait_until(lambda: server.left())
        assert read_answer(opened)[0] == 200  # the form was whole before its declared end
    assert len(server.left()) == 1


def test_a_part_that_stops_is_given_up(codec: TextCodec, database_url: str, tmp_path: Path) -> None:
    with file_server(codec, database_url, tmp_path / "objects", limits=IMPATIENT) as server:
        path = f"/v1/uploads/{server.client().uploads.create(**ANNOUNCED).id}/parts"
        with socket.create_connection((server.host, server.port), timeout=30) as opened:
            body = form(("data", b"x" * 500_000, "upload"), end=False)
            opened.sendall(head(server, 1_000_000, path) + body)
            assert read_answer(opened)[0] == 408
        assert server.left() == []


def test_another_tenants_upload_and_none_look_the_same(server: FileServer) -> None:
    upload = server.client().uploads.create(**ANNOUNCED)
    part = server.client().uploads.parts.create(upload.id, data=b"x" * 1000)
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    none = "upload_00000000000000000000000000"
    for method, suffix, options in [
        ("GET", "", {}),
        ("POST", "/cancel", {}),
        ("POST", "/complete", {"json": {"part_ids": [part.id]}}),
        ("POST", "/parts", {"files": {"data": b"x"}}),
    ]:
        answers = [
            httpx.request(method, f"{server.url}/v1/uploads/{upload_id}{suffix}", headers=headers, **options)
            for upload_id in (upload.id, none)
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text.replace(upload.id, none) == answers[1].text
    with pytest.raises(openai.PermissionDeniedError):
        server.client(RESTRICTED_KEY).uploads.create(**ANNOUNCED)
    assert len(server.left()) == 1


ALONE = """
import os, sys
from pathlib import Path
from tests.api.file_server import file_server
from tokenization.codec import TextCodec

with file_server(TextCodec.load(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])) as server:
    print(server.port, flush=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the log goes to a pipe that nobody reads
    sys.stdin.read()
"""


@pytest.fixture
def alone(base_dir: Path, database_url: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The same in a process of its own, and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(base_dir), database_url, str(tmp_path / "objects")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.kill()
    process.wait(10)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


@pytest.fixture
def stock() -> Iterator[Callable[[str], openai.OpenAI]]:
    """Makes stock clients of a URL, closed at the end."""
    with ExitStack() as made:
        yield lambda url: made.enter_context(
            openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120)
        )


def memory_mib(pid: int, field: str = "VmHWM") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field)) // 1024


@pytest.mark.quiet
def test_large_files_take_no_memory_and_nobody_waits_for_them(
    alone: tuple[subprocess.Popen[str], str], stock: Callable[[str], openai.OpenAI], tmp_path: Path
) -> None:
    process, url = alone
    client = stock(url)
    block = WEIGHTS[:1_000_000]
    path = tmp_path / "samples.jsonl"
    with path.open("wb") as file:
        for _ in range(100):
            file.write(block)
    client.files.create(file=path, purpose="calibration")  # type: ignore[arg-type]
    httpx.get(f"{url}/livez")  # everything is loaded now, the schemas that responses are compared with, too
    before = memory_mib(process.pid)
    took: list[float] = []
    with ThreadPoolExecutor(4) as threads, httpx.Client() as other:
        work = [threads.submit(client.files.create, file=path, purpose="calibration") for _ in range(3)]  # type: ignore[arg-type]
        while not all(each.done() for each in work):
            began = time.monotonic()
            assert other.get(f"{url}/livez").status_code == 200
            took.append(time.monotonic() - began)
            time.sleep(0.005)
        assert {each.result().bytes for each in work} == {100_000_000}
    grown = memory_mib(process.pid) - before
    took.sort()
    p99 = took[int(len(took) * 0.99)]
    print(f"300 MB in 3 files: {grown} MiB more at the peak, /livez p99 {p99 * 1e3:.1f} ms of {len(took)}")
    assert grown < 40
    assert p99 < 0.5 * slowness()  # a file digested or synced on the event loop takes longer


def test_a_killed_server_and_a_client_that_goes_on(
    alone: tuple[subprocess.Popen[str], str],
    stock: Callable[[str], openai.OpenAI],
    codec: TextCodec,
    database_url: str,
    tmp_path: Path,
) -> None:
    process, url = alone
    client = stock(url)
    upload = client.uploads.create(**ANNOUNCED)
    for piece in pieces()[:3]:
        client.uploads.parts.create(upload.id, data=piece)
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=30) as opened:
        lines = head(None, PART + 1000, f"/v1/uploads/{upload.id}/parts")  # type: ignore[arg-type]
        opened.sendall(lines + form(("data", pieces()[3], "x"), end=False)[:2_500_000])
        wait_until(lambda: any((tmp_path / "objects/.incoming").iterdir()))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
    with file_server(codec, database_url, tmp_path / "objects", tenants=False) as server:
        state = httpx.get(f"{server.url}/v1/uploads/{upload.id}", headers=AUTHORIZED).json()
        arrived = {part["sha256"]: part["id"] for part in state["parts"]}
        assert len(arrived) == 3
        again = server.client()
        ids = [
            arrived.get(hashlib.sha256(piece).hexdigest())
            or again.uploads.parts.create(upload.id, data=piece).id
            for piece in pieces()
        ]
        done = again.uploads.complete(upload.id, part_ids=ids, md5=MD5)
        assert done.file is not None
        assert again.files.content(done.file.id).read() == WEIGHTS
