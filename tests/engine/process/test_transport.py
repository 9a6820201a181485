"""The wire's edges: a peer that does not read, one that is gone, and settings that say where it is."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from pydantic import ValidationError

from engine.protocol import EngineInfo, EngineMessage, EngineStats, Hello, Outputs, Submit, TokenChunk
from engine.settings import DeviceSettings, EngineSettings
from engine.transport.server_socket import (
    MAX_BACKLOG,
    ClientGone,
    ClientStalled,
    Delivery,
    FromClient,
    Transport,
)
from engine.transport.silence import LONGEST_GAP, Silence
from tests.engine.process.engines import submission
from tests.support.waiting import until

INFO = EngineInfo("engine-0", "i", "base", "", "none", "null", 100, 99, 100, "test")
STATS = EngineStats("engine-0", "i")
decode = msgspec.msgpack.Decoder(EngineMessage).decode
encode = msgspec.msgpack.Encoder().encode


class Wire:
    """A transport, what it delivered, and a socket that talks to it."""

    def __init__(self, folder: Path) -> None:
        self.inbox: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self.transport = Transport(f"ipc://{folder}/t.sock", self.inbox.put, lambda: STATS)
        self.context = zmq.Context()
        self.socket = self.connect()

    def connect(self) -> zmq.Socket:
        socket = self.context.socket(zmq.DEALER)
        # So little room that the sender's side fills soon.
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.RCVBUF, 4096)
        socket.connect(self.transport.endpoint)
        return socket

    def greet(self) -> bytes:
        """Submit something to learn the identity the transport knows this socket by."""
        self.socket.send(encode(submission("r1", 5)))
        delivery = self.inbox.get(timeout=30)
        assert isinstance(delivery, FromClient)
        assert isinstance(delivery.message, Submit)
        return delivery.client

    def receive(self) -> object:
        assert self.socket.poll(30_000)
        return decode(self.socket.recv())

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.transport.close(linger=0.5)


@pytest.fixture
def wire(folder: Path) -> Iterator[Wire]:
    opened = Wire(folder)
    yield opened
    opened.close()


def test_hello_is_answered_once_the_engine_is_ready(wire: Wire) -> None:
    wire.socket.send(encode(Hello("early")))
    heard = wire.receive()
    assert heard == STATS, "it beats while it loads"
    wire.transport.announce(INFO)
    while heard == STATS:
        heard = wire.receive()
    assert heard == INFO
    later = wire.connect()
    later.send(encode(Hello("late")))
    assert later.poll(5000)
    assert decode(later.recv()) in (INFO, STATS)
    later.close(linger=0)


def test_a_peer_that_does_not_read_is_reported_and_still_loses_nothing(wire: Wire) -> None:
    client = wire.greet()
    num_messages = 0

    def say(count: int) -> None:
        nonlocal num_messages
        for _ in range(count):
            chunk = TokenChunk("r1", 0, [num_messages, *range(200)])
            wire.transport.send(client, Outputs([chunk]))
            num_messages += 1

    deadline = time.monotonic() + 60
    while wire.inbox.empty():
        say(500)
        time.sleep(0.02)
        assert time.monotonic() < deadline
    assert wire.inbox.get() == ClientStalled(client)
    assert num_messages > MAX_BACKLOG
    say(10)
    expected = 0
    while expected < num_messages:
        message = wire.receive()
        if isinstance(message, Outputs):
            assert message.chunks[0].token_ids[0] == expected
            expected += 1
    assert wire.inbox.empty()


def test_a_peer_that_vanishes_is_missed_within_a_heartbeat(wire: Wire) -> None:
    client = wire.greet()
    wire.socket.close(linger=0)
    assert until(lambda: not wire.inbox.empty()) < 1.0
    assert wire.inbox.get() == ClientGone(client)
    wire.transport.send(client, Outputs())  # nothing happens
    wire.socket = wire.connect()
    assert wire.greet() != client


def test_a_gap_between_looks_counts_as_a_short_one() -> None:
    silence = Silence(100.0)
    assert silence.seconds(100.25) == 0.25
    assert silence.seconds(160.25) == 0.25 + LONGEST_GAP
    silence.heard(161.0)
    assert [silence.seconds(161.0 + quarters / 4) for quarters in (1, 2, 3)] == [0.25, 0.5, 0.75]


def test_a_message_beyond_the_limit_cuts_its_sender_off(wire: Wire) -> None:
    client = wire.greet()
    wire.socket.send(bytes((32 << 20) + 1))
    assert wire.inbox.get(timeout=30) == ClientGone(client)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "127.0.0.1:5700"),
        ("engine_id", "../other"),
        ("base_name", "Base:1"),
        ("max_rows", "0"),
        ("drain_seconds", "-1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(f"ROOTSTOCK_ENGINE_{field.upper()}", value)
    with pytest.raises(ValidationError, match=field):
        EngineSettings()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "tpu"),
        ("quantization", "int3"),
        ("kv_dtype", "fp4"),
        ("memory_share", "1"),
        ("num_blocks", "1"),
        ("num_slots", "0"),
        ("adapter_bytes", "10"),
    ],
)
def test_device_settings_that_cannot_be_meant_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(f"ROOTSTOCK_DEVICE_{field.upper()}", value)
    with pytest.raises(ValidationError, match=field):
        DeviceSettings()


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOTSTOCK_ENGINE_ENGINE_ID", "engine-7")
    monkeypatch.setenv("ROOTSTOCK_ENGINE_DATA_DIR", "somewhere")
    monkeypatch.setenv("ROOTSTOCK_ENGINE_NULL", "true")
    settings = EngineSettings()
    assert settings.null
    assert settings.state_dir == Path("somewhere/engine/engine-7")
    monkeypatch.setenv("ROOTSTOCK_DEVICE_KV_DTYPE", "fp8")
    monkeypatch.setenv("ROOTSTOCK_DEVICE_CUDA_GRAPHS", "false")
    device = DeviceSettings()
    assert (device.device, device.kv_dtype, device.cuda_graphs) == ("auto", "fp8", False)
    assert max(len(EngineSettings.model_fields), len(DeviceSettings.model_fields)) <= 20
