"""Pieces that are remembered give the ids that the tokenizer gives, whatever the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

from tests.support.examples import examples
from tests.support.text_base import write_base
from tokenization import pieces
from tokenization.codec import TextCodec
from tokenization.pieces import Pieces, in_ascii

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SAPLING = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LINES = [
    path.read_text(encoding="utf-8").replace("<|end|>", "")
    for path in sorted(Path(pieces.__file__).parent.glob("*.py"))
]


def _trained(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<call>", normalized=False)])
    return tokenizer


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])


TOKENIZERS = {
    "llama3": _trained(_split(LLAMA3)),
    "qwen2": _trained(_split(QWEN2)),
    "sapling": _trained(_split(SAPLING)),
    "gpt2": _trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)),
}
REMEMBERED = {name: Pieces.of(json.loads(made.to_str()), made) for name, made in TOKENIZERS.items()}

ASCII = st.text(st.characters(max_codepoint=127), max_size=60)
TRICKY = st.lists(
    st.sampled_from(
        [
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "\x0b",
            "\x1c",
            "'s",
            "'LL",
            "don't",
            "12345",
            "a",
            "_",
            "((",
            "é",
            "=1;",
        ]
    ),
    max_size=20,
).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=examples(150), deadline=None)
@given(text=ASCII | TRICKY)
def test_the_ids_are_the_tokenizers(name: str, text: str) -> None:
    remembered = REMEMBERED[name]
    assert remembered is not None
    expected = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    for _ in range(2):  # learned, then looked up
        assert remembered.encode(text) == (expected if text.isascii() else None)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_whole_files_are_cut_alike(name: str) -> None:
    remembered = REMEMBERED[name]
    assert remembered is not None
    for text in LINES:
        assert remembered.encode(text) == TOKENIZERS[name].encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    """A base whose tokenizer has an added word beside the special tokens."""
    base = write_base(tmp_path_factory.mktemp("pieces"))
    loaded = Tokenizer.from_file(str(base / "tokenizer.json"))
    loaded.add_tokens([AddedToken("<call>", normalized=False)])
    loaded.save(str(base / "tokenizer.json"))
    codec = TextCodec.load(base)
    assert codec._pieces is not None, "the tests' base is encoded by pieces"
    return codec


@settings(max_examples=examples(100), deadline=None)
@given(
    content=st.lists(
        st.sampled_from(["<|end|>", "<|user|>", "<call>", "<", " word", "wörd", "\n", "<|"]) | ASCII,
        max_size=8,
    ).map("".join)
)
def test_a_chat_is_encoded_as_without_remembering(codec: TextCodec, content: str) -> None:
    chat = codec.render_chat([{"role": "user", "content": content}])
    by_pieces = codec._encode_chat(chat)
    remembered, codec._pieces = codec._pieces, None
    try:
        assert by_pieces == codec._encode_chat(chat)
    finally:
        codec._pieces = remembered


def test_memory_is_bounded_and_what_is_in_use_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MOST_REMEMBERED", 50)
    remembered = Pieces.of(json.loads(TOKENIZERS["gpt2"].to_str()), TOKENIZERS["gpt2"])
    assert remembered is not None
    for number in range(400):
        text = f"always w{'abcdefghij'[number % 10] * (number % 40 + 1)}"
        assert remembered.encode(text) == TOKENIZERS["gpt2"].encode(text, add_special_tokens=False).ids
        assert len(remembered._known) <= 50
        assert len(remembered._known_before) <= 50
    remembered.encode("y" * 1000)
    assert not any(len(piece) > pieces.LONGEST_REMEMBERED for piece in remembered._known)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{Lu}+|\s+",  # a class that is more than letters and digits
        r"\w+|\W",  # what a word is differs
        r"^\s+|\S+",  # begins a line to the one, the text to the other
        r"[a-z&&[^b]]+",  # intersections
        r"\p{N}{1,3}+|.",  # greedy here, possessive there
        r"(?<=a)b",
        r"(?>a)",
        r"[\P{L}]+",
        r"(a",
    ],
)
def test_an_expression_that_might_mean_something_else_is_left_alone(pattern: str) -> None:
    assert in_ascii(pattern) is None


_SPACE = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}
_PREFIX = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", _SPACE),
        ("pre_tokenizer", _PREFIX),
        ("pre_tokenizer", None),
    ],
)
def test_a_tokenizer_that_does_more_than_cut_is_left_alone(part: str, value: object) -> None:
    made = TOKENIZERS["gpt2"]
    assert Pieces.of(json.loads(made.to_str()) | {part: value}, made) is None
