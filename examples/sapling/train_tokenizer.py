"""Trains Sapling's tokenizer: byte-level BPE in which every digit is a token of its own.

Run as `python -m examples.sapling.train_tokenizer --out FOLDER`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import BASE, corpus, phrases, tokens

# a word with the space before it | one digit | punctuation with the space before it | white space
_PIECES = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTEXT = 1024


def _texts(seed: int, count: int) -> Iterator[str]:
    for document in corpus.documents(f"tokenizer/{seed}", count):
        for turn in document:
            yield turn.content
    # every word in the forms that exercises use, so that each of them has few tokens
    for word in phrases.WORDS:
        yield " ".join([word, *[word] * 20, *[word.upper()] * 20, *[word.capitalize()] * 4])


def train(seed: int, count: int) -> Tokenizer:
    """Trains a tokenizer of `tokens.VOCAB_SIZE` entries on `count` generated documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _texts(seed, count),
        trainers.BpeTrainer(
            vocab_size=tokens.VOCAB_SIZE,
            special_tokens=list(tokens.SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens.BOS} $A",
        pair=f"{tokens.BOS} $A {tokens.BOS} $B",
        special_tokens=[(tokens.BOS, tokens.BOS_ID)],
    )
    return tokenizer


def save(tokenizer: Tokenizer, out: Path) -> None:
    """Writes the tokenizer in the layout that `transformers.AutoTokenizer` reads."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens.BOS,
        "eos_token": tokens.END,
        "pad_token": tokens.PAD,
        "additional_special_tokens": [tokens.EOS, tokens.SYSTEM, tokens.USER, tokens.ASSISTANT],
        "chat_template": tokens.CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
        "padding_side": "left",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=BASE)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    save(train(args.seed, args.documents), args.out)


if __name__ == "__main__":
    main()
