"""Builds inputs shared by the tests of every implementation of the op, and by its benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch

from kernels.sampling.step import NO_MASK, Drawn, SamplingInputs, Scratch, TokenMasks


@dataclass(frozen=True, slots=True)
class Truncation:
    """One row's truncation parameters."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


TRUNCATIONS = [
    Truncation(),
    Truncation(temperature=0.3),
    Truncation(temperature=2.5),
    Truncation(top_k=1),
    Truncation(top_k=7),
    Truncation(top_k=10**6),
    Truncation(top_k=300),
    Truncation(top_p=0.0),
    Truncation(top_p=0.1),
    Truncation(top_p=0.9),
    Truncation(top_p=0.999),
    Truncation(min_p=0.05),
    Truncation(min_p=1.0),
    Truncation(temperature=0.7, top_k=40, top_p=0.8),
    Truncation(temperature=1.5, top_k=400, top_p=0.95, min_p=0.02),
]
"""Each alone and all mixed in one batch."""


def logits(num_rows: int, vocab_size: int, *, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    """Normal logits [S, V]; a spread of 3 is peaked like a trained model, 0.1 nearly flat."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * spread


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of every truncation, with greedy rows, failed rows and padding among them."""

    vocab_size: int
    spread: float = 3.0
    dtype: torch.dtype = torch.float32
    strided: bool = False

    def logits(self, num_rows: int) -> torch.Tensor:
        """Row 1 holds a NaN, row 2 an infinity, row 3 nothing but -inf, row 4 three that are largest."""
        width = 2 * self.vocab_size + 16 if self.strided else self.vocab_size
        made = logits(num_rows, width, spread=self.spread, seed=self.vocab_size).to(self.dtype)
        made = made[:, : self.vocab_size]
        made[1, self.vocab_size // 2], made[2, 0], made[3] = torch.nan, torch.inf, -torch.inf
        made[4, [1, 5, self.vocab_size - 1]] = 50.0
        return made


CASES = [
    Case(50),
    Case(700, spread=0.1),
    Case(3_000, dtype=torch.bfloat16, strided=True),
    Case(16_900),
]
"""The last has more tokens than one program keeps in registers."""


def sampling_inputs(
    parameters: Sequence[Truncation | None], device: torch.device | str, *, num_rows: int, seed: int = 5
) -> tuple[SamplingInputs, Drawn]:
    """Position s draws at (seed, s) for row `num_rows - 1 - s` into place s; None is greedy."""

    def column(of: Callable[[Truncation], float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([of(one or Truncation(temperature=0.0)) for one in parameters], dtype=dtype).to(
            device
        )

    order = torch.arange(len(parameters), dtype=torch.int32, device=device)
    return (
        SamplingInputs(
            temperature_S=column(lambda one: one.temperature, torch.float32),
            top_k_S=column(lambda one: one.top_k, torch.int32),
            top_p_S=column(lambda one: one.top_p, torch.float32),
            min_p_S=column(lambda one: one.min_p, torch.float32),
            seeds_S=torch.full_like(order, seed).long(),
            positions_S=order.long(),
            rows_S=num_rows - 1 - order,
            places_S=order,
        ),
        Drawn(
            ids_S=torch.full_like(order, -7),
            finite_S=torch.full_like(order, 9, dtype=torch.uint8),
            next_ids_R=torch.full((num_rows + 1,), -7, dtype=torch.int32, device=device),
        ),
    )


NUM_ALLOWED = (1, 2, 40, 0, 10**9)
"""Tokens that masks allow: few, as between the words of JSON; none; all but one, as inside its strings."""


def token_masks(
    num_positions: int, vocab_size: int, device: torch.device | str, *, seed: int = 3
) -> TokenMasks:
    """Every third position has no mask; the others' masks are of every size, and in another order."""
    generator = torch.Generator().manual_seed(seed)
    masks_S = torch.arange(num_positions, dtype=torch.int32).flip(0)
    words = -(-vocab_size // 32) + 1
    allowed_MV = torch.zeros(num_positions, 32 * words, dtype=torch.bool)
    for mask in range(num_positions):
        num = min(NUM_ALLOWED[mask % len(NUM_ALLOWED)], vocab_size - 1)
        allowed_MV[mask, torch.randperm(vocab_size, generator=generator)[:num]] = True
    masks_S[::3] = NO_MASK
    return TokenMasks(pack(allowed_MV).to(device), masks_S.to(device))


def pack(allowed_MV: torch.Tensor) -> torch.Tensor:
    """Semantics: bit v % 32 of out[m, v // 32] = allowed[m, v]; int32, of bool [M, 32 W]."""
    shifts = torch.arange(32, dtype=torch.int64)
    words_MW = (allowed_MV.unflatten(1, (-1, 32)).long() << shifts).sum(dim=-1)
    return (words_MW - ((words_MW >> 31) << 32)).int()


@dataclass(frozen=True, slots=True)
class Bench:
    """One step's draws for the 8B shape's vocabulary."""

    num_rows: int
    kind: str
    parameters: Truncation | None
    dtype: torch.dtype = torch.float32
    vocab_size: int = 128_256
    flops: int = 0

    @property
    def name(self) -> str:
        return f"S={self.num_rows} {self.kind} {str(self.dtype)[6:]}"

    @property
    def bytes(self) -> int:
        """The logits, once."""
        return self.num_rows * self.vocab_size * self.dtype.itemsize

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        """Normal logits with a deviation of 3: top-p 0.9 keeps some 5000 tokens."""
        from kernels.sampling import sample
        from kernels.sampling.reference import sample_reference

        num_buffers = max(2, min(32, int(2e8 / self.bytes)))
        generator = torch.Generator(device=device).manual_seed(1)
        shape = (self.num_rows, self.vocab_size)
        buffers = [
            (3 * torch.randn(shape, generator=generator, device=device)).to(self.dtype)
            for _ in range(num_buffers)
        ]
        parameters, drawn = sampling_inputs([self.parameters] * self.num_rows, device, num_rows=self.num_rows)
        scratch = Scratch(self.num_rows, self.vocab_size, device)
        turn = cycle(buffers)
        one = self.parameters
        draws = one is not None
        truncates = one is not None and (one.top_k > 0 or one.top_p < 1)

        def run() -> None:
            sample(next(turn), parameters, drawn, scratch, draws=draws, truncates=truncates)

        def check() -> None:
            _, expected = sampling_inputs([self.parameters] * self.num_rows, device, num_rows=self.num_rows)
            for buffer in buffers[:2]:
                sample(buffer, parameters, drawn, scratch, draws=draws, truncates=truncates)
                sample_reference(buffer, parameters, expected)
                # Where weights' last bits decide, a neighbour: hardly ever.
                assert (drawn.ids_S == expected.ids_S).float().mean() >= 0.98
                assert torch.equal(drawn.finite_S, expected.finite_S)

        return run, check


BENCHES = [
    Bench(num_rows, kind, parameters, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for num_rows in (1, 32, 128, 256)
    for kind, parameters in (
        ("greedy", None),
        ("temperature", Truncation()),
        ("top-p 0.9", Truncation(top_p=0.9)),
        ("top-k 40, top-p 0.9", Truncation(top_k=40, top_p=0.9)),
        ("top-p 0.9 at 2.5", Truncation(temperature=2.5, top_p=0.9)),
    )
]
