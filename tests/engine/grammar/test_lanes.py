"""Choices that follow a grammar at the same time do so in compilations of their own."""

from __future__ import annotations

import json

import pytest
from llguidance import LLTokenizer

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import CompiledGrammar
from engine.grammar.store import GrammarKey
from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from tests.engine.grammar.sapling import BASE
from tests.support.waiting import until
from tokenization.grammars.end_tokens import read_eos_ids

EOS_IDS = read_eos_ids(BASE)
VOCAB_SIZE = json.loads((BASE / "config.json").read_text())["vocab_size"]
KEY = GrammarKey("acme", Grammar("regex", "[a-z]{1,40}"))


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return load_tokenizer(BASE, EOS_IDS, VOCAB_SIZE)


def compiled(tokenizer: LLTokenizer, mask_threads: int) -> CompiledGrammar:
    compiler = GrammarCompiler(tokenizer, EOS_IDS, lambda: None, mask_threads=mask_threads)
    compiler.start(KEY)
    found: list[tuple[GrammarKey, CompiledGrammar | str]] = []
    until(lambda: found.extend(compiler.take()) or found, 60)
    [(_, grammar)] = found
    assert isinstance(grammar, CompiledGrammar), grammar
    return grammar


def test_each_of_many_choices_has_its_lane(tokenizer: LLTokenizer) -> None:
    grammar = compiled(tokenizer, mask_threads=2)
    choices = [grammar.demand() for _ in range(8)]
    until(lambda: len(grammar._lanes) == 8, 30)
    for choice in choices:
        choice.open()
    assert len({id(choice.lane) for choice in choices}) == 8


def test_a_choice_that_ended_leaves_its_lane_to_the_next(tokenizer: LLTokenizer) -> None:
    grammar = compiled(tokenizer, mask_threads=2)
    choices = [grammar.demand() for _ in range(4)]
    until(lambda: len(grammar._lanes) == 4, 30)
    for choice in choices:
        choice.open()
    left = choices.pop(2).lane
    for _ in range(3):
        next_one = grammar.demand()
        next_one.open()
        assert next_one.lane is left
        del next_one
    assert len(grammar._lanes) == 4


def test_a_single_thread_has_a_single_lane(tokenizer: LLTokenizer) -> None:
    grammar = compiled(tokenizer, mask_threads=1)
    choices = [grammar.demand() for _ in range(8)]
    for choice in choices:
        choice.open()
    assert len({id(choice.lane) for choice in choices}) == 1
