"""Runs one engine of `benchmarks.cluster`: the real server around a random base with random adapters.

    python -m benchmarks.cluster_engine --shape llama-3.1-8b --quantization fp8 --adapters 2000 ...

Where it listens, its name and its sizes are the engine's own settings, in the environment. Adapters are in
page-locked host memory: what is not in a slot is copied from there, as in an engine with host memory for all
of them.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

import numpy as np
import torch

from benchmarks.in_process import InProcessEngine, Sizes, pick_device, random_prompts
from benchmarks.library_pools import resident_bytes
from benchmarks.random_adapters import AdapterLibrary
from benchmarks.random_base import random_base
from benchmarks.shapes import SHAPES, shape
from engine.core import EngineCore
from engine.environment import EngineEnvironment
from engine.main import serve_until_stopped
from engine.protocol import EngineInfo
from engine.server import EngineServer
from engine.settings import DeviceSettings, EngineSettings
from telemetry import logs
from telemetry.release import installed_release

WARM_UP_TOKENS = 4


def build(
    opened: ExitStack, asked: argparse.Namespace, settings: EngineSettings, server: EngineServer
) -> tuple[EngineCore, EngineInfo]:
    """Returns the core, and the information that clients receive. `opened` closes the engine's memory."""
    device = pick_device(asked.device)
    config = shape(asked.shape)
    slots = DeviceSettings().num_slots
    assert slots is not None
    library = AdapterLibrary(config)
    adapters = library.register(asked.adapters, [asked.rank])
    model = random_base(config, asked.quantization if device.type == "cuda" else "none", device)
    sizes = Sizes(
        settings.max_rows,
        asked.max_len,
        settings.max_batch_tokens,
        settings.max_rows * asked.max_len,
        slots,
        resident_bytes(library, adapters[:slots]),
    )
    engine = opened.enter_context(
        InProcessEngine(
            model,
            library,
            sizes,
            environment=EngineEnvironment(server.engine_id, server.incarnation),
            on_wake=server.wake,
        )
    )
    _warm_up(engine)
    info = EngineInfo(
        engine_id=server.engine_id,
        incarnation=server.incarnation,
        base=settings.base_name,
        base_digest="0" * 64,
        quantization=model.quantization,
        device=str(device),
        context_length=asked.max_len,
        max_prompt_tokens=asked.max_len - 1,
        vocab_size=config.vocab_size,
        build=installed_release(),
    )
    return engine.core, info


def _warm_up(engine: InProcessEngine) -> None:
    """Makes what is made on first use: answers a batch of all rows on the base."""
    sizes = engine.sizes
    lengths = [sizes.max_len // 2] * sizes.max_rows
    prompts = random_prompts(np.random.default_rng(0), engine.model.config.vocab_size, lengths)
    engine.answer(prompts, WARM_UP_TOKENS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_engine", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--quantization", default="fp8")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--adapters", type=int, required=True, help="that may be requested")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--max-len", type=int, required=True, help="tokens of a request")
    asked = parser.parse_args()
    logs.configure("engine")
    torch.set_num_threads(1)
    settings = EngineSettings()
    server = EngineServer(
        endpoint=settings.endpoint,
        redis_url=settings.redis_url,
        state_dir=settings.state_dir,
        engine_id=settings.engine_id,
        drain_seconds=settings.drain_seconds,
    )
    with ExitStack() as opened:
        return serve_until_stopped(server, lambda: build(opened, asked, settings, server))


if __name__ == "__main__":
    sys.exit(main())
