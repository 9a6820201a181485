"""Builds inputs for the tests and benchmarks of rotation and KV write, and states plainly what
they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from kernels.delta_cases import adapter_delta
from kernels.rope_kv import CacheRows, kv_rows, rope_kv


@dataclass(frozen=True, slots=True)
class Where:
    """A `Placement` that is just its tensors."""

    positions_T: Tensor
    rows_T: Tensor
    tables_RB: Tensor


def rotary_table(num_positions: int, head_dim: int) -> Tensor:
    """fp32 [P, 2, D]: plane 0 the cosines twice over, plane 1 the sines, negated in the first half."""
    exponents = torch.arange(0, head_dim, 2) / head_dim
    angles = torch.arange(num_positions)[:, None] / 10_000.0**exponents
    cos, sin = angles.cos(), angles.sin()
    return torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), 1)


@dataclass(frozen=True)
class Case:
    """`positions`: one token each, every token of a sequence of its own; -1 for one that fills a bucket."""

    positions: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    normed: bool = False
    scaled: bool = False
    adapted: bool = False
    block_size: int = 16

    @property
    def width(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def where(self, device: torch.device | str = "cpu") -> Where:
        """Tokens in rows from the last to the first, each with the one block that its position lies in.

        The row after them is the null row.
        """
        num_rows = len(self.positions)
        positions = torch.tensor(self.positions, dtype=torch.int32)
        per_row = max(self.positions) // self.block_size + 1
        generator = torch.Generator().manual_seed(num_rows)
        blocks = (torch.randperm(num_rows, generator=generator) + 1).int()
        tables = torch.zeros(num_rows + 1, per_row, dtype=torch.int32)
        rows = torch.arange(num_rows, dtype=torch.int32).flip(0)
        tables[rows.long(), positions.clamp_min(0).long() // self.block_size] = blocks
        rows[positions < 0] = num_rows
        return Where(positions.to(device), rows.to(device), tables.to(device))

    def cache(self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Tensor:
        """[N, 2, Hkv, B, D], NaN all over."""
        shape = (1 + len(self.positions), 2, self.num_kv_heads, self.block_size, self.head_dim)
        return torch.full(shape, float("nan")).to(device, dtype)

    def inputs(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """(qkv_TN, rotary_P2D, the op's keyword arguments)."""
        generator = torch.Generator().manual_seed(len(self.positions) * 31 + self.head_dim)
        qkv = torch.randn(len(self.positions), self.width, generator=generator)
        q_norm, k_norm = 1 + 0.1 * torch.randn(2, self.head_dim, generator=generator)
        scale = torch.rand(len(self.positions), generator=generator) + 0.5
        options: dict[str, Any] = {
            "q_norm_D": q_norm.to(device, dtype) if self.normed else None,
            "k_norm_D": k_norm.to(device, dtype) if self.normed else None,
            "eps": 1e-6,
            "scale_T": scale.to(device) if self.scaled else None,
            "delta": adapter_delta(len(self.positions), self.width, device) if self.adapted else None,
        }
        table = rotary_table(max(self.positions) + 1, self.head_dim)
        return qkv.to(device, dtype), table.to(device), options

    def cache_rows(self) -> CacheRows:
        """What the torch path reads, of tokens that are all there."""
        where = self.where()
        positions, rows = where.positions_T.long(), where.rows_T.long()
        slots = where.tables_RB[rows, positions // self.block_size] * self.block_size
        return CacheRows(kv_rows(slots + positions % self.block_size, self.num_kv_heads, self.block_size))


def naive_rope_kv(
    case: Case,
    qkv: Tensor,
    table: Tensor,
    cache: Tensor,
    where: Where,
    options: dict[str, Any],
) -> Tensor:
    """Semantics: as `rope_kv`, a token and a head at a time in double precision; q, and NaN for filling."""
    q = torch.full((len(qkv), case.num_heads, case.head_dim), float("nan"), dtype=torch.float64)
    half = case.head_dim // 2
    for token, position in enumerate(where.positions_T[: len(qkv)].tolist()):
        if position < 0:
            continue
        scale, delta, eps = options["scale_T"], options["delta"], options["eps"]
        y = qkv[token].double()
        y = y if scale is None else y * scale[token].double()
        if delta is not None and delta.has_adapter_T[token]:
            y = y + delta.y_TN[token].double()
        heads = y.view(-1, case.head_dim)
        block = int(where.tables_RB[int(where.rows_T[token]), position // case.block_size])
        for head, x in enumerate(heads):
            plane, kv_head = divmod(head - case.num_heads, case.num_kv_heads)
            weight = options["q_norm_D"] if head < case.num_heads else options["k_norm_D"]
            if plane < 1 and weight is not None:
                x = x / (x.square().mean() + eps).sqrt() * weight.double()
            if plane < 1:
                cos, sin = table[position, 0, :half].double(), table[position, 1, half:].double()
                x = torch.cat((x[:half] * cos - x[half:] * sin, x[half:] * cos + x[:half] * sin))
            if head < case.num_heads:
                q[token, head] = x
            else:
                fits = x.clamp(-448, 448) if cache.dtype == torch.float8_e4m3fn else x
                cache[block, plane, kv_head, position % case.block_size] = fits.float().to(cache.dtype)
    return q


CASES = [
    Case((0,), 4, 2, 32),
    Case((17, 0, 15, 16, 40), 4, 1, 64, normed=True, scaled=True),
    Case((3, -1, 8, -1), 6, 3, 48, scaled=True, block_size=8),
    Case((5, 31, 2), 3, 3, 128, normed=True),
    Case((9, 1), 2, 1, 256),
    Case((17, 0, 15, 16, 40), 4, 1, 64, normed=True, scaled=True, adapted=True),
    Case((3, -1, 8, -1, 20), 6, 3, 48, adapted=True, block_size=8),
]


CHECKED_TOKENS = 8


@dataclass(frozen=True)
class Bench:
    """Decoding rows of the 8B shape at 192 tokens, FP8 base: scaled rows."""

    num_tokens: int
    cache_dtype: torch.dtype
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    flops: int = 0

    @property
    def name(self) -> str:
        return f"T={self.num_tokens} {str(self.cache_dtype).removeprefix('torch.')}"

    @property
    def bytes(self) -> int:
        """q, k and v read, q written in place, k and v into the cache, half of each rotary plane read."""
        q, kv = self.num_heads * self.head_dim, 2 * self.num_kv_heads * self.head_dim
        return self.num_tokens * (4 * q + 2 * kv + kv * self.cache_dtype.itemsize + 4 * self.head_dim)

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        shape = self.num_heads, self.num_kv_heads, self.head_dim
        case = Case(tuple(100 + 7 * row % 190 for row in range(self.num_tokens)), *shape, scaled=True)
        qkv, table, options = case.inputs(torch.bfloat16, device)
        where = case.where(device)
        # Copies past the L2, so that every run reads memory.
        copies = max(2, (160 << 20) // self.bytes)
        batches = cycle([(qkv.clone(), case.cache(self.cache_dtype, device)) for _ in range(min(copies, 64))])

        def run() -> None:
            rows, cache = next(batches)
            rope_kv(rows, table, cache, where, self.num_heads, **options)

        def check() -> None:
            """The first tokens against the plain statement, which takes its time."""
            rows, cache = qkv.clone(), case.cache(self.cache_dtype, device)
            got = rope_kv(rows, table, cache, where, self.num_heads, **options)
            few = min(CHECKED_TOKENS, self.num_tokens)
            here = case.where()
            expected_cache = case.cache(self.cache_dtype)
            expected = naive_rope_kv(
                case, qkv[:few].cpu(), table.cpu(), expected_cache, here, case.inputs(torch.bfloat16)[2]
            )
            torch.testing.assert_close(got[:few].double().cpu(), expected, rtol=2**-7, atol=1e-5)
            blocks = here.tables_RB[here.rows_T[:few].long()].long()
            torch.testing.assert_close(
                cache[blocks.to(device)].float().cpu(),
                expected_cache[blocks].float(),
                rtol=2**-7 if self.cache_dtype == torch.bfloat16 else 2**-3,
                atol=2**-9,
                equal_nan=True,
            )

        return run, check


BENCHES = [
    Bench(num_tokens, dtype)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    for num_tokens in (1, 32, 256, 2048)
]
