"""Fills token masks: the tokens that each constrained row may draw next, one bit each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from engine.grammar.constraint import Constraint, RowConstraint

Words = npt.NDArray[np.int32]


def words_of(vocab_size: int) -> int:
    """Returns the 32-bit words of a mask."""
    return -(-vocab_size // 32)


class MaskFiller:
    """Fills the masks of a step side by side, in threads that do not hold the interpreter."""

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)

    def fill(self, constraints: Sequence[RowConstraint], bits_MW: Words) -> None:
        """Advances the constraints by their pending tokens, and sets bit v % 32 of `bits_MW[i, v // 32]`
        where constraint i allows token v next.

        A grammar that is over, or too complex to follow, allows nothing: its row then fails.
        """
        followed = [
            (place, grammar)
            for place, constraint in enumerate(constraints)
            if (grammar := constraint.followed) is not None
        ]
        self._fill_grammars(followed, bits_MW)
        for place, constraint in enumerate(constraints):
            constraint.restrict(bits_MW[place])

    def _fill_grammars(self, followed: list[tuple[int, Constraint]], bits_MW: Words) -> None:
        """Fills the masks of grammars, each with its place in `bits_MW`."""
        matchers = {place: grammar.open() for place, grammar in followed if not grammar.is_over}
        # Neighbours in the list are filled by one thread: those of a lane, which wait for each other.
        open_ones = sorted(
            ((place, grammar) for place, grammar in followed if place in matchers),
            key=lambda entry: entry[1].lane,
        )
        advanced = []
        for place, grammar in open_ones:
            if grammar.pending is not None:
                advanced.append((matchers[place], grammar.pending))
                grammar.pending = None
        if advanced:
            self._executor.consume_token_par(advanced)
        if open_ones:
            self._executor.unsafe_compute_mask_ptr(
                [(matchers[place], place) for place, _ in open_ones],
                bits_MW.ctypes.data,
                bits_MW.strides[0],
                len(bits_MW),
            )
        for place, _ in followed:
            if place not in matchers or matchers[place].is_error():
                bits_MW[place] = 0
