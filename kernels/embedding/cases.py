"""Builds inputs for the tests and benchmarks of the embedding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor

from kernels.embedding.reference import embed_reference


@dataclass(frozen=True)
class Case:
    num_tokens: int
    vocab: int
    hidden: int
    num_rows: int = 8

    def inputs(
        self, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(ids_T, every third unknown to the host; rows_T; next_ids_R; table_VH)."""
        generator = torch.Generator().manual_seed(self.num_tokens)
        ids = torch.randint(self.vocab, (self.num_tokens,), generator=generator, dtype=torch.int32)
        ids[::3] = -1
        rows = torch.randint(self.num_rows, (self.num_tokens,), generator=generator, dtype=torch.int32)
        next_ids = torch.randint(self.vocab, (self.num_rows,), generator=generator, dtype=torch.int32)
        table = torch.randn(self.vocab, self.hidden, generator=generator)
        return ids.to(device), rows.to(device), next_ids.to(device), table.to(device, dtype)


CASES = [Case(1, 16, 64), Case(7, 50, 100), Case(33, 300, 1500)]


@dataclass(frozen=True)
class Bench:
    """Rows of the 8B shape's table, other ones every run."""

    num_tokens: int
    vocab: int = 128_256
    hidden: int = 4096
    flops: int = 0

    @property
    def name(self) -> str:
        return f"T={self.num_tokens}"

    @property
    def bytes(self) -> int:
        return 2 * 2 * self.num_tokens * self.hidden

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        from kernels.embedding import embed

        _, rows, next_ids, _ = Case(self.num_tokens, self.vocab, self.hidden).inputs(device=device)
        table = torch.randn(self.vocab, self.hidden, device=device, dtype=torch.bfloat16)
        batches = [
            torch.randint(self.vocab, (self.num_tokens,), device=device, dtype=torch.int32) for _ in range(64)
        ]
        out = table.new_empty(self.num_tokens, self.hidden)
        turn = cycle(batches)

        def run() -> None:
            embed(next(turn), rows, next_ids, table, out)

        def check() -> None:
            out.fill_(float("nan"))
            embed(batches[0], rows, next_ids, table, out)
            expected = embed_reference(batches[0], rows, next_ids, table, torch.empty_like(out))
            assert torch.equal(out, expected)

        return run, check


BENCHES = [Bench(1), Bench(256), Bench(8192)]
