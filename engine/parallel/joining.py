"""Joins the ranks' processes into the group through which their tensors are summed."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed as dist

from engine.model.collectives import ShardGroup
from engine.model.shards import Shard

HOST = "127.0.0.1"
JOIN_SECONDS = 300.0
"""For all ranks to start: imports and, on a busy machine, patience."""
SUM_SECONDS = 60.0
"""A sum that takes longer has lost a rank. Ranks compute alike, so they wait for one another for far less."""


def open_store() -> dist.TCPStore:
    """Returns the store where ranks find one another, on a port of its own: `store.port`."""
    return dist.TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=JOIN_SECONDS)
    )


def connect_store(port: int) -> dist.TCPStore:
    """Returns another rank's connection to rank 0's store."""
    return dist.TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=JOIN_SECONDS))


def join(store: dist.TCPStore, shard: Shard, backend: str, device: torch.device) -> ShardGroup:
    """Waits for all ranks. `backend`: nccl where each has a GPU of its own, else gloo. Raises RuntimeError
    when they do not come.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # needs a fabric manager that hands out multicast groups
    dist.init_process_group(
        backend,
        store=store,
        rank=shard.rank,
        world_size=shard.size,
        timeout=timedelta(seconds=SUM_SECONDS),
    )
    group = dist.group.WORLD
    if backend != "nccl":
        return ShardGroup(shard, group)
    from engine.model.peer_memory import PeerMemory, are_linked

    if not are_linked(group, device, shard.size):
        return ShardGroup(shard, group)
    return ShardGroup(shard, group, PeerMemory(f"ranks-{store.port}", group, shard, device))


def leave() -> None:
    """Leaves the group, so that this process may join another."""
    if dist.is_initialized():
        dist.destroy_process_group()
