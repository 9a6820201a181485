"""Remembers which rows of the batch are held to a grammar or a budget, and when a mask may matter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.grammar.constraint import NEVER, RowConstraint
from kernels.sampling import NO_MASK

Ints = npt.NDArray[np.int64]


class RowConstraints:
    """The constraints of `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self._constraints: list[RowConstraint | None] = [None] * max_rows
        self._binds_from = np.full(max_rows, NEVER)
        """By row: tokens of output from which its constraint may matter. It only rises."""

    def enter(self, row: int, constraint: RowConstraint | None) -> None:
        """Assigns the constraint of the request that enters a row; None: every token is allowed."""
        self._constraints[row] = constraint
        self._binds_from[row] = NEVER if constraint is None else constraint.binds_from

    def free(self, row: int) -> None:
        """Frees a row."""
        self.enter(row, None)

    def of(self, rows: Ints, output_lens: Ints) -> tuple[Ints, list[RowConstraint]]:
        """Returns (for each of `rows` the number of its constraint, or `NO_MASK`; the constraints).

        `output_lens`: tokens that each row has generated, pending ones included.
        """
        masks = np.full(len(rows), NO_MASK)
        binding: list[RowConstraint] = []
        for place in np.flatnonzero(self._binds_from[rows] <= output_lens).tolist():
            constraint = self._constraints[rows[place]]
            assert constraint is not None
            binds_from = self._binds_from[rows[place]] = constraint.binds_from
            if binds_from <= output_lens[place]:
                masks[place] = len(binding)
                binding.append(constraint)
        return masks, binding
