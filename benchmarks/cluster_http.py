"""Measures a whole service over HTTP with a replica on every GPU, and with one replica.

Each is `rootstock up` on the same checkpoint of random weights, with the same tenant and adapters, and
several API processes. Every replica's worth of streams is open at once: where one ends the next begins.
Several processes read them. Adapters differ in their scale alone: each still takes a slot, and its own
memory, of every engine that loads it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.local_service import LocalService, local_service
from benchmarks.random_llama import Shape, write_adapter, write_base
from benchmarks.serving import Load, Stream, Target, summarise
from benchmarks.serving import measure as measure_streams
from engine.planner.shapes import PUBLISHED, published_shape

START_S = 240.0
ADDED_AT_ONCE = 24
"""Adapters that are packed at once."""
TENANT = "bench"
LIMITS = ("concurrent_requests=100000", "requests_per_minute=none", "tokens_per_minute=none")


@dataclass(frozen=True)
class ServiceLoad:
    """The service and its load."""

    shape: str
    """A published model. Any other name is for a small base, which a CPU serves."""
    quantization: str
    replicas: int
    api_processes: int = 2
    adapters: int = 256
    rank: int = 16
    streams: int = 256
    """Of each replica."""
    rounds: int = 3
    """Answers of each place."""
    prompt_words: int = 100
    output_tokens: int = 256
    readers: int = 8
    """Processes that read the streams."""


def measure(load: ServiceLoad) -> dict[str, Any]:
    """Returns throughput and first tokens of all replicas, and of one."""
    with tempfile.TemporaryDirectory(prefix="rootstock-cluster-") as name:
        folder = Path(name)
        with _processes(1) as pool:
            pool.submit(write_models, folder, load.shape, load.adapters, load.rank).result()
        whole = _serve(folder, load, load.replicas, adds=True)
        one = _serve(folder, load, 1, adds=False)
    return {
        "service": asdict(load),
        "replicas": load.replicas,
        "tok_s": whole["output_tok_s"],
        "tok_s_one": one["output_tok_s"],
        "times_one": round(whole["output_tok_s"] / one["output_tok_s"], 2),
        "ttft_ms": whole["ttft_ms"],
        "ttft_ms_one": one["ttft_ms"],
        "tpot_ms": whole["tpot_ms"],
        "tpot_ms_one": one["tpot_ms"],
    }


def _serve(folder: Path, load: ServiceLoad, replicas: int, *, adds: bool) -> dict[str, Any]:
    """Starts the service, with its tenant and adapters if it `adds` them, and measures it."""
    began = time.monotonic()
    options = (
        "--base", str(folder / load.shape), "--quantization", load.quantization,
        "--replicas", str(replicas), "--api-processes", str(load.api_processes),
    )  # fmt: skip
    with local_service(folder, *options, start_s=START_S) as service:
        print(f"{replicas} replicas: serving after {time.monotonic() - began:.0f} s", flush=True)
        if adds:
            _add_tenant(service, folder, load)
            print(f"{load.adapters} adapters after {time.monotonic() - began:.0f} s", flush=True)
        key = (folder / "key").read_text()
        models = tuple(f"{load.shape}:adapter-{number}" for number in range(load.adapters))
        target = Target(service.base_url, key, models)
        num_streams = replicas * load.streams
        _run(target, load, num_streams, rounds=1)
        figures = summarise(_run(target, load, num_streams, load.rounds))
    print(f"{replicas} replicas: {json.dumps(figures)}", flush=True)
    return figures


def _add_tenant(service: LocalService, folder: Path, load: ServiceLoad) -> None:
    service.operate("tenant", "create", TENANT)
    limits = [part for limit in LIMITS for part in ("--limit", limit)]
    service.operate("plan", "set", "standard", "--max-adapters", str(load.adapters), *limits)
    (folder / "key").write_text(service.operate("key", "create", TENANT))

    def add(number: int) -> None:
        service.operate("adapter", "add", TENANT, f"adapter-{number}", str(folder / f"adapter-{number}"))

    with ThreadPoolExecutor(min(ADDED_AT_ONCE, os.cpu_count() or 1)) as pool:
        list(pool.map(add, range(load.adapters)))


def _run(target: Target, load: ServiceLoad, num_streams: int, rounds: int) -> list[Stream]:
    """Opens so many streams from several processes, each on the adapters in an order of its own."""
    each = Load(num_streams // load.readers, rounds, load.prompt_words, load.output_tokens)
    with _processes(load.readers) as pool:
        started = []
        for number in range(load.readers):
            first = number * len(target.models) // load.readers
            own = replace(target, models=target.models[first:] + target.models[:first])
            started.append(pool.submit(read, own, each, number))
        return [stream for one in started for stream in one.result()]


def read(target: Target, load: Load, seed: int) -> list[Stream]:
    """Opens a process's share of the streams."""
    return asyncio.run(measure_streams(target, load, seed))


def _processes(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def write_models(folder: Path, model: str, adapters: int, rank: int) -> None:
    """Writes the base and the adapters. In a process of its own, which gives the GPU's memory back."""
    import torch
    from safetensors.torch import load_file, save_file

    from benchmarks.engine_start import write_checkpoint

    is_published = model in PUBLISHED
    shape = Shape.of(published_shape(model)) if is_published else Shape()
    if is_published:
        write_checkpoint(folder / model, model, "cuda" if torch.cuda.is_available() else "cpu")
    else:
        write_base(folder / model, shape)
    write_adapter(folder / "adapter", shape, rank, seed=1)
    weights = folder / "adapter" / "adapter_model.safetensors"
    # As adapters are stored.
    half = {name: tensor.bfloat16() for name, tensor in load_file(weights).items()}
    save_file(half, weights, metadata={"format": "pt"})
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    for number in range(adapters):
        adapter = folder / f"adapter-{number}"
        adapter.mkdir()
        (adapter / weights.name).hardlink_to(weights)
        own = config | {"lora_alpha": config["lora_alpha"] + number}
        (adapter / "adapter_config.json").write_text(json.dumps(own))
