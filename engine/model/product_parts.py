"""Holds the memory in which products of few rows are left in parts, for the op behind them to add.

A product that several programs share ends when the last of them has added the others' sums to its own, a
microsecond or two later than it might (`kernels.linear_fp8`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from engine.model.quantization import Linear
from kernels.activation import Parts

MAX_ROWS = 128
"""Of any product that is left in parts."""


class ProductParts:
    """Memory for one kind of product, the largest of any layer and number of rows: captured steps keep its
    address.
    """

    def __init__(
        self,
        linears: Iterable[Linear],
        width: int,
        take: Callable[[int], tuple[Tensor, tuple[int, ...]]],
        max_rows: int = MAX_ROWS,
    ) -> None:
        """
        Args:
            width: columns of the product.
            take: allocates so many fp32 numbers, and returns the addresses of their copies on other GPUs.
            max_rows: products of more rows are computed whole.
        """
        self._max_rows = max_rows
        sizes = [2**power for power in range(max_rows.bit_length())]
        counts = {(linear.num_parts(rows), rows) for linear in linears for rows in sizes}
        numel = max((count * rows * width for count, rows in counts if count > 1), default=0)
        self._memory: Tensor | None = None
        self._copies: tuple[int, ...] = ()
        if numel:
            self._memory, self._copies = take(numel)

    def of(self, linear: Linear, out_TN: Tensor) -> Parts | None:
        """Returns memory for the parts of a product; None where it is computed whole."""
        num_rows = len(out_TN)
        if self._memory is None or num_rows > self._max_rows:
            return None
        count = linear.num_parts(num_rows)
        if count == 1:
            return None
        return Parts(self._memory[: count * out_TN.numel()].view(count, *out_TN.shape), self._copies)
