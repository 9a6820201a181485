"""Token bytes joined are the text: checked against the tokenizers library on tokenizers trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.vocabulary import Vocabulary

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "Grüße aus Köln, 10 € für 2 Äpfel",
    "def main() -> None:\n    print('hello')",
    "日本語のテキスト 🌱🌳",
] * 4


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece(decoder: decoders.Decoder) -> Tokenizer:
    """As Llama 2 and Mistral have it: metaspace, and bytes for what is not in the vocabulary."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=150, show_progress=False)
    trained.train_from_iterator(CORPUS[:1], trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"], *("▁" * 2,)]
    vocab = {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    return tokenizer


def with_added(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("two words", normalized=False)])
    return tokenizer


LLAMA2 = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
KINDS = {
    "byte level": with_added(byte_level()),
    "sentencepiece": with_added(sentencepiece(LLAMA2)),
    "metaspace": with_added(
        sentencepiece(decoders.Sequence([decoders.Metaspace("▁", "always"), decoders.ByteFallback()]))
    ),
    "metaspace, nothing prepended": with_added(
        sentencepiece(decoders.Sequence([decoders.Metaspace("▁", "never"), decoders.ByteFallback()]))
    ),
}
VOCABULARIES = {kind: Vocabulary.parse(json.loads(tokenizer.to_str())) for kind, tokenizer in KINDS.items()}


def decoded(vocabulary: Vocabulary, token_ids: list[int]) -> str:
    text = vocabulary.decode(token_ids).decode("utf-8", "replace")
    return text[1:] if vocabulary.strips_leading_space and text.startswith(" ") else text


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=30))
def test_any_text_comes_back(kind: str, text: str) -> None:
    tokenizer, vocabulary = KINDS[kind], VOCABULARIES[kind]
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert decoded(vocabulary, token_ids) == tokenizer.decode(token_ids)


@given(token_ids=st.lists(st.integers(0, KINDS["byte level"].get_vocab_size() - 1), max_size=20))
def test_any_ids_decode_as_the_library_decodes_them(token_ids: list[int]) -> None:
    """Broken UTF-8 included: the two replace it alike."""
    assert decoded(VOCABULARIES["byte level"], token_ids) == KINDS["byte level"].decode(token_ids)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace, nothing prepended"])
@given(data=st.data())
def test_any_ids_without_bytes_decode_as_the_library_decodes_them(kind: str, data: st.DataObject) -> None:
    """Bytes are left to the test above: the library replaces each broken one, Python each broken run."""
    tokenizer, vocabulary = KINDS[kind], VOCABULARIES[kind]
    ids = [i for i in range(tokenizer.get_vocab_size()) if "<0x" not in tokenizer.id_to_token(i)]
    token_ids = data.draw(st.lists(st.sampled_from(ids), max_size=20))
    assert decoded(vocabulary, token_ids) == tokenizer.decode(token_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_no_bytes_and_other_added_tokens_do(kind: str) -> None:
    tokenizer, vocabulary = KINDS[kind], VOCABULARIES[kind]
    end, tool = tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<tool>")
    assert vocabulary.special_ids == {end, tokenizer.token_to_id("<s>")}
    assert vocabulary.token_bytes[end] == b""
    assert vocabulary.token_bytes[tool] == b"<tool>"
    assert len(vocabulary.token_bytes) == tokenizer.get_vocab_size()


def test_ids_past_the_last_token_have_no_bytes() -> None:
    vocabulary = VOCABULARIES["byte level"]
    assert vocabulary.decode([len(vocabulary.token_bytes) + 5]) == b""


def test_load_reads_the_checkpoint_folder(tmp_path: Path) -> None:
    KINDS["byte level"].save(str(tmp_path / "tokenizer.json"))
    assert Vocabulary.load(tmp_path) == VOCABULARIES["byte level"]


def test_load_names_the_file_that_is_missing_or_broken(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not JSON"):
        Vocabulary.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(ValueError, match=r"tokenizer\.json: model\.type is 'WordPiece'"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize(
    "decoder", [None, {"type": "WordPiece"}, {"type": "Strip", "content": "x", "start": 1}]
)
def test_an_unknown_decoder_is_refused(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(ValueError, match="decoder"):
        Vocabulary.parse({"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": decoder})


@pytest.mark.parametrize(
    ("step", "strips"),
    [
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, True),
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}, False),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}, True),
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, False),
    ],
)
def test_whether_a_leading_space_is_taken_off(step: dict[str, Any], strips: bool) -> None:
    vocabulary = Vocabulary.parse({"model": {"type": "BPE", "vocab": {"▁a": 0}}, "decoder": step})
    assert vocabulary.strips_leading_space is strips
    assert vocabulary.token_bytes == [b" a"]
