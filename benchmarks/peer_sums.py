"""Measures the sums of tensor-parallel steps: each GPU's part of a product, summed over the GPUs and normed.

    python -m benchmarks.peer_sums --gpus 2 --hidden 8192 --out F

Every figure is one sum with the norm after it, in a CUDA graph of many: read from the other GPUs (one kernel,
`kernels.peer_sum`), and by NCCL with the norm as a kernel of its own.

    floor_us = rows * hidden * 2 bytes * (GPUs - 1) / what one GPU reads of another per second in the same run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

from benchmarks.decode import versions
from benchmarks.report import write_report
from engine.model.collectives import ShardGroup
from engine.model.shards import Shard
from engine.parallel import joining
from kernels.peer_sum import sum_norm
from kernels.rms_norm import rms_norm

ROWS = (1, 8, 32, 128, 256, 1024, 8192)
SUMS = 32
"""In one graph, over two buffers in turn, as a model's layers have them."""
REPEATS = 15


class Sums:
    """One rank's tensors."""

    def __init__(self, group: ShardGroup, rows: int, hidden: int, device: torch.device) -> None:
        assert group.peers is not None, "GPUs that are not linked"
        self._group, self._peers = group, group.peers
        shape = (rows, hidden)
        take = group.peers.take
        self.parts = [take(f"part-{turn}", shape, torch.bfloat16) for turn in range(2)]
        self.scales = [take(f"scale-{turn}", (rows,), torch.float32) for turn in range(2)]
        for part, scale in zip(self.parts, self.scales, strict=True):
            part.normal_()
            scale.fill_(0.5)
        self.residual = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.weight = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        self.quantized = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
        self.quantized_scale = torch.empty(rows, device=device)

    def read_one(self, turn: int) -> None:
        sum_norm(
            self._peers.addresses(self.parts[turn]),
            self._peers.addresses(self.scales[turn]),
            self._peers.meeting,
            self.residual,
            self.weight,
            1e-5,
            None,
            self.quantized,
            self.quantized_scale,
        )

    def read(self) -> None:
        for turn in range(SUMS):
            self.read_one(turn % 2)

    def nccl(self) -> None:
        for turn in range(SUMS):
            part = self.parts[turn % 2]
            part.mul_(self.scales[turn % 2][:, None])
            self._group.sum(part)
            rms_norm(
                part,
                self.weight,
                1e-5,
                None,
                self.residual,
                quantized=self.quantized,
                quantized_scale_T=self.quantized_scale,
            )

    def meet(self) -> None:
        for _ in range(SUMS):
            self._peers.meet()


def us_of(queue: Any, group: ShardGroup) -> float:
    """Microseconds of one of the `SUMS` that `queue` queues."""
    assert group.peers is not None
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        queue()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            queue()
        times = []
        for _ in range(REPEATS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            group.peers.meet()
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(1e3 * begin.elapsed_time(end) / SUMS)
    return median(times)


def read_bandwidth(group: ShardGroup, device: torch.device) -> float:
    """Bytes per second that this GPU reads of another's memory, all GPUs at once."""
    assert group.peers is not None
    remote = group.peers.take("remote", (256 << 20,), torch.uint8)
    handle = group.peers.of_rank(remote, (group.shard.rank + 1) % group.shard.size)
    here = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        group.peers.meet()
        begin.record()
        here.copy_(handle)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return (256 << 20) / median(times)


def check(sums: Sums, group: ShardGroup) -> None:
    """Compares one sum with torch.distributed's."""
    assert group.peers is not None
    expected = sums.parts[0].float() * sums.scales[0][:, None]
    group.sum(expected)
    before = sums.residual.float()
    sums.read_one(0)
    group.peers.meet()
    off: Tensor = (sums.residual.float() - before - expected).norm() / expected.norm()
    assert off < 4e-3, f"off by {off.item()}"


def run(rank: int, size: int, port: int, hidden: int, result: Any) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    group = joining.join(joining.connect_store(port), Shard(rank, size), "nccl", device)
    bandwidth = read_bandwidth(group, device)
    rows = []
    for num_rows in sorted(ROWS, reverse=True):
        sums = Sums(group, num_rows, hidden, device)
        check(sums, group)
        row = {
            "rows": num_rows,
            "read_us": round(us_of(sums.read, group), 2),
            "nccl_us": round(us_of(sums.nccl, group), 2),
            "floor_us": round(1e6 * num_rows * hidden * 2 * (size - 1) / bandwidth, 2),
        }
        rows.append(row)
        if rank == 0:
            print(row, flush=True)
    meet_us = us_of(sums.meet, group)
    if rank == 0:
        result.put({"rows": rows, "meet_us": round(meet_us, 2), "read_gb_s": round(bandwidth / 1e9, 1)})
    torch.cuda.synchronize()
    joining.leave()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    asked = parser.parse_args(arguments)
    store = joining.open_store()
    spawning = torch.multiprocessing.get_context("spawn")
    result = spawning.SimpleQueue()
    torch.multiprocessing.spawn(
        run, (asked.gpus, store.port, asked.hidden, result), nprocs=asked.gpus, join=True
    )
    figures = {"gpus": asked.gpus, "hidden": asked.hidden, "versions": versions()} | result.get()
    print(figures, flush=True)
    write_report(asked.out, figures)


if __name__ == "__main__":
    main()
