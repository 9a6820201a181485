"""Benchmarks paged attention at the 8B shape: decoding rows and prefill chunks, with sizes and floors.

Work per step is fixed, and caches are larger than the L2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np
import torch
from torch import Tensor

from kernels.attention import AttentionPlan, paged_attention
from kernels.attention.device_plan import AttentionGeometry, DevicePlan, DeviceStep
from kernels.attention.metadata import AttentionMetadata, IntArray
from kernels.step_inputs import StepInputs
from kernels.workspace import Workspace

CACHE_BYTES = 256 << 20
"""Bytes of cache that runs walk through at least: several times the L2."""
CHECKED_SEQS = 4


@dataclass(frozen=True)
class Bench:
    """`num_seqs` sequences of `total_len` tokens, the last `query_len` of which are this step's."""

    num_seqs: int
    query_len: int
    total_len: int
    cache_dtype: torch.dtype = torch.bfloat16
    quantized: bool = False
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16

    @property
    def name(self) -> str:
        kind = "decode" if self.query_len == 1 else f"prefill {self.query_len}"
        cache = str(self.cache_dtype).removeprefix("torch.")
        return f"{kind} {self.num_seqs} x {self.total_len} {cache}" + " quantized" * self.quantized

    @property
    def bytes(self) -> int:
        """Keys and values once, queries in, rows out."""
        kv = (
            self.num_seqs * self.total_len * 2 * self.num_kv_heads * self.head_dim * self.cache_dtype.itemsize
        )
        per_number = 2 + 2 + self.quantized
        return kv + per_number * self.num_seqs * self.query_len * self.num_heads * self.head_dim

    @property
    def flops(self) -> int:
        """Two products over the keys that each query sees."""
        seen = self.query_len * self.total_len - self.query_len * (self.query_len - 1) // 2
        return 4 * self.num_seqs * seen * self.num_heads * self.head_dim

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        work = _Work(self, torch.device(device))
        turns = cycle(range(work.num_layers))
        return lambda: work.run(next(turns)), work.check


class _Work:
    """A filled step and enough layers of cache to walk past the L2."""

    def __init__(self, bench: Bench, device: torch.device) -> None:
        self.bench = bench
        seqs, query_len, total_len = bench.num_seqs, bench.query_len, bench.total_len
        per_seq = -(-total_len // bench.block_size)
        num_blocks = seqs * per_seq + 1
        layer = (num_blocks, 2, bench.num_kv_heads, bench.block_size, bench.head_dim)
        layer_bytes = int(np.prod(layer)) * bench.cache_dtype.itemsize
        self.num_layers = max(2, min(400, -(-CACHE_BYTES // layer_bytes)))
        torch.manual_seed(0)
        self.caches = [
            torch.randn(layer, device=device, dtype=torch.bfloat16).to(bench.cache_dtype)
            for _ in range(self.num_layers)
        ]
        self.tables = (np.random.default_rng(0).permutation(seqs * per_seq) + 1).reshape(seqs, per_seq)
        num_tokens = seqs * query_len
        self.q = torch.randn(num_tokens, bench.num_heads, bench.head_dim, device=device, dtype=torch.bfloat16)
        self.out = torch.empty_like(self.q)
        width = bench.num_heads * bench.head_dim
        self.quantized = (
            torch.empty(num_tokens, width, device=device, dtype=torch.float8_e4m3fn)
            if bench.quantized
            else None
        )
        self.scale = torch.empty(num_tokens, device=device) if bench.quantized else None
        self.step = self._step(device, per_seq)

    def _step(self, device: torch.device, per_seq: int) -> DeviceStep:
        bench, seqs = self.bench, self.bench.num_seqs
        inputs = StepInputs(device)
        geometry = AttentionGeometry(bench.num_heads, bench.num_kv_heads, bench.head_dim, bench.block_size)
        num_tokens = seqs * bench.query_len
        plan = DevicePlan(inputs, geometry, seqs, num_tokens, max(per_seq, 1024), device)
        inputs.freeze()
        plan.tables_RB[:seqs, :per_seq] = torch.from_numpy(self.tables).to(device, torch.int32)
        inputs.begin()
        plan.fill(np.arange(seqs), self._each(bench.query_len), self._each(bench.total_len), num_tokens)
        inputs.send()
        return plan.bucket(num_tokens, decode_only=bench.query_len == 1)

    def _each(self, value: int) -> IntArray:
        return np.full(self.bench.num_seqs, value)

    def run(self, layer: int) -> None:
        scale = self.bench.head_dim**-0.5
        paged_attention(
            self.q,
            self.caches[layer],
            self.step,
            scale,
            self.out,
            quantized=self.quantized,
            quantized_scale_T=self.scale,
        )

    def check(self) -> None:
        """Compares some sequences with the torch path in fp32."""
        bench, query_len = self.bench, self.bench.query_len
        self.out.fill_(float("nan"))
        self.run(0)
        assert self.out.isfinite().all(), "rows that were not written"
        for seq in np.unique(np.linspace(0, bench.num_seqs - 1, CHECKED_SEQS).astype(int)).tolist():
            rows = slice(seq * query_len, (seq + 1) * query_len)
            expected = self._reference(seq, self.q[rows].float())
            error = (self.out[rows].float() - expected).norm() / expected.norm()
            assert error < 1e-2, f"sequence {seq} is off by {float(error):.4f}"
        if self.quantized is not None and self.scale is not None:
            back = self.quantized.float() * self.scale[:, None]
            error = (back - self.out.flatten(1).float()).norm() / back.norm()
            assert error < 4e-2, f"quantised rows are off by {float(error):.4f}"

    def _reference(self, seq: int, q: Tensor) -> Tensor:
        bench = self.bench
        metadata = AttentionMetadata.build(
            [bench.query_len], [bench.total_len], np.arange(self.tables.shape[1])[None], bench.block_size
        )
        blocks = torch.from_numpy(self.tables[seq]).to(q.device)
        plan = AttentionPlan.build(metadata, bench.num_heads, bench.num_kv_heads, Workspace(q.device))
        out = torch.empty_like(q)
        paged_attention(q, self.caches[0][blocks].float(), plan, bench.head_dim**-0.5, out)
        return out


FP8 = torch.float8_e4m3fn
BENCHES = [
    *(Bench(rows, 1, 192, dtype) for dtype in (torch.bfloat16, FP8) for rows in (1, 32, 128, 256)),
    *(Bench(rows, 1, 192, quantized=True) for rows in (1, 256)),
    *(Bench(256, 1, 2048, dtype) for dtype in (torch.bfloat16, FP8)),
    *(Bench(8, 1, 32_768, dtype) for dtype in (torch.bfloat16, FP8)),
    Bench(1, 1, 131_072),
    *(Bench(1, 8192, 8192, dtype) for dtype in (torch.bfloat16, FP8)),
    *(Bench(16, 512, 512, dtype) for dtype in (torch.bfloat16, FP8)),
    *(Bench(32, 256, 256, dtype) for dtype in (torch.bfloat16, FP8)),
    Bench(4, 512, 8192),
]
