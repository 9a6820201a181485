"""Fills token masks: the tokens that each constrained row may draw next, one bit each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from engine.grammar.constraint import Constraint

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
        self, constraints: Sequence[Constraint], bits_MW: Words, then: Callable[[], None] = lambda: None
    ) -> Future[None]:
        """Advances the constraints by their pending tokens, and begins to set bit v % 32 of
        `bits_MW[i, v // 32]` where constraint i allows token v next. `then` is called when all are set.

        A constraint that is over, or too complex to follow, allows nothing: its row then fails.
        """
        # Neighbours in the list are filled by one thread: those of a lane, which wait for each other.
        places = [place for place, constraint in enumerate(constraints) if not constraint.is_over]
        matchers = {place: constraints[place].open() for place in places}
        places.sort(key=lambda place: constraints[place].lane)
        advanced = []
        for place in places:
            pending = constraints[place].pending
            if pending is not None:
                advanced.append((matchers[place], pending))
                constraints[place].pending = None
        if advanced:
            self._executor.consume_token_par(advanced)
        begun = threading.Event()
        filling = self._waiting.submit(
            self._fill, begun, [(matchers[place], place) for place in places], bits_MW, then
        )
        # Nothing holds the interpreter while masks are filled, but a busy caller would be asked for it only
        # after milliseconds: so it waits until it is not needed any more.
        begun.wait()
        return filling

    def _fill(
        self,
        begun: threading.Event,
        matchers: list[tuple[LLMatcher, int]],
        bits_MW: Words,
        then: Callable[[], None],
    ) -> None:
        begun.set()
        if matchers:
            self._executor.unsafe_compute_mask_ptr(
                matchers, bits_MW.ctypes.data, bits_MW.strides[0], len(bits_MW)
            )
        allowing = {place for matcher, place in matchers if not matcher.is_error()}
        for place in range(len(bits_MW)):
            if place not in allowing:
                bits_MW[place] = 0
        then()
