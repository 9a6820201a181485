"""Keeps masks by state, and says which of a step's masks have to be filled.

Rows of one grammar whose texts have equal keys (`engine/grammar/text_state.py`) have equal masks: the first
of them is filled, the others are copies, in this step and in later ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.grammar.tenant_cache import TenantCache
from engine.grammar.text_state import MaskKey

Words = npt.NDArray[np.int32]
MB = 1 << 20
MAX_BYTES = 128 * MB
"""Of all tenants together."""
MAX_BYTES_BY_TENANT = 32 * MB


StateKey = tuple[str, int, MaskKey]
"""A state of one grammar: (tenant, the number of the grammar's texts, key)."""


@dataclass(slots=True)
class Row:
    """A mask that is needed."""

    matcher: LLMatcher
    place: int
    """Its row of the masks."""
    state: StateKey | None
    """None: no other row is known to have the same mask."""


@dataclass(slots=True)
class Filling:
    """The masks of a step that have to be filled, and what follows from them."""

    rows: list[Row] = field(default_factory=list)
    alike: list[tuple[Row, list[Row]]] = field(default_factory=list)
    """(one of `rows` that has a state, others in the same state)."""


class MaskCache:
    """The masks used last, of all grammars. A step begins when the masks of the last one are filled."""

    def __init__(self) -> None:
        self._masks: TenantCache[tuple[int, MaskKey], bytes] = TenantCache(MAX_BYTES, MAX_BYTES_BY_TENANT)

    def copy_known(self, rows: Sequence[Row], bits_MW: Words) -> Filling:
        """Copies the masks that are kept to the rows they are for, and returns which others to fill."""
        filling = Filling()
        alone = []
        by_state: dict[StateKey, list[Row]] = {}
        for row in rows:
            if row.state is None:
                alone.append(row)
            else:
                by_state.setdefault(row.state, []).append(row)
        known = []
        for state, alike in by_state.items():
            mask = self._masks.get(state[0], state[1:])
            if mask is not None:
                known += [(row, mask) for row in alike]
            else:
                filling.rows.append(alike[0])
                filling.alike.append((alike[0], alike[1:]))
        filling.rows += alone  # last: the others take longer
        _copy(known, bits_MW)
        return filling

    def keep(self, filling: Filling, bits_MW: Words) -> list[Row]:
        """Keeps the masks of states that were filled, and copies them to the other rows of the same state.

        Returns rows that are still to be filled: another one's matcher has failed in their place.
        """
        copies: list[tuple[Row, bytes]] = []
        left: list[Row] = []
        for first, others in filling.alike:
            if first.matcher.is_error():
                left += others
                continue
            assert first.state is not None
            mask = bits_MW[first.place].tobytes()
            self._masks.put(first.state[0], first.state[1:], mask, len(mask))
            copies += [(row, mask) for row in others]
        _copy(copies, bits_MW)
        return left


def _copy(masks: list[tuple[Row, bytes]], bits_MW: Words) -> None:
    """Copies masks to rows. That of a matcher that has failed allows nothing."""
    if not masks:
        return
    # One by one and without giving the interpreter away, as numpy's copies do: another thread would keep it.
    row_bytes = bits_MW.strides[0]
    everything, nothing = bits_MW.data.cast("B"), bytes(row_bytes)
    for row, mask in masks:
        begin = row.place * row_bytes
        everything[begin : begin + row_bytes] = nothing if row.matcher.is_error() else mask
