"""Masks: what they allow does not depend on how they are made, and large schemas have them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.grammar.formats import parser_limits, to_llguidance
from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from tests.engine.grammar.sapling import BASE

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 24},
        "email": {"type": "string", "format": "email", "maxLength": 20},
        "code": {"type": "string", "pattern": "^[a-z]{2,12}$"},
        "note": {"type": "string"},
    },
    "required": ["name", "email", "code", "note"],
    "additionalProperties": False,
}
GRAMMARS = (
    Grammar("json_schema", json.dumps({"type": "array", "items": RECORD, "minItems": 3})),
    Grammar("regex", '[^"]{1,30}(ab|\\n){2}'),
)
VOCAB_SIZE, EOS_IDS = 4096, (6, 1)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.kind)
def test_masks_are_those_without_classes(grammar: Grammar) -> None:
    sliced = load_tokenizer(BASE, EOS_IDS, VOCAB_SIZE)
    source = (BASE / "tokenizer.json").read_text(encoding="utf-8")
    whole = LLTokenizer(source, n_vocab=VOCAB_SIZE, eos_token=list(EOS_IDS), slices=[])
    matchers = [
        LLMatcher(tokenizer, to_llguidance(grammar), limits=parser_limits()) for tokenizer in (sliced, whole)
    ]
    rng = np.random.default_rng(0)
    num_compared = 0
    for _ in range(4):
        walked = [matcher.deep_copy() for matcher in matchers]
        for _ in range(120):
            masks = [np.frombuffer(matcher.compute_bitmask(), np.uint8) for matcher in walked]
            np.testing.assert_array_equal(*masks)
            num_compared += 1
            allowed = np.flatnonzero(np.unpackbits(masks[0], bitorder="little"))
            token_id = int(rng.choice(allowed))
            if token_id in EOS_IDS:
                break
            assert all(matcher.consume_token(token_id) for matcher in walked)
    assert num_compared > 40, "the texts ended too early to tell"


def test_an_object_of_2500_optional_properties_has_masks_on_a_vocabulary_of_indentation(
    tmp_path: Path,
) -> None:
    """Such tokens reach from one property into the next: each weighs all properties."""
    indentations = [
        " ",
        *("\n" + " " * num for num in range(17)),
        *("\n" + "\t" * num for num in range(1, 9)),
    ]
    texts = [before + "," + after for before in ["", *indentations] for after in ["", *indentations[:3]]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = [to_bytes.pre_tokenize_str(text)[0][0] for text in texts]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(["<end>", *alphabet, *pieces]))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = to_bytes, decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    properties = {f"property {number}": {"type": "boolean"} for number in range(2500)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    matcher = LLMatcher(
        load_tokenizer(tmp_path, [0], len(vocabulary)),
        to_llguidance(Grammar("json_schema", json.dumps(schema))),
        limits=parser_limits(),
    )
    for token_id in tokenizer.encode('{"property 7":true').ids:
        assert matcher.consume_token(token_id)
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    assert not matcher.is_error(), matcher.get_error()
    allowed = [
        texts[pieces.index(token)] for token, number in vocabulary.items() if token in pieces and mask[number]
    ]
    assert set(allowed) == set(texts)
