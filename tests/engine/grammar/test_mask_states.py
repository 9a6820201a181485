"""Masks that are kept by state: bit by bit those that llguidance fills."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.grammar import mask_cache
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.constraint import CompiledGrammar, Constraint
from engine.grammar.exact_schemas import PATTERNS
from engine.grammar.formats import parser_limits, to_llguidance
from engine.grammar.mask_cache import MaskCache, Row
from engine.grammar.masks import MaskFiller, words_of
from engine.grammar.store import GrammarKey
from engine.grammar.tenant_cache import TenantCache
from engine.protocol import Grammar
from tests.engine.grammar.crossing_tokens import END_ID, crossing_tokenizer
from tests.support.waiting import until

Schema = dict[str, Any]
Words = npt.NDArray[np.int32]
TOKENIZER = crossing_tokenizer()
NUM_WORDS = words_of(TOKENIZER.vocab_size)
NAMES = ("a", "b", "one", "é", 'q"', "\\")


def strings() -> st.SearchStrategy[Schema]:
    lengths = st.builds(
        lambda fewest, more: {"minLength": fewest} | ({} if more is None else {"maxLength": fewest + more}),
        st.integers(0, 3),
        st.none() | st.integers(0, 6),
    )
    patterns = st.sampled_from(
        ("^[a-z]{2,5}$", "^a(b|ba)*a?$", "^(one|two|[0-9]{2})$", r"^\d{3}-a$", "a+", r"^[^\n]*$", "^é$")
    )
    return (
        lengths.map(lambda found: {"type": "string"} | found)
        | patterns.map(lambda found: {"type": "string", "pattern": found})
        | st.builds(
            lambda kind, most: {"type": "string", "format": kind, "maxLength": most},
            st.sampled_from(("email", "date", "uuid", "ipv4")),
            st.integers(36, 38),
        )
        | st.just({"type": "string", "format": "email", "maxLength": 6})
    )


def scalars() -> st.SearchStrategy[Schema]:
    return strings() | st.sampled_from(
        (
            {"type": "integer", "minimum": 0, "maximum": 120},
            {"type": "boolean"},
            {"enum": ["one", "two", "on", 1, None]},
            {"const": "one"},
            {"type": ["string", "null"], "maxLength": 4},
            {"type": ["string", "integer"], "minLength": 1},
            {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
            {"anyOf": [{"type": "string", "maxLength": 2}, {"const": "hello world"}]},
            {"$ref": "#/$defs/text"},
            {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
        )
    )


def objects(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def made(properties: dict[str, Schema], optional: set[str], more: Any) -> Schema:
        required = [name for name in properties if name not in optional]
        found: Schema = {"type": "object", "properties": properties, "required": required}
        return found if more is None else found | {"additionalProperties": more}

    names = st.sampled_from(NAMES)
    more = st.sampled_from((False, False, None, {"type": "string", "maxLength": 2}))
    return st.builds(
        made, st.dictionaries(names, values, min_size=1, max_size=3), st.sets(names, max_size=3), more
    )


def nested(values: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    arrays = st.builds(
        lambda items, fewest, more: (
            {"type": "array", "items": items, "minItems": fewest}
            | ({} if more is None else {"maxItems": fewest + more})
        ),
        values,
        st.integers(0, 3),
        st.none() | st.integers(0, 40),
    )
    unions = st.lists(values, min_size=2, max_size=2).map(lambda found: {"anyOf": found})
    return arrays | objects(values) | unions


NODE: Schema = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 5},
        "b": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
DEFINITIONS = {"node": NODE, "text": {"type": "string", "minLength": 2, "maxLength": 9}}
schemas = objects(st.recursive(scalars(), nested, max_leaves=4)).map(
    lambda found: found | {"$defs": DEFINITIONS}
)


def compiled(*documents: Schema, tenant: str = "acme", mask_threads: int = 1) -> list[CompiledGrammar]:
    """Returns the grammars of schemas."""
    compiler = GrammarCompiler(TOKENIZER, [END_ID], lambda: None, mask_threads=mask_threads)
    made: dict[str, CompiledGrammar] = {}
    sources = [json.dumps(document) for document in documents]

    def take() -> bool:
        for key, grammar in compiler.take():
            assert isinstance(grammar, CompiledGrammar), grammar
            made[key.grammar.source] = grammar
        return len(made) == len(set(sources))

    for source in set(sources):
        compiler.start(GrammarKey(tenant, Grammar("json_schema", source)))
    until(take, 60)
    return [made[source] for source in sources]


class Lockstep:
    """Choices whose masks are filled together, beside matchers that fill each mask by itself."""

    def __init__(self, grammar: CompiledGrammar, document: Schema, num: int, random: Random) -> None:
        self._random = random
        self.filler = MaskFiller(2)
        self.num_filled = self.num_masks = 0
        compute = self.filler._compute

        def counted(rows: list[Row], bits_MW: Words) -> None:
            self.num_filled += len(rows)
            compute(rows, bits_MW)

        self.filler._compute = counted  # type: ignore[method-assign]
        source = to_llguidance(Grammar("json_schema", json.dumps(document)))
        begin = LLMatcher(TOKENIZER, source, log_level=0, limits=parser_limits())
        self.choices: list[tuple[Constraint, LLMatcher]] = [
            (grammar.demand(), begin.deep_copy()) for _ in range(num)
        ]

    def step(self, with_drafts: bool) -> bool:
        """Compares a mask of each choice, and some with drafts, then draws. Returns whether any goes on."""
        constraints: list[Constraint] = []
        ahead: list[list[int]] = []
        expected: list[Words] = []
        drawn: list[tuple[Constraint, LLMatcher, list[int]]] = []
        for constraint, alone in self.choices:
            mask = filled(alone)
            constraints.append(constraint)
            ahead.append([])
            expected.append(mask)
            drafts = [self._draw(mask)]
            later = alone.deep_copy()
            while with_drafts and len(drafts) < 4 and drafts[-1] != END_ID:
                assert later.consume_token(drafts[-1])
                constraints.append(constraint)
                ahead.append(list(drafts))
                expected.append(filled(later))
                drafts.append(self._draw(expected[-1]))
            # Some of the drafts are drawn; then the others are as if they had never been.
            drawn.append((constraint, alone, drafts[: self._random.randint(1, len(drafts))]))
        bits_MW = np.zeros((len(constraints), NUM_WORDS), np.int32)
        self.filler.start(constraints, bits_MW, ahead=ahead).result()
        np.testing.assert_array_equal(bits_MW, expected)
        self.num_masks += len(constraints)
        self.choices = []
        for constraint, alone, token_ids in drawn:
            for token_id in token_ids:
                constraint.accept(token_id)
            if not constraint.is_over:
                assert alone.consume_tokens(token_ids)
                self.choices.append((constraint, alone))
        return bool(self.choices)

    def _draw(self, mask: Words) -> int:
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        # Longer tokens come first in each second draw: single bytes are most of the vocabulary.
        longer = [one for one in allowed if one > 256]
        return self._random.choice(longer if longer and self._random.random() < 0.5 else allowed)


def filled(matcher: LLMatcher) -> Words:
    """Returns the mask of a matcher's copy, whose lexer is its own."""
    mask = np.frombuffer(matcher.compute_bitmask(), np.int32)
    return np.pad(mask, (0, NUM_WORDS - len(mask)))


@settings(max_examples=40, deadline=None)
@given(schemas, st.integers(0, 1 << 30), st.sampled_from((1, 2)))
def test_masks_are_those_that_are_filled_alone(document: Schema, seed: int, mask_threads: int) -> None:
    random = Random(seed)
    [grammar] = compiled(document, mask_threads=mask_threads)
    rows = Lockstep(grammar, document, 5, random)
    for number in range(16):
        if not rows.step(with_drafts=number % 4 == 3):
            break


def pair(value: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"a": value, "b": value},
        "required": ["a", "b"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "document",
    [
        pair({"type": "string", "maxLength": 3}),
        pair({"type": "string", "pattern": r"^\d{3}-a$"}),
        pair({"type": "string", "format": "email", "maxLength": 5}),
        {"type": "array", "items": {"type": "string", "maxLength": 1}, "minItems": 12, "maxItems": 16},
        {"type": "array", "items": pair({"type": "string"}), "minItems": 1, "maxItems": 3},
    ],
    ids=["places", "forced bytes", "length of a pattern", "items", "nested"],
)
def test_states_that_look_alike_are_told_apart(document: Schema) -> None:
    [grammar] = compiled(document)
    rows = Lockstep(grammar, document, 30, Random(2))
    for number in range(30):
        if not rows.step(with_drafts=number % 5 == 4):
            break
    assert rows.num_filled < rows.num_masks


RECORD: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 30},
        "email": {"type": "string", "format": "email", "maxLength": 30},
    },
    "required": ["name", "email"],
    "additionalProperties": False,
}
RECORDS: Schema = {"type": "array", "items": RECORD, "minItems": 20}


def test_rows_in_one_state_share_a_mask() -> None:
    [grammar] = compiled(RECORDS)
    rows = Lockstep(grammar, RECORDS, 24, Random(1))
    for _ in range(40):
        rows.step(with_drafts=False)
    assert rows.num_masks == 24 * 40
    assert rows.num_filled < 0.7 * rows.num_masks, (
        "in whitespace, names and unfinished characters, each has its own"
    )
    assert grammar.texts is not None


def test_tenants_share_nothing() -> None:
    grammars = [*compiled(RECORDS), *compiled(RECORDS, tenant="mallory")]
    filler, bits_MW = MaskFiller(1), np.zeros((1, NUM_WORDS), np.int32)
    for grammar in grammars:
        constraint = grammar.demand()
        filler.start([constraint], bits_MW).result()
        for byte in b'[{"name":"a':
            constraint.accept(TOKENIZER.tokenize_bytes(bytes((byte,)))[0])
        filler.start([constraint], bits_MW).result()
    cache = filler._cache._masks
    assert len(cache) == 2
    assert {tenant for tenant, _ in cache._values} == {"acme", "mallory"}


class FakeMatcher:
    """A matcher that may have failed."""

    def __init__(self, has_failed: bool = False) -> None:
        self.has_failed = has_failed

    def is_error(self) -> bool:
        return self.has_failed


def rows_of(*matchers: FakeMatcher, number: int = 0) -> Iterator[Row]:
    for place, matcher in enumerate(matchers):
        yield Row(matcher, place, ("acme", number, (1, 2, 3)))  # type: ignore[arg-type]


def test_a_row_whose_matcher_fails_leaves_the_others_to_theirs() -> None:
    cache, bits_MW = MaskCache(), np.ones((3, 2), np.int32)
    rows = list(rows_of(FakeMatcher(), FakeMatcher(), FakeMatcher()))
    filling = cache.copy_known(rows, bits_MW)
    assert filling.rows == rows[:1]
    rows[0].matcher.has_failed = True  # type: ignore[attr-defined]
    assert cache.keep(filling, bits_MW) == rows[1:]
    assert cache.copy_known(rows[1:], bits_MW).rows == rows[1:2], "nothing was kept"


def test_kept_masks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_cache, "MAX_BYTES_BY_TENANT", 16)
    cache, bits_MW = MaskCache(), np.arange(2, dtype=np.int32).reshape(1, 2)
    for number in range(3):
        filling = cache.copy_known(list(rows_of(FakeMatcher(), number=number)), bits_MW)
        assert len(filling.rows) == 1
        assert not cache.keep(filling, bits_MW)
    found = np.zeros((1, 2), np.int32)
    assert not cache.copy_known(list(rows_of(FakeMatcher(), number=2)), found).rows
    assert found.tolist() == [[0, 1]]
    assert len(cache.copy_known(list(rows_of(FakeMatcher(), number=0)), found).rows) == 1, "used longest ago"
    assert isinstance(cache._masks, TenantCache)


@pytest.mark.parametrize("kind", ["email", "uuid"])
def test_patterns_of_formats_allow_what_llguidance_does(kind: str) -> None:
    """llguidance has these formats itself; as patterns, their states are known."""
    random = Random(3)
    bounds = {"type": "string", "maxLength": 40}
    own, pattern = (
        LLMatcher(TOKENIZER, LLMatcher.grammar_from_json_schema(bounds | found), limits=parser_limits())
        for found in ({"format": kind}, {"pattern": PATTERNS[kind]})
    )
    for _ in range(12):
        walked = [own.deep_copy(), pattern.deep_copy()]
        while not walked[0].is_stopped():
            masks = [filled(matcher) for matcher in walked]
            np.testing.assert_array_equal(*masks)
            allowed = np.flatnonzero(np.unpackbits(masks[0].view(np.uint8), bitorder="little")).tolist()
            token_id = random.choice(allowed)
            if token_id == END_ID:
                break
            assert all(matcher.consume_token(token_id) for matcher in walked)


def test_references_that_lead_further_than_is_read_have_masks_nevertheless() -> None:
    definitions: Schema = {
        f"d{number}": {"type": "array", "items": {"$ref": f"#/$defs/d{number + 1}"}} for number in range(400)
    }
    definitions["d400"] = {"type": "string"}
    [grammar] = compiled({"$ref": "#/$defs/d0", "$defs": definitions})
    assert grammar.texts is None
    filler, bits_MW = MaskFiller(1), np.zeros((1, NUM_WORDS), np.int32)
    filler.start([grammar.demand()], bits_MW).result()
    assert bits_MW.any()
