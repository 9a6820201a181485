"""Puts a serving engine together: model, KV cache, adapter pool and loader, runner, scheduler, core.

Owns the choice of sizes from the settings, and tells the log what takes its time. Imported by the engine's
main once there is a model to load: it brings torch with it.
"""

from __future__ import annotations

import time

import structlog
import torch

from engine.admission import Limits
from engine.core import EngineCore
from engine.kv_cache import BlockPool
from engine.lora.loader import AdapterLoader
from engine.lora.pool import AdapterPool
from engine.lora.slots import SlotTable
from engine.model.cache import KVCache
from engine.model.config import ModelConfig
from engine.model.model import Model, load_model
from engine.model.weights import base_digest
from engine.protocol import EngineInfo
from engine.runner import ModelRunner
from engine.scheduler import Scheduler
from engine.server import EngineServer
from engine.settings import EngineSettings
from engine.vocabulary import Vocabulary

log = structlog.get_logger(__name__)

BLOCK_SIZE = 16


def build_engine(settings: EngineSettings, server: EngineServer, build: str) -> tuple[EngineCore, EngineInfo]:
    """The core around a loaded model, and what clients are told of it.

    Raises: ValueError when the base is one the engine cannot serve or sizes do not go together; OSError.
    """
    assert settings.base is not None
    torch.set_num_threads(settings.threads)
    vocabulary = Vocabulary.load(settings.base)
    model = _load(settings)
    config = model.config
    context_length = _context_length(settings, config)
    num_blocks = _num_blocks(settings, model, context_length)
    digest = base_digest(settings.base)
    pool = AdapterPool(config, settings.num_slots, device=model.device, dtype=model.dtype)
    loader = AdapterLoader(settings.artifacts_dir, pool, server.adapter_loaded, digest)
    runner = ModelRunner(model, pool, num_blocks, BLOCK_SIZE, settings.max_rows, context_length)
    limits = Limits(
        context_length=context_length,
        vocab_size=config.vocab_size,
        max_batch_tokens=settings.max_batch_tokens,
        max_rows=settings.max_rows,
        max_waiting=settings.queue_limit,
    )
    scheduler = Scheduler(
        limits=limits,
        pool=BlockPool(num_blocks, BLOCK_SIZE),
        slots=SlotTable(settings.num_slots, loader.start_load),
        eos_ids=config.eos_ids,
        token_bytes=vocabulary.token_bytes,
        engine_id=server.engine_id,
        incarnation=server.incarnation,
    )
    info = EngineInfo(
        engine_id=server.engine_id,
        incarnation=server.incarnation,
        base=settings.base_name,
        base_digest=digest,
        quantization=settings.quantization,
        device=str(model.device),
        context_length=context_length,
        max_prompt_tokens=context_length - 1,
        vocab_size=config.vocab_size,
        build=build,
    )
    return EngineCore(scheduler, runner), info


def _load(settings: EngineSettings) -> Model:
    assert settings.base is not None
    began = time.monotonic()
    log.info("loading weights", base=settings.base_name, quantization=settings.quantization)
    model = load_model(settings.base, settings.quantization)
    log.info(
        "weights loaded",
        architecture=model.config.architecture,
        layers=model.config.num_layers,
        device=str(model.device),
        seconds=round(time.monotonic() - began, 2),
    )
    return model


def _context_length(settings: EngineSettings, config: ModelConfig) -> int:
    if settings.context_length is None:
        return config.max_position
    if settings.context_length > config.max_position:
        raise ValueError(
            f"context_length: {settings.context_length} is more than the {config.max_position} tokens "
            "of the base"
        )
    return settings.context_length


def _num_blocks(settings: EngineSettings, model: Model, context_length: int) -> int:
    """KV blocks, the null block included: as many as told, else as fit the memory and can ever be used."""
    if settings.num_blocks is not None:
        return settings.num_blocks
    block_bytes = KVCache.block_bytes(model.config, BLOCK_SIZE, model.dtype)
    useful = settings.max_rows * -(-context_length // BLOCK_SIZE)
    num_blocks = min(settings.kv_bytes // block_bytes, useful) + 1
    log.info("KV cache sized", blocks=num_blocks, mebibytes=num_blocks * block_bytes >> 20)
    return num_blocks
