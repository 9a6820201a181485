"""Defines a step's sampling parameters, where results go, and the memory that its kernels share.

Also says how a row is cut into blocks. Imports no triton: engines on a CPU read this too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MAX_VOCABULARY = 1 << 18
"""As many weights of 1 as an integer sum holds."""
MIN_BLOCK = 1024
MAX_BLOCK = 8192
MIN_PROGRAMS = 512
"""Some four for each multiprocessor of an H200: blocks are halved until there are as many."""
GATHER_BLOCK = 2048
"""Tokens per program that gathers candidates, 8 for each of 256 threads (twice that: 8 % slower). One for all
steps: the blocks' sums in fp32 decide what top-p wants, and a row's draw may not depend on its batch."""
CANDIDATES = 16384
"""That one program keeps in registers when it looks for a threshold: 32 for each of 512 threads."""

NO_MASK = -1
"""Mask of a position that may draw any token."""


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """The parameters of a step's positions, on the device; arrays may be longer than the step."""

    temperature_S: Tensor
    """fp32; 0 is greedy."""
    top_k_S: Tensor
    """int32; outside 1..V is off."""
    top_p_S: Tensor
    """fp32; 1 is off."""
    min_p_S: Tensor
    """fp32; 0 is off."""
    seeds_S: Tensor
    """int64."""
    positions_S: Tensor
    """int64: of the token in the request's output."""
    rows_S: Tensor
    """int32: row of the batch state; the null row (the last) skips the position."""
    places_S: Tensor
    """int32: where the position's results go."""


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that some positions may draw, one bit each; the other positions may draw any."""

    bits_MW: Tensor
    """int32, by mask: bit v % 32 of word v // 32 allows token v; W is at least V / 32, rounded up."""
    masks_S: Tensor
    """int32, by position: its mask; `NO_MASK` for none."""

    def at(self, positions: npt.NDArray[np.integer]) -> TokenMasks:
        """Returns the masks of some positions, in the order given."""
        return TokenMasks(self.bits_MW, self.masks_S[torch.from_numpy(positions)])


@dataclass(frozen=True, slots=True)
class Drawn:
    """Where results go, on the device."""

    ids_S: Tensor
    """int32, by place."""
    finite_S: Tensor
    """uint8, by place: 0 for a row whose largest logit is not finite; its id is 0."""
    next_ids_R: Tensor
    """int32, by row of the batch state, the null row last: the inputs of the next step."""


@dataclass(slots=True)
class Scratch:
    """Memory between the kernels of a step, for up to `max_positions` of them."""

    max_positions: int
    vocab_size: int
    device: torch.device
    best_SB: Tensor = field(init=False)
    tickets_S: Tensor = field(init=False)
    largest_S: Tensor = field(init=False)
    bottom_S: Tensor = field(init=False)
    counts_S: Tensor = field(init=False)
    weights_SB: Tensor = field(init=False)
    list_SL: Tensor = field(init=False)
    limit_S: Tensor = field(init=False)
    masses_SB: Tensor = field(init=False)

    def __post_init__(self) -> None:
        if self.vocab_size > MAX_VOCABULARY:
            raise ValueError(f"a vocabulary of {self.vocab_size} is larger than {MAX_VOCABULARY}")
        positions, device = self.max_positions, self.device
        # The most blocks of rows there are at any number of positions.
        most = max(
            num * num_blocks(self.vocab_size, block_size(num, self.vocab_size))
            for num in range(1, positions + 1)
        )
        self.best_SB = torch.empty(most, dtype=torch.float32, device=device)
        self.tickets_S = torch.zeros(positions, dtype=torch.int32, device=device)
        self.largest_S = torch.empty(positions, dtype=torch.float32, device=device)
        self.bottom_S = torch.empty(positions, dtype=torch.float32, device=device)
        self.counts_S = torch.zeros(positions, dtype=torch.int32, device=device)
        weighed = num_blocks(self.vocab_size, GATHER_BLOCK)
        self.weights_SB = torch.empty(positions, weighed, dtype=torch.float32, device=device)
        self.list_SL = torch.empty(positions, CANDIDATES, dtype=torch.float32, device=device)
        self.limit_S = torch.empty(positions, dtype=torch.float32, device=device)
        self.masses_SB = torch.empty(most, dtype=torch.int64, device=device)


def block_size(num_positions: int, vocab_size: int) -> int:
    """Tokens per program of the passes over all rows: many, but with enough programs for the whole device."""
    block = MAX_BLOCK
    while block > MIN_BLOCK and num_positions * num_blocks(vocab_size, block) < MIN_PROGRAMS:
        block //= 2
    return block


def num_blocks(vocab_size: int, block: int) -> int:
    """Of a row."""
    return -(-vocab_size // block)
