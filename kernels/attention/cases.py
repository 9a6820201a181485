"""Builds inputs for the tests and benchmarks of paged attention, and states plainly what it computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.attention.benches import BENCHES
from kernels.attention.device_plan import AttentionGeometry, DevicePlan, DeviceStep
from kernels.attention.metadata import AttentionMetadata, IntArray
from kernels.step_inputs import StepInputs

__all__ = ["AHEAD_CASES", "BENCHES", "CASES", "Case", "DeviceBatch", "naive_attention"]


@dataclass(frozen=True)
class Case:
    """`seqs`: (query_len, total_len) per sequence."""

    seqs: tuple[tuple[int, int], ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 16

    def metadata(self) -> AttentionMetadata:
        """Blocks in random order; entries beyond a sequence's blocks are invalid, to prove that they are not
        read.
        """
        rng = np.random.default_rng(len(self.seqs))
        needed = [-(-total // self.block_size) for _, total in self.seqs]
        free = (rng.permutation(sum(needed)) + 1).tolist()
        tables = np.full((len(self.seqs), max(needed) + 1), 10**6, dtype=np.int32)
        for row, count in enumerate(needed):
            tables[row, :count] = [free.pop() for _ in range(count)]
        query_lens, total_lens = zip(*self.seqs, strict=True)
        return AttentionMetadata.build(query_lens, total_lens, tables, self.block_size)

    @property
    def num_blocks(self) -> int:
        return 1 + sum(-(-total // self.block_size) for _, total in self.seqs)

    def inputs(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """(q_THD, one layer's cache), the null block zero."""
        generator = torch.Generator().manual_seed(sum(total for _, total in self.seqs))
        num_tokens = sum(query for query, _ in self.seqs)
        q = torch.randn(num_tokens, self.num_heads, self.head_dim, generator=generator)
        shape = (self.num_blocks, 2, self.num_kv_heads, self.block_size, self.head_dim)
        cache = torch.randn(shape, generator=generator)
        cache[0] = 0
        return q.to(device, dtype), cache.to(device, dtype)

    def poison(self, cache: Tensor, value: float = float("nan")) -> Tensor:
        """Fills what no token of the step may read: the null block, and slots beyond each sequence's end."""
        metadata = self.metadata()
        seen = torch.zeros(cache.shape[0], self.block_size, dtype=torch.bool)
        for seq, (_, total) in enumerate(self.seqs):
            positions = torch.arange(total)
            blocks = torch.from_numpy(metadata.block_tables[seq]).long()[positions // self.block_size]
            seen[blocks, positions % self.block_size] = True
        hidden = ~seen.to(cache.device)[:, None, None, :, None]
        return torch.where(hidden, torch.tensor(value, device=cache.device), cache.float()).to(cache.dtype)

    def device_step(
        self,
        device: torch.device | str = "cpu",
        filling: int = 0,
        *,
        reads_ahead: bool = False,
        decode_only: bool = False,
    ) -> DeviceStep:
        """Returns the step as kernels read it, rows in reverse order, in a bucket with `filling` tokens to
        spare. `decode_only`: tokens of chunks are decoded.
        """
        metadata = self.metadata()
        num_seqs, num_tokens = metadata.num_seqs, metadata.num_tokens + filling
        decode_only = decode_only or bool((metadata.query_lens == 1).all())
        max_rows = num_tokens if decode_only else num_seqs + filling
        max_blocks = metadata.block_tables.shape[1]
        batch = DeviceBatch(self, max_rows, num_tokens, max_blocks, device, reads_ahead=reads_ahead)
        rows = np.arange(num_seqs)[::-1].copy()
        batch.set_tables(rows, metadata.block_tables)
        step = batch.plan.bucket(num_tokens, decode_only)
        batch.fill(rows, metadata.query_lens, metadata.total_lens, num_tokens, decode_only=decode_only)
        return step


class DeviceBatch:
    """A plan with inputs of its own."""

    def __init__(
        self,
        case: Case,
        max_rows: int,
        max_tokens: int,
        max_blocks: int,
        device: torch.device | str,
        *,
        reads_ahead: bool = False,
    ) -> None:
        self.inputs = StepInputs(device)
        geometry = AttentionGeometry(case.num_heads, case.num_kv_heads, case.head_dim, case.block_size)
        self.plan = DevicePlan(
            self.inputs, geometry, max_rows, max_tokens, max_blocks, device, reads_ahead=reads_ahead
        )
        self.inputs.freeze()

    def set_tables(self, rows: IntArray, tables: IntArray) -> None:
        there = self.plan.tables_RB
        new = torch.from_numpy(np.ascontiguousarray(tables)).to(there.device, torch.int32)
        there[torch.from_numpy(rows).to(there.device), : new.shape[1]] = new

    def fill(
        self,
        rows: IntArray,
        query_lens: IntArray,
        total_lens: IntArray,
        num_tokens: int,
        *,
        decode_only: bool = False,
    ) -> IntArray:
        """Sends one step. Returns its tokens' positions."""
        self.inputs.begin()
        positions = self.plan.fill(rows, query_lens, total_lens, num_tokens, decode_only=decode_only)
        self.inputs.send()
        return positions


def naive_attention(q_THD: Tensor, cache: Tensor, metadata: AttentionMetadata, scale: float) -> Tensor:
    """Semantics: as `paged_attention`; one token and one head at a time, in double precision."""
    out = torch.full_like(q_THD, float("nan"), dtype=torch.float64)
    num_heads, num_kv_heads = q_THD.shape[1], cache.shape[2]
    size = metadata.block_size
    for seq in range(metadata.num_seqs):
        start, count = int(metadata.query_starts[seq]), int(metadata.query_lens[seq])
        for token in range(start, start + count):
            seen = int(metadata.positions[token]) + 1
            blocks = metadata.block_tables[seq, : -(-seen // size)].tolist()
            for head in range(num_heads):
                group = head // (num_heads // num_kv_heads)
                k = cache[blocks, 0, group].reshape(-1, q_THD.shape[2])[:seen].double()
                v = cache[blocks, 1, group].reshape(-1, q_THD.shape[2])[:seen].double()
                out[token, head] = torch.softmax(k @ q_THD[token, head].double() * scale, 0) @ v
    return out


AHEAD_CASES = [
    Case(((1, 1),), 4, 4, 16),
    Case(((1, 2048),), 4, 2, 32),
    Case(((1, 1024), (1, 1025)), 4, 2, 16),
    Case(((1, 17), (1, 256), (1, 257)), 7, 1, 48),
    Case(((1, 512), (1, 16), (1, 513), (1, 3)), 4, 2, 64),
    Case(((1, 9), (1, 40)), 6, 2, 128, block_size=8),
]
"""Small enough to be read ahead, but for one sequence that is too long."""

CASES = [
    Case(((1, 1),), 4, 4, 16),
    Case(((1, 17), (1, 16), (1, 100)), 4, 2, 32),
    Case(((1, 5), (1, 300), (1, 31), (1, 290), (1, 1)), 4, 1, 16),
    Case(((7, 7),), 4, 2, 16),
    Case(((1, 40), (1, 3), (20, 50), (2, 2), (3, 19)), 8, 2, 32),
    Case(((200, 260), (1, 260)), 2, 2, 16),
    Case(((1, 9), (5, 12)), 6, 2, 64, block_size=8),
]
