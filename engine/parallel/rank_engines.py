"""Computes a rank's part of each step, on a CPU or on a GPU, and loads its parts of adapters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from engine.batch import Scored
from engine.device.batch_state import Draws
from engine.device.cpu_forward import CpuForward
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.device.scoring import score_requests
from engine.lora.loader import NUM_READERS_ON_GPU, AdapterLoader, OnDone
from engine.lora.pool import AdapterPool
from engine.lora.signatures import AdapterVerifier
from engine.model.config import load_config
from engine.model.model import Model
from engine.model.shards import Shard
from engine.parallel.messages import Begin, RankTask, Step, batch_of
from engine.signing.keys import TrustedKeys

if TYPE_CHECKING:
    from engine.device.gpu_forward import PreparedForward
    from engine.lora.device_pool import DevicePool


class RankEngine(Protocol):
    """Computes steps in the order in which rank 0 decided them."""

    loader: AdapterLoader[Any]

    def step(self, step: Step) -> None:
        """Computes a step with the other ranks."""
        ...


def make_engine(task: RankTask, model: Model, begin: Begin, on_loaded: OnDone) -> RankEngine:
    """Allocates what the rank keeps besides the model, and prepares its steps."""
    whole, shard, artifacts = (
        load_config(Path(task.base)),
        Shard(task.rank, task.size),
        Path(task.artifacts_dir),
    )
    verifier = None
    if task.signing_keys:  # rank 0 compares the base
        keys = TrustedKeys.from_setting(task.signing_keys)
        verifier = AdapterVerifier(keys, None, requires_signature=task.requires_signature)
        verifier.trust(begin.trusted)
    if begin.device is None:
        pool = AdapterPool(whole, begin.num_slots, model.device, model.dtype, shard)
        return CpuRankEngine(model, pool, AdapterLoader(artifacts, pool, on_loaded, verifier=verifier), begin)
    from engine.lora.device_pool import DevicePool

    sizes = begin.device
    device_pool = DevicePool(
        whole, begin.num_slots, sizes.adapter_bytes, sizes.adapter_cache_bytes, model.device, shard=shard
    )
    loader = AdapterLoader(artifacts, device_pool, on_loaded, None, NUM_READERS_ON_GPU, verifier)
    return DeviceRankEngine(model, device_pool, loader, begin)


class CpuRankEngine:
    """The rank's part of the model, its keys and values, and its parts of adapters."""

    def __init__(self, model: Model, pool: AdapterPool, loader: AdapterLoader[Any], begin: Begin) -> None:
        self.loader = loader
        cache = CacheLayout(begin.num_blocks, begin.block_size)
        self._forward = CpuForward(model, pool, cache, begin.max_rows, begin.max_len)
        self._draws: Draws | None = None
        """Of the last step, whose tokens rank 0 tells with the next one."""

    @torch.inference_mode()
    def step(self, step: Step) -> None:
        """Computes a step with the other ranks."""
        forward, batch = self._forward, batch_of(step)
        if self._draws is not None and self._draws.rows.size:
            plain = ~self._draws.is_verified
            drawn = torch.tensor(step.drawn, dtype=torch.int64).numpy()
            forward.state.learn(self._draws.rows[plain], drawn[plain])
        shares = forward.apply(batch)
        self._draws = forward.state.draws(shares)
        forward.run(shares, batch.scored)


class DeviceRankEngine:
    """The same on a GPU. Nothing waits for a step, as on rank 0."""

    def __init__(self, model: Model, pool: DevicePool, loader: AdapterLoader[Any], begin: Begin) -> None:
        from engine.device.gpu_forward import DeviceForward
        from kernels.step_inputs import StepInputs

        sizes = begin.device
        assert sizes is not None
        assert model.group is not None
        self.loader = loader
        self._model, self._group, self._pool = model, model.group, pool
        kv_dtype = torch.float8_e4m3fn if sizes.has_fp8_cache else model.dtype
        self._inputs = StepInputs(model.device)
        self._forward = DeviceForward(
            model,
            self._pool,
            CacheLayout(begin.num_blocks, begin.block_size, kv_dtype),
            BatchLimits(begin.max_rows, begin.max_len, sizes.max_batch_tokens),
            RunnerOptions(sizes.cuda_graphs, sizes.max_graph_rows, sizes.batch_invariant),
            self._inputs,
        )
        self._forward.next_ids_R = model.group.shared_ids(self._forward.max_rows + 1, model.device)
        self._inputs.freeze()
        self._forward.capture()
        pool.lock_host_memory()

    @torch.inference_mode()
    def step(self, step: Step) -> None:
        """Queues a step with the other ranks."""
        forward, batch = self._forward, batch_of(step)
        shares = forward.apply(batch)
        self._inputs.begin()
        prepared = forward.prepare(shares)
        with self._pool.launching():
            self._inputs.send()
            forward.run(prepared)
            if batch.scored:
                self._score(prepared, batch.scored)
            if shares.samples.any():
                self._group.share(forward.next_ids_R)
        forward.state.advance(shares)

    def _score(self, prepared: PreparedForward, scored: list[Scored]) -> None:
        """Computes this rank's part of the logits that rank 0 scores, in the same chunks."""
        rows, query_lens, *_ = prepared.shares
        requests = score_requests(scored, self._forward.state, rows, query_lens)
        size = self._forward.max_rows
        at_N = torch.zeros(-(-len(requests.at_N) // size) * size, dtype=torch.int64)
        at_N[: len(requests.at_N)] = torch.from_numpy(requests.at_N)
        hidden_TH = self._forward.hidden(prepared)
        for piece_N in at_N.to(self._model.device).split(size):
            self._model.logits(hidden_TH.index_select(0, piece_N))
