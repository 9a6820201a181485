"""Runs a rank of `benchmarks.tensor_parallel`: as the engine's, with random weights and adapters."""

from __future__ import annotations

import argparse
import sys

from benchmarks.library_pools import LibraryDevicePool, LibraryLoader
from benchmarks.random_adapters import AdapterLibrary
from benchmarks.random_base import random_base
from benchmarks.shapes import shape
from engine.lora.loader import OnDone
from engine.model.collectives import ShardGroup
from engine.model.model import Model
from engine.model.shards import Shard
from engine.parallel import rank
from engine.parallel.messages import Begin, RankTask
from engine.parallel.rank_engines import DeviceRankEngine, RankEngine


def load(task: RankTask, group: ShardGroup) -> Model:
    """`task.base` is a shape's name."""
    return random_base(shape(task.base), task.quantization, task.device, group=group)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True, help="of the adapters")
    adapter_rank = parser.parse_args().rank

    def make(task: RankTask, model: Model, begin: Begin, on_loaded: OnDone) -> RankEngine:
        assert begin.device is not None
        whole = shape(task.base)
        library = AdapterLibrary(whole)
        library.register(begin.num_slots, (adapter_rank,))
        pool = LibraryDevicePool(
            library,
            whole,
            begin.num_slots,
            begin.device.adapter_bytes,
            model.device,
            Shard(task.rank, task.size),
        )
        return DeviceRankEngine(model, pool, LibraryLoader(library, pool, on_loaded), begin)

    return rank.main(load, make)


if __name__ == "__main__":
    sys.exit(main())
