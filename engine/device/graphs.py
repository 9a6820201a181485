"""Captures CUDA graphs of steps by size: launching one replays a thousand kernels at the cost of one call.

Everything that differs between two steps of one bucket is read from device memory at fixed addresses, so a
graph serves any mix of rows, lengths and adapters.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.outputs import RunnerCounters

ROW_BUCKETS = (1, 2, 4)
"""Decode steps with few rows; beyond them, every multiple of `ROW_STEP`."""
ROW_STEP = 8
"""Padding costs at most the work of 7 rows, and products come in multiples of 8 or 16 rows anyway."""
TOKEN_BUCKETS = (16, 32)
"""Mixed steps of few tokens whose sequences are long: rows with drafts."""
TOKEN_STEP = 64
TOKEN_GROWTH = 1.125
"""Larger ones: a bucket is at most this much larger than the one below it, or `TOKEN_STEP` tokens."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A size of step that is captured; smaller steps are padded to it."""

    num_tokens: int
    decode_only: bool
    """Every token is decoded by itself; otherwise any mix of decoding rows and prefill chunks."""
    with_adapters: bool
    has_long: bool = True
    """The keys of a sequence may not all be read ahead. Else a layer has one launch less."""


def row_buckets(max_rows: int) -> list[int]:
    """Returns the numbers of rows at which decode steps are captured."""
    sizes = [size for size in ROW_BUCKETS if size < max_rows]
    return [*sizes, *range(ROW_STEP, max_rows, ROW_STEP), max_rows]


def token_buckets(max_tokens: int) -> list[int]:
    """Returns the numbers of tokens at which mixed steps are captured."""
    sizes = [*TOKEN_BUCKETS, TOKEN_STEP]
    while sizes[-1] < max_tokens:
        grown = int(sizes[-1] * TOKEN_GROWTH) // TOKEN_STEP * TOKEN_STEP
        sizes.append(max(grown, sizes[-1] + TOKEN_STEP))
    return [*(size for size in sizes if size < max_tokens), max_tokens]


def first_buckets(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Returns few of all buckets, in which any step runs that they hold: the largest, and those of at most a
    quarter of the one before; with adapters if there are any, since rows without one run there too.
    """
    with_adapters = any(bucket.with_adapters for bucket in buckets)
    first: list[Bucket] = []
    smallest: dict[bool, int] = {}
    holding = (bucket for bucket in buckets if bucket.has_long)
    for bucket in sorted(holding, key=lambda bucket: bucket.num_tokens, reverse=True):
        last = smallest.get(bucket.decode_only)
        if bucket.with_adapters == with_adapters and (last is None or bucket.num_tokens <= last // 4):
            smallest[bucket.decode_only] = bucket.num_tokens
            first.append(bucket)
    return first


class StepGraphs:
    """Captured steps. Logits of a bucket are in the same memory every time."""

    def __init__(
        self,
        forward: Callable[[Bucket], Tensor],
        rows: Sequence[int],
        tokens: Sequence[int],
        prepare: Callable[[Bucket], object] | None = None,
        ahead_keys: Callable[[int], int] = lambda num_tokens: 0,
    ) -> None:
        """`forward` queues one step of a bucket's size on the current stream, without waiting for it.
        `prepare` runs every kernel of it once, and grows every buffer; by default `forward` does.

        `rows` and `tokens`: sizes of decode and mixed steps, ascending. `ahead_keys`: the longest sequence
        that a decode step of a size may have without `has_long`; 0 where it always has.
        """
        self._forward = forward
        self._prepare = prepare or forward
        self._rows = list(rows)
        self._tokens = list(tokens)
        self._ahead_keys = ahead_keys
        self._graphs: dict[Bucket, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._postponed: dict[Bucket, Bucket] = {}
        """Buckets whose graphs are captured later, with those that run their steps until then."""
        self._stream: torch.cuda.Stream | None = None
        self._memory: tuple[int, int] | None = None
        """What all graphs allocate from."""
        self.counters = RunnerCounters()

    def bucket(self, num_tokens: int, decode_only: bool, with_adapters: bool, longest: int | None) -> Bucket:
        """Returns the smallest bucket that holds a step; a larger one while its graph is postponed.

        `longest`: tokens of its longest sequence; None where one has several in the step.
        """
        sizes = self._rows if decode_only else self._tokens
        size = sizes[bisect_left(sizes, num_tokens)]
        has_long = not decode_only or longest is None or longest > self._ahead_keys(size)
        smallest = Bucket(size, decode_only, with_adapters, has_long)
        return self._postponed.get(smallest, smallest)

    def buckets(self, with_adapters: bool) -> list[Bucket]:
        """Returns all buckets, the largest first: buffers grow once, and smaller graphs share
        their memory.
        """
        forms = (False, True) if with_adapters else (False,)
        sizes = [(size, False) for size in reversed(self._tokens)]
        sizes += [(size, True) for size in reversed(self._rows)]
        return [
            Bucket(size, decode_only, form, has_long)
            for size, decode_only in sizes
            for form in forms
            for has_long in ((True, False) if decode_only and self._ahead_keys(size) else (True,))
        ]

    def capture(
        self, buckets: Sequence[Bucket], on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Captures a graph for each bucket. `on_progress(done, of)` is called after each."""
        for done, bucket in enumerate(buckets, start=1):
            self._capture(bucket)
            if on_progress is not None:
                on_progress(done, len(buckets))

    def postpone(self, buckets: Sequence[Bucket]) -> None:
        """Leaves buckets to `capture_next`. Until then their steps run in the smallest that is captured and
        holds them. Those that none holds are captured at once.
        """
        for bucket in buckets:
            holds = [
                other
                for other in self._graphs
                if other.decode_only == bucket.decode_only
                and other.num_tokens >= bucket.num_tokens
                and other.with_adapters >= bucket.with_adapters
                and other.has_long
            ]
            if holds:
                self._postponed[bucket] = min(holds, key=lambda one: (one.num_tokens, one.with_adapters))
            else:
                self._capture(bucket)

    @property
    def num_postponed(self) -> int:
        """Buckets that are left to `capture_next`."""
        return len(self._postponed)

    def capture_next(self) -> None:
        """Captures the first bucket that was postponed, while no step runs. It takes as long as to launch a
        step kernel by kernel, tens of milliseconds.
        """
        bucket = next(iter(self._postponed))
        self._capture(bucket)
        del self._postponed[bucket]

    def _capture(self, bucket: Bucket) -> None:
        if self._stream is None:
            self._stream, self._memory = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        stream = self._stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._prepare(bucket)  # compiles kernels and grows buffers, neither of which can be captured
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads load adapters meanwhile, with calls that would end a capture of the whole process.
        capturing = torch.cuda.graph(
            graph, pool=self._memory, stream=stream, capture_error_mode="thread_local"
        )
        with _nothing_collected(), capturing:
            logits = self._forward(bucket)
        self._graphs[bucket] = graph, logits
        torch.cuda.current_stream().wait_stream(stream)

    def run(self, bucket: Bucket) -> Tensor:
        """Queues a step: a replay where there is a graph, else kernel by kernel. Returns its logits."""
        captured = self._graphs.get(bucket)
        if captured is None:
            self.counters.eager_steps += 1
            return self._forward(bucket)
        self.counters.graph_replays += 1
        captured[0].replay()
        return captured[1]


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Garbage may hold graphs of a closed engine; freeing one would break the capture under way."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
