"""Compiled grammars take a bounded amount of memory, whatever one tenant sends, and others keep theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import CompiledGrammar, Constraint
from engine.grammar.heap import allocated_bytes
from engine.grammar.store import MAX_BYTES_BY_TENANT, GrammarKey
from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from tests.engine.grammar.sapling import BASE
from tests.support.waiting import until
from tokenization.grammars.checking import check
from tokenization.grammars.end_tokens import read_eos_ids
from tokenization.grammars.messages import Accepted, Check

MB = 1 << 20
EOS_IDS = read_eos_ids(BASE)
VOCAB_SIZE = json.loads((BASE / "config.json").read_text())["vocab_size"]


def large(number: int) -> Grammar:
    """A different one for each number: about 14 MB compiled, 140 kB as a text."""
    words = [f"word {number} {word} {word * 7919}" for word in range(6_500)]
    return Grammar("choice", json.dumps(words))


def small(number: int) -> Grammar:
    return Grammar("regex", f"[ab]{{{number + 1}}}")


def make_compiler(tokenizer: LLTokenizer, mask_threads: int = 1) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, EOS_IDS, lambda: None, mask_threads=mask_threads)


def taken(compiler: GrammarCompiler) -> CompiledGrammar:
    found: list[tuple[GrammarKey, CompiledGrammar | str]] = []
    until(lambda: found.extend(compiler.take()) or found, 60)
    [(_, grammar)] = found
    assert isinstance(grammar, CompiledGrammar), grammar
    return grammar


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return load_tokenizer(BASE, EOS_IDS, VOCAB_SIZE)


@pytest.fixture(scope="module")
def large_key(tokenizer: LLTokenizer) -> GrammarKey:
    answer = check(Check(large(0), False), tokenizer)
    assert isinstance(answer, Accepted)
    assert 8 * MB < answer.compiled_bytes < 24 * MB
    return GrammarKey("mallory", large(0), answer.compiled_bytes)


def another(key: GrammarKey, number: int, tenant: str = "mallory") -> GrammarKey:
    return GrammarKey(tenant, large(number), key.compiled_bytes)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _peak_growth(compiled_bytes: int) -> int:
    """Compiles many large grammars of one tenant one after the other, each used by a row that ends."""
    compiler = make_compiler(load_tokenizer(BASE, EOS_IDS, VOCAB_SIZE))
    compiler.start(GrammarKey("acme", small(0)))
    taken(compiler).demand().open().compute_bitmask()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begun = _resident_bytes()
    for number in range(12):
        compiler.start(GrammarKey("mallory", large(number), compiled_bytes))
        taken(compiler).demand().open().compute_bitmask()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(peak.split()[1]) * 1024 - begun


def test_a_tenants_large_grammars_take_no_more_than_64_mb(large_key: GrammarKey) -> None:
    program = f"from {__name__} import _peak_growth; print(_peak_growth({large_key.compiled_bytes}))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 64 * MB


def test_large_grammars_wait_for_room_while_rows_are_held_to_others(
    tokenizer: LLTokenizer, large_key: GrammarKey
) -> None:
    compiler = make_compiler(tokenizer)
    in_use: list[Constraint] = []
    fitting = MAX_BYTES_BY_TENANT // large_key.charge
    for number in range(fitting):
        compiler.start(another(large_key, number))
        in_use.append(taken(compiler).demand())
    late = another(large_key, fitting)
    compiler.start(late)
    assert not compiler.has_compiled, "it waits"
    for key in (GrammarKey("mallory", small(0)), another(large_key, 0, "acme")):
        compiler.start(key)
        taken(compiler)
        assert compiler.cached(key) is not None, "small ones and other tenants do not"
    assert compiler.cached(another(large_key, 0)) is not None, "it is in use"
    in_use.pop()
    assert compiler.has_compiled, "there is room now"
    taken(compiler)
    assert compiler.cached(late) is not None


def test_a_grammar_that_is_not_used_makes_room(tokenizer: LLTokenizer, large_key: GrammarKey) -> None:
    compiler = make_compiler(tokenizer)
    for number in range(4):
        compiler.start(another(large_key, number))
        taken(compiler)
    assert compiler.cached(another(large_key, 3)) is not None
    assert compiler.cached(another(large_key, 0)) is None


def test_lanes_of_a_large_grammar_are_few(tokenizer: LLTokenizer, large_key: GrammarKey) -> None:
    compiler = make_compiler(tokenizer, mask_threads=4)
    compiler.start(large_key)
    grammar = taken(compiler)
    held = [grammar.demand() for _ in range(64)]
    compiler._large_thread.shutdown()
    assert len(grammar._lanes) == 2, "16 MB for four threads"
    compiler.start(GrammarKey("mallory", small(0)))
    many = taken(compiler)
    held += [many.demand() for _ in range(64)]
    compiler._threads.shutdown()
    assert len(many._lanes) > 2
    assert held


def test_a_lane_is_replaced_before_its_lexer_is_full(
    tokenizer: LLTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.grammar.compiler.MAX_LANE_MASKS", 8)
    monkeypatch.setattr("engine.grammar.compiler.MIN_LANE_MASKS", 8)
    compiler = make_compiler(tokenizer)
    compiler.start(GrammarKey("acme", small(20)))
    grammar = taken(compiler)
    [first] = grammar._lanes
    row = grammar.demand()
    for _ in range(8):
        row.open().compute_bitmask()
    assert grammar._lanes == [first]
    grammar.demand().open()
    until(lambda: grammar._lanes[0] is not first, 30)
    assert row.open().deep_copy().compute_bitmask() == grammar.demand().open().compute_bitmask()


def test_a_full_lexer_ends_no_later_choices(tokenizer: LLTokenizer) -> None:
    """The expression's lexer takes two states for each text of 40 letters."""
    compiler = make_compiler(tokenizer)
    key = GrammarKey("mallory", Grammar("regex", "[a-z ]*[aeiou][a-z ]{40}x"))
    compiler.start(key)
    grammar = taken(compiler)
    [first] = grammar._lanes
    row = grammar.demand().open()
    letters = [token_id for token_id in range(VOCAB_SIZE) if tokenizer.decode_bytes([token_id]) in LETTERS]
    place = 1
    while not row.is_error():
        place = place * 48271 % 0x7FFFFFFF
        row.compute_bitmask()
        row.consume_token(letters[place % len(letters)])
    grammar.demand().open()
    until(lambda: grammar._lanes[0] is not first, 30)
    fresh = grammar.demand().open()
    fresh.compute_bitmask()
    assert not fresh.is_error()


LETTERS = [bytes([code]) for code in b"abcdefghijklmnopqrstuvwxyz"]


def test_what_is_allocated_is_seen() -> None:
    begun = allocated_bytes()
    held = bytearray(8 * MB)
    assert 8 * MB <= allocated_bytes() - begun < 10 * MB
    assert held
