"""Runs a whole engine without its process: scheduler, runner, sampling and commit around a random base.

Submits requests, steps, and records when tokens arrive. Adapters come from an `AdapterLibrary` in host memory
instead of from disk.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from llguidance import LLTokenizer

from benchmarks.library_pools import LibraryDevicePool, LibraryLoader, LibraryPool
from benchmarks.random_adapters import AdapterLibrary, Registered
from engine.core import EngineCore, Runner
from engine.device.cpu_runner import ModelRunner
from engine.device.runner_options import BatchLimits, CacheLayout, RunnerOptions
from engine.environment import EngineEnvironment
from engine.grammar.admission import GrammarAdmission
from engine.grammar.compiler import GrammarCompiler
from engine.kv_cache import BlockPool
from engine.lora.draft_adapters import DraftAdapterChoice
from engine.lora.loader import AdapterLoader, OnDone
from engine.lora.slots import SlotTable
from engine.model.config import ModelConfig
from engine.model.model import Model
from engine.model.shards import WHOLE, Shard
from engine.parallel.leader import Leader
from engine.parallel.messages import Begin, DeviceSizes
from engine.parallel.runner import ParallelLoader
from engine.protocol import SamplingParams, Submit, TokenChunk
from engine.scheduling.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits

BLOCK_SIZE = 16
DEFAULT_OPTIONS = RunnerOptions(mask_threads=14)
ENVIRONMENT = EngineEnvironment("engine-0", "benchmark")
OTHERS_FROZEN = 10_000
"""So many frozen objects are of another part of the process; Python 3.12 begins with hundreds."""
STUCK_S = 30.0
"""Without any progress for so long a benchmark gives up."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one engine is made for."""

    max_rows: int = 256
    max_len: int = 2048
    """Prompt and completion of one request, tokens."""
    max_batch_tokens: int = 8192
    kv_tokens: int = 256 * 544
    """Of all requests together."""
    num_slots: int = 256
    adapter_bytes: int = 0
    """Of all adapters to be resident at once; a CPU allocates them as they are loaded."""
    kv_dtype: str = "auto"

    @property
    def num_blocks(self) -> int:
        """The null block included; a block more for every row, as the scheduler keeps one free for each."""
        return -(-self.kv_tokens // BLOCK_SIZE) + 2 * self.max_rows + 1


class InProcessEngine:
    """Use as a context: at its end the loader's thread is gone and the memory given back."""

    def __init__(
        self,
        model: Model,
        library: AdapterLibrary,
        sizes: Sizes,
        options: RunnerOptions = DEFAULT_OPTIONS,
        tokenizer: LLTokenizer | None = None,
        leader: Leader | None = None,
        drafter: Drafter | None = None,
        *,
        draft_adapters: DraftAdapterChoice | None = None,
        keeps_masks: bool = True,
        environment: EngineEnvironment = ENVIRONMENT,
        on_wake: Callable[[], None] = lambda: None,
    ) -> None:
        """With a `tokenizer`, requests may have grammars and think. With a `leader`, `model` is rank 0's
        part of one. Unless `keeps_masks`, every mask is filled. `on_wake` wakes who else steps the core: it
        is called from any thread.
        """
        self.model = model
        self._leader = leader
        self.sizes = sizes
        self.library = library
        self.capture_s = 0.0
        self._wake = threading.Event()
        self._on_wake = on_wake
        self._num_requests = 0
        self._has_frozen = False
        self._loader: AdapterLoader[Any] | ParallelLoader
        config = model.config
        runner = self._on_gpu(options) if model.device.type == "cuda" else self._on_cpu()
        scheduler = Scheduler(
            EngineLimits(
                context_length=sizes.max_len,
                vocab_size=config.vocab_size,
                max_batch_tokens=sizes.max_batch_tokens,
                max_rows=sizes.max_rows,
                max_waiting=1_000_000,
            ),
            BlockPool(sizes.num_blocks, BLOCK_SIZE),
            SlotTable(sizes.num_slots, self._loader.start_load, self._loader),
            config.eos_ids,
            [] if tokenizer is None else _token_bytes(tokenizer),
            environment,
            drafter=drafter,
        )
        if draft_adapters is not None:
            scheduler.draft_adapters.choice = draft_adapters
        grammars = None
        if tokenizer is not None:
            compiler = GrammarCompiler(
                tokenizer,
                config.eos_ids,
                self.wake,
                mask_threads=options.mask_threads,
                keeps_masks=keeps_masks,
            )
            grammars = GrammarAdmission(compiler)
        self.core = EngineCore(scheduler, runner, grammars=grammars)

    def _on_cpu(self) -> Runner:
        sizes, model = self.sizes, self.model
        self._pool: Any = self._pool_on_cpu()
        self._loader = self._make_loader(self._loaded)
        return ModelRunner(model, self._pool, sizes.num_blocks, BLOCK_SIZE, sizes.max_rows, sizes.max_len)

    def _on_gpu(self, options: RunnerOptions) -> Runner:
        from engine.device.gpu_runner import DeviceRunner

        sizes, model = self.sizes, self.model
        leader = self._leader
        whole, shard = (model.config, WHOLE) if leader is None else (leader.config, leader.group.shard)
        self._pool = self._pool_on_gpu(whole, shard)
        if leader is None:
            self._loader = self._make_loader(self._loaded)
        else:
            self._loader = leader.loader(self._loaded, self._make_loader)
            leader.begin(_begin(sizes, options))
        kv_dtype = torch.float8_e4m3fn if sizes.kv_dtype == "fp8" else model.dtype
        runner = DeviceRunner(
            model,
            self._pool,
            CacheLayout(sizes.num_blocks, BLOCK_SIZE, kv_dtype),
            BatchLimits(sizes.max_rows, sizes.max_len, sizes.max_batch_tokens),
            options,
        )
        began = time.perf_counter()
        runner.capture()
        self.capture_s = time.perf_counter() - began
        return runner if leader is None else leader.runner(runner)

    def _pool_on_cpu(self) -> Any:
        model = self.model
        return LibraryPool(self.library, model.config, self.sizes.num_slots, model.device, model.dtype)

    def _pool_on_gpu(self, whole: ModelConfig, shard: Shard) -> Any:
        sizes, device = self.sizes, self.model.device
        return LibraryDevicePool(self.library, whole, sizes.num_slots, sizes.adapter_bytes, device, shard)

    def _make_loader(self, on_done: OnDone) -> AdapterLoader[Any]:
        self._local_loader: AdapterLoader[Any] = LibraryLoader(self.library, self._pool, on_done)
        return self._local_loader

    def __enter__(self) -> InProcessEngine:
        # What is there now stays: collections between runs need not look at it. Another freeze, of a process
        # of tests, is left as it is.
        self._has_frozen = gc.get_freeze_count() < OTHERS_FROZEN
        if self._has_frozen:
            gc.collect()
            gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_frozen:
            gc.unfreeze()
        if self.model.device.type == "cuda":
            torch.cuda.synchronize()
        self._local_loader.close()
        self._pool.close()

    def submit(self, prompt_ids: list[int], output_len: int, adapter: Registered | None = None) -> str:
        """Greedy, to exactly `output_len` tokens. Returns the request's id."""
        self._num_requests += 1
        request_id = str(self._num_requests)
        rejected = self.core.submit(
            Submit(
                request_id,
                adapter.tenant if adapter else "tenant",
                prompt_ids,
                SamplingParams(output_len, temperature=0.0, ignore_eos=True),
                adapter.ref if adapter else None,
                submitted_at=time.time(),
            )
        )
        assert rejected is None, rejected
        return request_id

    def step(self, patience_s: float = STUCK_S) -> Sequence[TokenChunk]:
        """The chunks of one step. With nothing to run, sleeps until a load ends, `patience_s` at most."""
        if not self.core.has_work:
            self._wake.wait(patience_s)
            self._wake.clear()
        outputs = self.core.step()
        assert not outputs.rejected, outputs.rejected
        return outputs.chunks

    def wake(self) -> None:
        """Ends the sleep of a `step`, from any thread."""
        self._wake.set()
        self._on_wake()

    def drain(self) -> Iterator[Sequence[TokenChunk]]:
        """Steps until every request has ended."""
        last = time.monotonic()
        while self.core.scheduler.has_requests or self.core.has_work:
            chunks = self.step()
            assert all(chunk.finish_reason in (None, "length") for chunk in chunks), chunks
            if chunks:
                last = time.monotonic()
            assert time.monotonic() - last < STUCK_S, "no progress"
            yield chunks

    def answer(
        self, prompts: Sequence[list[int]], output_len: int, adapters: Sequence[Registered] = ()
    ) -> float:
        """Seconds until all prompts, on `adapters` in turn, have their `output_len` tokens."""
        began = time.perf_counter()
        for index, prompt_ids in enumerate(prompts):
            self.submit(prompt_ids, output_len, adapters[index % len(adapters)] if adapters else None)
        num_tokens = 0
        for chunks in self.drain():
            num_tokens += sum(len(chunk.token_ids) for chunk in chunks)
        seconds = time.perf_counter() - began
        assert num_tokens == len(prompts) * output_len, f"{num_tokens} tokens came back"
        return seconds

    def make_resident(self, adapters: Sequence[Registered]) -> float:
        """Seconds until all of them are in slots; at most as many as there are slots."""
        assert len(adapters) <= self.sizes.num_slots
        began = time.perf_counter()
        while missing := [adapter for adapter in adapters if not self.is_resident(adapter)]:
            assert time.perf_counter() - began < STUCK_S + len(adapters), "no progress"
            for adapter in missing:  # again, too: one may have been evicted for another of them
                self.core.prefetch(adapter.ref)
            self.core.step()
            self._wake.wait(0.01)
            self._wake.clear()
        return time.perf_counter() - began

    def is_resident(self, adapter: Registered) -> bool:
        slot = self.core.scheduler.slot_allocator.slots.find(adapter.ref.digest)
        return slot is not None and slot.state.value == "ready"

    def _loaded(self, slot: int, digest: str, error: str | None) -> None:
        """On the loader's thread."""
        self.core.adapter_loaded(slot, digest, error)
        self.wake()


def _begin(sizes: Sizes, options: RunnerOptions) -> Begin:
    """What the other ranks allocate."""
    device = DeviceSizes(
        sizes.max_batch_tokens,
        sizes.kv_dtype == "fp8",
        sizes.adapter_bytes,
        0,
        options.cuda_graphs,
        options.max_graph_rows,
        options.batch_invariant,
    )
    return Begin(sizes.num_blocks, BLOCK_SIZE, sizes.max_rows, sizes.max_len, sizes.num_slots, device)


def _token_bytes(tokenizer: LLTokenizer) -> list[bytes]:
    return [tokenizer.decode_bytes([token_id]) for token_id in range(tokenizer.vocab_size)]


def random_prompts(rng: np.random.Generator, vocab_size: int, lengths: Sequence[int]) -> list[list[int]]:
    """Of tokens that have never met in this order: no prefix is ever found in the cache."""
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


def pick_device(name: str) -> torch.device:
    """ "auto" is the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
