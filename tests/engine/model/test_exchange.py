"""Mailboxes of an exchange, over peers that are only recorded."""

from types import SimpleNamespace
from typing import Any

import torch

from engine.model.exchange import Exchange
from engine.model.shards import Shard
from kernels.lora.mailbox import Mailbox
from kernels.workspace import Workspace


class Peers(Workspace):
    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[str, tuple[int, int]] = {}

    def mailbox(self, name: str, shape: tuple[int, int]) -> Mailbox:
        self.opened[name] = shape
        return Mailbox(torch.empty(2), torch.empty(2, *shape), torch.empty(1))


def exchange_over(peers: Peers | None) -> Exchange:
    group: Any = SimpleNamespace(shard=Shard(0, 2), peers=peers)
    return Exchange(group, 128, Workspace())


def test_two_mailboxes_take_turns() -> None:
    peers = Peers()
    exchange = exchange_over(peers)
    exchange.open_mailboxes(4, 8)
    assert sorted(peers.opened.values()) == [(4, 8), (4, 8)]
    first, second, third, fourth = (exchange.mailbox() for _ in range(4))
    assert first is not None
    assert first is third
    assert second is fourth
    assert first is not second


def test_without_peers_there_are_none() -> None:
    exchange = exchange_over(None)
    exchange.open_mailboxes(4, 8)
    assert exchange.mailbox() is None
