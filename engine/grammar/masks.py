"""Fills token masks: the tokens that each constrained row may draw next, one bit each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from llguidance import LLExecutor, LLMatcher

from engine.grammar.constraint import Constraint, RowConstraint
from engine.grammar.mask_cache import Filling, MaskCache, Row, Words


def words_of(vocab_size: int) -> int:
    """Returns the 32-bit words of a mask."""
    return -(-vocab_size // 32)


class MaskFiller:
    """Fills the masks of a step side by side, in threads that do not hold the interpreter."""

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)
        self._waiting = ThreadPoolExecutor(1, "masks")
        self._cache = MaskCache()

    def start(
        self,
        constraints: Sequence[RowConstraint],
        bits_MW: Words,
        then: Callable[[], None] = lambda: None,
        ahead: Sequence[Sequence[int]] | None = None,
    ) -> Future[None]:
        """Advances the constraints by their pending tokens, and begins to set bit v % 32 of
        `bits_MW[i, v // 32]` where constraint i allows token v next. `then` is called when all are set.

        `ahead`: the drafts that each mask comes after. A constraint with drafts has a mask with fewer first.

        A grammar that is over, or too complex to follow, allows nothing: its row then fails.
        """
        restricting, opened, drafted = [], [], []
        for place, constraint in enumerate(constraints):
            drafts: Sequence[int] = ()
            if ahead is not None and ahead[place]:
                constraint, drafts = constraint.after(ahead[place])
            grammar = constraint.followed
            if grammar is None:
                constraint.restrict(bits_MW[place])
                continue
            if grammar is not constraint:
                restricting.append((place, constraint))
            if grammar.is_over:
                bits_MW[place] = 0
            elif drafts:
                drafted.append((grammar, place, drafts))
            else:
                opened.append((grammar.open(), place, grammar))
        # Neighbours in the list are filled by one thread: those that share a lane wait for each other.
        opened.sort(key=lambda one: id(one[2].lane))
        self._advance(opened)
        rows = [Row(matcher, place, grammar.state()) for matcher, place, grammar in opened]
        for grammar, place, drafts in drafted:
            matcher = grammar.look_ahead(drafts)
            if matcher is None:
                bits_MW[place] = 0  # the draw does not count: a draft before it cannot be drawn
            else:
                rows.append(Row(matcher, place, grammar.state(drafts)))
        to_fill = self._cache.copy_known(rows, bits_MW)
        begun = threading.Event()
        filling = self._waiting.submit(self._fill, begun, to_fill, restricting, bits_MW, then)
        # Nothing holds the interpreter while masks are filled, but a busy caller would be asked for it only
        # after milliseconds: so it waits until it is not needed any more.
        begun.wait()
        return filling

    def _advance(self, opened: list[tuple[LLMatcher, int, Constraint]]) -> None:
        """Has the grammars consume their pending tokens, and find which ones are forced."""
        advanced = []
        for matcher, _, grammar in opened:
            if grammar.pending:
                *accepted, last = grammar.take_pending()
                if accepted:  # drafts
                    matcher.consume_tokens(accepted)
                advanced.append((matcher, last))
        if advanced:
            self._executor.consume_token_par(advanced)
        for _, _, grammar in opened:
            if grammar.foresees:
                grammar.foreseen_ids = grammar.forced_ids()  # kept by the matcher: the mask needs it, too

    def _fill(
        self,
        begun: threading.Event,
        filling: Filling,
        restricting: list[tuple[int, RowConstraint]],
        bits_MW: Words,
        then: Callable[[], None],
    ) -> None:
        begun.set()
        self._compute(filling.rows, bits_MW)
        self._compute(self._cache.keep(filling, bits_MW), bits_MW)
        for place, constraint in restricting:
            constraint.restrict(bits_MW[place])
        then()

    def _compute(self, rows: list[Row], bits_MW: Words) -> None:
        """Fills masks. That of a matcher that fails allows nothing."""
        if not rows:
            return
        self._executor.unsafe_compute_mask_ptr(
            [(row.matcher, row.place) for row in rows],
            bits_MW.ctypes.data,
            bits_MW.strides[0],
            len(bits_MW),
        )
        for row in rows:
            if row.matcher.is_error():
                bits_MW[row.place] = 0
