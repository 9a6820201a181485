"""Checks that all of an adapter's values are finite, and computes the norms of each module's change.

Data is read in parts, so that memory does not depend on the file's size. The norm of the change needs no
product of the matrices: |B A|^2 is the sum over i, j of (B^T B)_ij (A A^T)_ij, both of them rank x rank. Data
is read with numpy alone, which has no bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from adapters.inspection.errors import InspectionRefused
from adapters.inspection.header import ITEM_BYTES, Tensor, read_exactly
from adapters.inspection.modules import Pair

PIECE_BYTES = 1 << 19
"""Bytes of a tensor that are read and widened at a time."""
SMALLEST_ORDINARY, LARGEST_ORDINARY = 1e-12, 1e12
"""Between these, sums of a block's squares are accurate enough in fp32."""
ROUNDS_TO_INFINITY = float.fromhex("0x1.ffp127")
"""Half a step beyond the largest bfloat16: from here on an fp32 weight cannot be stored in it."""


@dataclass(frozen=True, slots=True)
class Norms:
    """Frobenius norms of one module."""

    a: float
    b: float
    delta: float
    """Norm of scale * B A, which is added to the base's weight."""


def measure(descriptor: int, pair: Pair) -> Norms:
    """Reads one module's weights. Raises InspectionRefused naming a tensor with values that are not
    finite.
    """
    gram_a = np.zeros((pair.rank, pair.rank))
    for block in _column_blocks(descriptor, pair.a):
        gram_a += block @ block.T
    gram_b = np.zeros((pair.rank, pair.rank))
    for block in _row_blocks(descriptor, pair.b):
        gram_b += block.T @ block
    # Rounding can make a sum of squares slightly negative.
    delta = math.sqrt(max(float((gram_a * gram_b).sum()), 0.0))
    return Norms(math.sqrt(gram_a.trace()), math.sqrt(gram_b.trace()), abs(pair.scale) * delta)


def _row_blocks(descriptor: int, tensor: Tensor) -> Iterator[np.ndarray]:
    """Yields a matrix from top to bottom."""
    rows, columns = tensor.shape
    row_bytes = columns * ITEM_BYTES[tensor.dtype]
    step = max(1, PIECE_BYTES // row_bytes)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        data = read_exactly(descriptor, tensor.start + first * row_bytes, count * row_bytes)
        yield _widened(tensor, data).reshape(count, columns)


def _column_blocks(descriptor: int, tensor: Tensor) -> Iterator[np.ndarray]:
    """Yields a matrix from left to right. A small one is one block, read at once."""
    rows, columns = tensor.shape
    item = ITEM_BYTES[tensor.dtype]
    step = max(1, PIECE_BYTES // (rows * item))
    if step >= columns:
        yield _widened(tensor, read_exactly(descriptor, tensor.start, rows * columns * item)).reshape(
            rows, -1
        )
        return
    for first in range(0, columns, step):
        count = min(step, columns - first)
        pieces = [
            read_exactly(descriptor, tensor.start + (row * columns + first) * item, count * item)
            for row in range(rows)
        ]
        yield _widened(tensor, b"".join(pieces)).reshape(rows, count)


def _widened(tensor: Tensor, data: bytes) -> np.ndarray:
    """Returns the values as fp32, or fp64 if fp32 could not hold sums of squares; checked."""
    if tensor.dtype == "BF16":
        # A bf16 is the upper half of an fp32.
        values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(data, "<f4" if tensor.dtype == "F32" else "<f2")
    if not np.isfinite(values).all():
        raise InspectionRefused(tensor.name, "has values that are not finite")
    largest = float(max(values.max(), -values.min()))
    if largest >= ROUNDS_TO_INFINITY:
        raise InspectionRefused(tensor.name, "has values beyond the range of bfloat16")
    ordinary = largest == 0 or SMALLEST_ORDINARY < largest < LARGEST_ORDINARY
    return values.astype(np.float32 if ordinary else np.float64, copy=False)
