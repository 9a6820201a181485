"""Remembers which rows of the batch are held to a grammar."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.grammar.constraint import Constraint
from kernels.sampling import NO_MASK

Ints = npt.NDArray[np.int64]


class RowConstraints:
    """The constraints of `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self._constraints: list[Constraint | None] = [None] * max_rows
        self._is_constrained = np.zeros(max_rows, bool)

    def enter(self, row: int, constraint: Constraint | None) -> None:
        """Assigns the constraint of the request that enters a row; None: it has no grammar."""
        self._constraints[row] = constraint
        self._is_constrained[row] = constraint is not None

    def free(self, row: int) -> None:
        """Frees a row."""
        self.enter(row, None)

    def of(self, rows: Ints) -> tuple[Ints, list[Constraint]]:
        """Returns (for each of `rows` the number of its constraint, or `NO_MASK`; the constraints)."""
        is_held = self._is_constrained[rows]
        held = [self._constraints[row] for row in rows[is_held].tolist()]
        masks = np.full(len(rows), NO_MASK)
        masks[is_held] = np.arange(len(held))
        return masks, [constraint for constraint in held if constraint is not None]
