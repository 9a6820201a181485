"""Compiles grammars in threads of their own, and caches them by tenant.

llguidance releases the interpreter while it compiles, so steps go on. The API has compiled every grammar
before, in a process that it can kill: what arrives here is known to compile in time and memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.constraint import CompiledGrammar
from engine.grammar.formats import parser_limits, to_llguidance
from engine.grammar.tenant_cache import TenantCache
from engine.protocol import Grammar

log = structlog.get_logger(__name__)

MAX_CACHED = 1024
"""Compiled grammars kept, of all tenants together."""
MAX_CACHED_BY_TENANT = 128


@dataclass(frozen=True, slots=True)
class GrammarKey:
    """A grammar of one tenant: nothing compiled is shared between tenants."""

    tenant: str
    grammar: Grammar


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
    ) -> None:
        """`wake` is called from another thread when there is something to take. `mask_threads` will fill the
        grammars' masks.
        """
        # More than there are threads: few threads meet in a lane.
        self._max_lanes = 1 if mask_threads == 1 else 4 * mask_threads
        self._tokenizer = tokenizer
        self._ending_ids = frozenset(eos_ids)
        self._wake = wake
        self._threads = ThreadPoolExecutor(num_threads, "grammars")
        self._cache: TenantCache[Grammar, CompiledGrammar] = TenantCache(MAX_CACHED, MAX_CACHED_BY_TENANT)
        self._compiled: deque[tuple[GrammarKey, CompiledGrammar | str]] = deque()

    def cached(self, key: GrammarKey) -> CompiledGrammar | None:
        """Returns the grammar if it has been compiled lately."""
        return self._cache.get(key.tenant, key.grammar)

    def start(self, key: GrammarKey) -> None:
        """Compiles a grammar; `take` returns it later."""
        self._threads.submit(self._run, key)

    @property
    def has_compiled(self) -> bool:
        """Whether `take` returns anything."""
        return bool(self._compiled)

    def take(self) -> list[tuple[GrammarKey, CompiledGrammar | str]]:
        """Returns the grammars compiled since the last call; in place of one, why it cannot be compiled."""
        taken = []
        while self._compiled:
            key, compiled = self._compiled.popleft()
            if isinstance(compiled, CompiledGrammar):
                self._cache.put(key.tenant, key.grammar, compiled)
            taken.append((key, compiled))
        return taken

    def _run(self, key: GrammarKey) -> None:
        try:
            compiled = self._compile(key.grammar)
        except Exception as error:  # or its requests would wait for ever
            log.exception("grammar compiler failed", kind=key.grammar.kind, error=str(error))
            compiled = "the grammar could not be compiled"
        self._compiled.append((key, compiled))
        self._wake()

    def _compile(self, grammar: Grammar) -> CompiledGrammar | str:
        try:
            source = to_llguidance(grammar)
        except ValueError as error:
            return str(error)

        def matcher() -> LLMatcher:
            compiled = LLMatcher(self._tokenizer, source, log_level=0, limits=parser_limits())
            if not compiled.is_error():
                compiled.deep_copy().compute_bitmask()  # the lexer's first state takes longest
            return compiled

        first = matcher()
        if first.is_error():
            return first.get_error()

        def add_lane(grammar: CompiledGrammar) -> None:
            self._threads.submit(lambda: grammar.append(matcher()))

        return CompiledGrammar(first, self._ending_ids, self._max_lanes, add_lane)
