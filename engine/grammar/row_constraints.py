"""Remembers which rows of the batch are held to a grammar or a budget, and when a mask may matter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.grammar.constraint import ALWAYS, NEVER, RowConstraint
from kernels.sampling import NO_MASK

Ints = npt.NDArray[np.int64]


def ahead_of_masks(masks: Ints, ahead: list[list[int]] | None) -> list[list[int]] | None:
    """Returns the drafts that precede the draw of each mask, given those of all draws."""
    if ahead is None:
        return None
    return [drafts for mask, drafts in zip(masks.tolist(), ahead, strict=True) if mask != NO_MASK]


class RowConstraints:
    """The constraints of `max_rows` rows."""

    def __init__(self, max_rows: int) -> None:
        self._constraints: list[RowConstraint | None] = [None] * max_rows
        self._binds_from = np.full(max_rows, NEVER)
        """By row: tokens of output from which a mask may matter, as of the last look. It only rises."""

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
        binds_from = self._binds_from[rows]
        is_held = binds_from <= output_lens
        for place in np.flatnonzero(is_held & (binds_from != ALWAYS)).tolist():
            constraint = self._constraints[rows[place]]
            assert constraint is not None
            known = self._binds_from[rows[place]] = constraint.binds_from
            is_held[place] = known <= output_lens[place]
        held = [self._constraints[row] for row in rows[is_held].tolist()]
        masks[is_held] = np.arange(len(held))
        return masks, [constraint for constraint in held if constraint is not None]
