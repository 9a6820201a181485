"""Compiles grammars in threads of their own.

llguidance releases the interpreter while it compiles, so steps go on. The API has compiled every grammar
before, in a process that it can kill: what arrives here is known to compile in time and memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import structlog
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.constraint import CompiledGrammar, Lane, LaneLimits
from engine.grammar.formats import parser_limits, to_llguidance
from engine.grammar.heap import give_back
from engine.grammar.schema_nodes import read_schema
from engine.grammar.store import LANE_BYTES_BY_THREAD, GrammarKey, GrammarStore
from engine.grammar.text_state import SchemaTexts
from engine.grammar.token_texts import TokenTexts

log = structlog.get_logger(__name__)

MAX_LANES = 256
"""Of one grammar; as many as a full batch has rows."""
MAX_LANE_MASKS = 10_000
"""Masks after which a lane of less than `SMALL_BYTES` is replaced; larger ones are sooner, in proportion."""
MIN_LANE_MASKS = 1_000
SMALL_BYTES = 1 << 20
MAX_FOLLOWED = 64 << 10
"""Characters of a JSON Schema whose masks are kept by state."""


class GrammarCompiler:
    """Compiles in up to `num_threads` threads. All methods belong to the thread that steps the engine."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        eos_ids: Iterable[int],
        wake: Callable[[], None],
        *,
        num_threads: int = 2,
        mask_threads: int = 1,
        keeps_masks: bool = True,
    ) -> None:
        """`wake` is called from another thread when there is something to take. `mask_threads` will fill the
        grammars' masks. Unless `keeps_masks`, every mask is filled, also those known from another row.
        """
        # A single thread never waits for another.
        self._max_lanes = 1 if mask_threads == 1 else MAX_LANES
        self._tokenizer = tokenizer
        self._tokens = TokenTexts(tokenizer) if keeps_masks else None
        self._ending_ids = frozenset(eos_ids)
        self._wake = wake
        self._threads = ThreadPoolExecutor(num_threads, "grammars")
        # One after the other: compiling takes several times what is kept. Small ones do not wait for them.
        self._large_thread = ThreadPoolExecutor(1, "large-grammars")
        self._store = GrammarStore(LANE_BYTES_BY_THREAD * mask_threads)
        self._held: deque[GrammarKey] = deque()
        """Those that their tenants have no room for yet."""
        self._num_ended = 0
        """Of the store, when it was last asked for room."""
        self._compiled: deque[tuple[GrammarKey, CompiledGrammar | str]] = deque()

    def cached(self, key: GrammarKey) -> CompiledGrammar | None:
        """Returns the grammar if a row is held to it, or if one was lately."""
        return self._store.get(key)

    def start(self, key: GrammarKey) -> None:
        """Compiles a grammar, as soon as its tenant has room for it; `take` returns it later."""
        if self._store.reserve(key):
            self._pool(key).submit(self._run, key)
        else:
            self._held.append(key)

    @property
    def has_compiled(self) -> bool:
        """Whether `take` does anything."""
        return bool(self._compiled) or self._may_start_held

    def take(self) -> list[tuple[GrammarKey, CompiledGrammar | str]]:
        """Returns the grammars compiled since the last call; in place of one, why it cannot be compiled."""
        taken = []
        while self._compiled:
            key, compiled = self._compiled.popleft()
            if isinstance(compiled, CompiledGrammar):
                self._store.put(key, compiled)
            else:
                self._store.release(key)
            taken.append((key, compiled))
        if self._may_start_held:
            self._num_ended = self._store.num_ended
            for _ in range(len(self._held)):
                self.start(self._held.popleft())
        return taken

    @property
    def _may_start_held(self) -> bool:
        """Whether room was given back: rows end, and their grammars with them."""
        return bool(self._held) and self._store.num_ended != self._num_ended

    def _pool(self, key: GrammarKey) -> ThreadPoolExecutor:
        return self._large_thread if key.is_large else self._threads

    def _run(self, key: GrammarKey) -> None:
        try:
            compiled = self._compile(key)
        except Exception as error:  # or its requests would wait for ever
            log.exception("grammar compiler failed", kind=key.grammar.kind, error=str(error))
            compiled = "the grammar could not be compiled"
        self._compiled.append((key, compiled))
        self._wake()

    def _compile(self, key: GrammarKey) -> CompiledGrammar | str:
        try:
            source = to_llguidance(key.grammar)
        except ValueError as error:
            return str(error)

        def lane() -> Lane:
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=parser_limits())
            if not matcher.is_error():
                matcher.deep_copy().compute_bitmask()  # the lexer's first state takes longest
            if key.is_large:
                give_back()
            return Lane(matcher)

        first = lane()
        if first.matcher.is_error():
            return first.matcher.get_error()

        def add_lane(grammar: CompiledGrammar) -> bool:
            if not self._store.reserve_lane(key, grammar):
                return False
            self._pool(key).submit(lambda: grammar.append(lane()))
            return True

        def replace_lane(grammar: CompiledGrammar, number: int) -> None:
            self._pool(key).submit(lambda: grammar.replace(number, lane()))

        max_masks = max(MIN_LANE_MASKS, MAX_LANE_MASKS * SMALL_BYTES // max(SMALL_BYTES, key.charge))
        return CompiledGrammar(
            first,
            self._ending_ids,
            LaneLimits(self._max_lanes, max_masks),
            add_lane,
            replace_lane,
            key.tenant,
            self._texts(key),
        )

    def _texts(self, key: GrammarKey) -> SchemaTexts | None:
        """Returns the texts of a grammar's schema, unless following them is not worth its memory."""
        is_short = len(key.grammar.source) <= MAX_FOLLOWED
        if self._tokens is None or key.grammar.kind != "json_schema" or not is_short:
            return None
        try:
            return SchemaTexts(read_schema(key.grammar.source), self._tokens)
        except RecursionError:  # nested deeper than this reads: its masks are filled
            return None
