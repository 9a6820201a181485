"""Checks one grammar: compiles it with the base's tokenizer and follows it for some tokens.

Runs in a process with limits (`fork_server`), because a grammar's cost is known only by trying.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.grammar.formats import MAX_LEXER_STATES, parser_limits, to_llguidance
from engine.grammar.heap import allocated_bytes
from engine.protocol import Grammar
from tokenization.grammars.locating import find_problem
from tokenization.grammars.messages import Accepted, Answer, Check, Refused
from tokenization.grammars.strict_subset import outside_strict_subset
from tokenization.grammars.subschemas import unknown_keyword

MAX_NESTING = 64
"""Levels of arrays and objects in a schema's text."""
NUM_WALKS = 2
WALK_TOKENS = 24
"""Random tokens that each walk follows: a grammar has to be affordable after its start, too."""
MAX_COMPILED_BYTES = 32 << 20
"""Memory that the engine may have to keep for it."""
MAX_STATES = MAX_LEXER_STATES // 5
"""States that its lexer may have after the walks."""
MAX_USUAL_MASK_S = 0.01
"""CPU seconds of half of the masks. Each makes the steps of others longer; honest schemas take below 2 ms."""
MAX_MASK_S = 0.25
"""CPU seconds of one mask. The first one of 5 000 optional properties takes 0.1 s."""
_MIN_MASKS = 8
"""Fewer say little about most of them."""
_TOO_COMPLEX = "the grammar is too complex to follow"
_MAX_REASON = 300
_OF_THE_COMPILER = re.compile(r" while processing json-schema:.*| Enable 'coerce_one_of'.*|/\$defs/root(?=/)")
"""Parts of its messages that mean nothing to a client."""
_UNKNOWN_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")


def check(order: Check, tokenizer: LLTokenizer) -> Answer:
    """Returns whether the engine can hold requests to the grammar."""
    grammar = order.grammar
    if grammar.kind != "json_schema":
        return _tried(tokenizer, grammar, _refused)
    schema = _read(grammar.source)
    if isinstance(schema, Refused):
        return schema
    outside = outside_strict_subset(schema) if order.strict else None
    if outside is not None:
        return outside
    unknown = unknown_keyword(schema)
    if unknown is not None:
        return Refused(unknown, f"the keyword '{str(unknown[-1])[:100]}' is not supported")

    def located(problem: str) -> Refused:
        path, reason = find_problem(schema, problem, partial(_problem, tokenizer))
        return Refused(path, _shortened(reason))

    return _tried(tokenizer, grammar, located)


def _tried(tokenizer: LLTokenizer, grammar: Grammar, refusal: Callable[[str], Refused]) -> Answer:
    """Compiles and follows a grammar. `refusal`: of one that does not compile, by the compiler's message."""
    begun = allocated_bytes()
    problem, matcher = _compile(tokenizer, grammar)
    if matcher is None:
        return refusal(problem)
    refused = _follow(matcher)
    if refused is not None:
        return refused
    taken = allocated_bytes() - begun
    if taken > MAX_COMPILED_BYTES:
        return _refused(f"it takes {taken >> 20} MB of memory; the limit is {MAX_COMPILED_BYTES >> 20} MB")
    return Accepted(max(0, taken))


def _compile(tokenizer: LLTokenizer, grammar: Grammar) -> tuple[str, LLMatcher | None]:
    """Returns (why the grammar does not compile, None) or ("", it at its start)."""
    try:
        source = to_llguidance(grammar)
    except ValueError as error:
        return str(error), None
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=parser_limits(MAX_STATES))
    return (matcher.get_error(), None) if matcher.is_error() else ("", matcher)


def _problem(tokenizer: LLTokenizer, schema: str) -> str:
    return _compile(tokenizer, Grammar("json_schema", schema))[0]


def _follow(matcher: LLMatcher) -> Refused | None:
    """Draws random tokens that the grammar allows, the same ones each time. Returns what is wrong with it."""
    seconds: list[float] = []
    for seed in range(NUM_WALKS):
        draw = random.Random(seed)
        walking = matcher.deep_copy()
        for _ in range(WALK_TOKENS):
            began = time.thread_time()
            mask = np.frombuffer(walking.compute_bitmask(), np.uint8)
            seconds.append(time.thread_time() - began)
            if walking.is_error():
                return Refused((), _TOO_COMPLEX)
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
            if not len(allowed):
                return Refused((), "the grammar allows no text in the model's tokens")
            walking.consume_token(int(allowed[draw.randrange(len(allowed))]))
            if walking.is_error():
                return Refused((), _TOO_COMPLEX)
            if walking.is_stopped():
                break
    return too_slow(seconds)


def too_slow(seconds: list[float]) -> Refused | None:
    """Returns why a grammar is refused whose masks took so long; None if it is not."""
    if len(seconds) >= _MIN_MASKS and median(seconds) > MAX_USUAL_MASK_S:
        measured, limit, which = median(seconds), MAX_USUAL_MASK_S, "most tokens"
    elif max(seconds) > MAX_MASK_S:
        measured, limit, which = max(seconds), MAX_MASK_S, "a token"
    else:
        return None
    reason = f"following it takes {1e3 * measured:.0f} ms for {which}; the limit is {1e3 * limit:.0f} ms"
    return Refused((), reason, is_final=False)


def _read(source: str) -> dict[str, Any] | Refused:
    """Returns the schema's document, or what is wrong with its form."""
    try:
        document = json.loads(source, object_pairs_hook=_unique)
    except RecursionError:
        return Refused((), f"the schema has more than {MAX_NESTING} levels of nesting")
    except ValueError as error:
        return Refused((), str(error))
    if not isinstance(document, dict):
        return Refused((), "the schema must be an object")
    if _is_too_deep(document):
        return Refused((), f"the schema has more than {MAX_NESTING} levels of nesting")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises ValueError when a key is repeated: parsers differ in which one they take."""
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise ValueError(f"the key '{repeated[:100]}' appears more than once in an object")


def _is_too_deep(document: Any) -> bool:
    level = [document]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _refused(problem: str) -> Refused:
    return Refused((), _shortened(problem))


def _shortened(reason: str) -> str:
    reason = _OF_THE_COMPILER.sub("", " ".join(reason.split()))
    unknown = _UNKNOWN_KEYWORDS.fullmatch(reason)
    if unknown is not None:
        reason = "the keyword {} is not supported".format(unknown[1].replace('"', "'"))
    return reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
