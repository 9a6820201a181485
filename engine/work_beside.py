"""Reads what an engine needs besides its weights, in other threads, while it loads and captures."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from llguidance import LLTokenizer

from engine.grammar.tokenizer import load_tokenizer
from engine.model.config import ModelConfig
from engine.model.known_digest import FILE as DIGEST_FILE
from engine.model.known_digest import known_base_digest


class WorkBeside:
    """The base's digest, and its tokenizer for grammars."""

    def __init__(self, base_dir: Path, state_dir: Path, config: ModelConfig) -> None:
        """Begins to hash the base, which takes longer than to load it, if its digest is not kept."""
        self._base_dir, self._config = base_dir, config
        self._threads = ThreadPoolExecutor(2, "start")
        self._hashing = self._threads.submit(known_base_digest, base_dir, state_dir / DIGEST_FILE)
        self._reading: Future[LLTokenizer] | None = None

    def base_digest(self) -> str:
        """Waits for the base's digest. Raises ValueError, OSError for a base that cannot be read."""
        return self._hashing.result()

    def begin_tokenizer(self) -> None:
        """Begins to read the tokenizer. That holds Python's lock for a second or two: other threads should
        have nothing to do by then that needs it.
        """
        eos_ids, vocab_size = self._config.eos_ids, self._config.vocab_size
        self._reading = self._threads.submit(load_tokenizer, self._base_dir, eos_ids, vocab_size)

    def tokenizer(self) -> LLTokenizer:
        """Waits for the tokenizer. Raises ValueError when grammars cannot be followed with it, OSError."""
        assert self._reading is not None, "begin_tokenizer comes first"
        self._threads.shutdown(wait=False)
        return self._reading.result()
