"""Fills token masks: the tokens that each constrained row may draw next, one bit each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine.grammar.constraint import Constraint, RowConstraint

Words = npt.NDArray[np.int32]


def words_of(vocab_size: int) -> int:
    """Returns the 32-bit words of a mask."""
    return -(-vocab_size // 32)


class MaskFiller:
    """Fills the masks of a step side by side, in threads that do not hold the interpreter."""

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)
        self._waiting = ThreadPoolExecutor(1, "masks")

    def start(
        self, constraints: Sequence[RowConstraint], bits_MW: Words, then: Callable[[], None] = lambda: None
    ) -> Future[None]:
        """Advances the constraints by their pending tokens, and begins to set bit v % 32 of
        `bits_MW[i, v // 32]` where constraint i allows token v next. `then` is called when all are set.

        A grammar that is over, or too complex to follow, allows nothing: its row then fails.
        """
        followed: dict[int, Constraint] = {}
        for place, constraint in enumerate(constraints):
            grammar = constraint.followed
            if grammar is None:
                constraint.restrict(bits_MW[place])
            else:
                followed[place] = grammar
        matchers = self._advanced(followed)
        begun = threading.Event()
        restricting = [(place, constraints[place]) for place in followed]
        filling = self._waiting.submit(self._fill, begun, matchers, restricting, bits_MW, then)
        # Nothing holds the interpreter while masks are filled, but a busy caller would be asked for it only
        # after milliseconds: so it waits until it is not needed any more.
        begun.wait()
        return filling

    def _advanced(self, followed: dict[int, Constraint]) -> list[tuple[LLMatcher, int]]:
        """Advances grammars by their places. Returns the matchers of those that are not over."""
        # Neighbours in the list are filled by one thread: those of a lane, which wait for each other.
        matchers = {place: grammar.open() for place, grammar in followed.items() if not grammar.is_over}
        places = sorted(matchers, key=lambda place: followed[place].lane)
        advanced = []
        for place in places:
            pending = followed[place].pending
            if pending is not None:
                advanced.append((matchers[place], pending))
                followed[place].pending = None
        if advanced:
            self._executor.consume_token_par(advanced)
        return [(matchers[place], place) for place in places]

    def _fill(
        self,
        begun: threading.Event,
        matchers: list[tuple[LLMatcher, int]],
        restricting: list[tuple[int, RowConstraint]],
        bits_MW: Words,
        then: Callable[[], None],
    ) -> None:
        begun.set()
        if matchers:
            self._executor.unsafe_compute_mask_ptr(
                matchers, bits_MW.ctypes.data, bits_MW.strides[0], len(bits_MW)
            )
        allowing = {place for matcher, place in matchers if not matcher.is_error()}
        for place, constraint in restricting:
            if place not in allowing:
                bits_MW[place] = 0
            constraint.restrict(bits_MW[place])
        then()
