"""The clients' key is rotated with two of them valid, in the order that the documentation gives."""

from __future__ import annotations

import queue
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zmq

from cli.client_key import add_key, drop_key, make_client_key, public_keys, switch_key
from cli.errors import CliError
from engine.protocol import EngineInfo, EngineStats, Hello
from engine.settings import ClusterSettings
from engine.transport.curve import Address, KeyPair, ServerKeys
from engine.transport.server_socket import Delivery, Transport

INFO = EngineInfo("engine-0", "i", "base", "", "none", "null", 100, 99, 100, "test")
HELLO = msgspec.msgpack.encode(Hello("test"))


def is_answered(context: zmq.Context, endpoint: str, own: KeyPair, client: KeyPair) -> bool:
    address = Address(endpoint, own.public, client)
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        address.secure(dealer)
        dealer.connect(endpoint)
        dealer.send(HELLO)
        return bool(dealer.poll(400))


def test_no_stage_of_a_rotation_refuses_a_client_of_the_stage_beside_it(tmp_path: Path) -> None:
    file, own = tmp_path / "clients.key", KeyPair.make()
    make_client_key(file)
    stages = [(public_keys(file), KeyPair.read(file))]
    steps: tuple[Callable[[Path], str], ...] = (add_key, switch_key, drop_key)
    for step in steps:
        assert step(file) == public_keys(file)
        assert file.stat().st_mode & 0o777 == 0o600
        stages.append((public_keys(file), KeyPair.read(file)))
    old, new = stages[0][1], stages[-1][1]
    assert [client for _, client in stages] == [old, old, new, new]
    context, inbox = zmq.Context(), queue.SimpleQueue[Delivery]()
    try:
        for at, (accepted, _) in enumerate(stages):
            clients = ClusterSettings(client_keys=accepted).keys
            engine = Transport(
                "tcp://127.0.0.1:*",
                inbox.put,
                lambda: EngineStats("engine-0", "i"),
                ServerKeys(own, clients),
            )
            engine.announce(INFO)
            for _, client in stages[max(0, at - 1) : at + 2]:
                assert is_answered(context, engine.endpoint, own, client), (at, "a client one stage away")
            if at in (0, len(stages) - 1):
                other = new if at == 0 else old
                assert not is_answered(context, engine.endpoint, own, other), (at, "a key that is not valid")
            engine.close(linger=0.5)
    finally:
        context.destroy(linger=0)


def test_steps_out_of_order_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "clients.key"
    make_client_key(file)
    before = file.read_bytes()
    for step in (switch_key, drop_key):
        with pytest.raises(CliError, match="has one key: begin the rotation"):
            step(file)
    assert file.read_bytes() == before
    add_key(file)
    with pytest.raises(CliError, match="has 2 keys already"):
        add_key(file)
    file.write_text("0" * 64 + "\n" + "1" * 64 + "\n" + "2" * 64 + "\n")
    with pytest.raises(CliError, match="it has 3 keys, and must have 1 or 2"):
        public_keys(file)
