"""Maps token ids to bytes, as read from a checkpoint's tokenizer.json.

Decodes token by token: byte-level BPE (GPT-2's printable alphabet) and sentencepiece's BPE (metaspace and
byte fallback). Bytes, not text, because a token may end inside a character. Which ids end a sequence is the
model's configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_TokenReader = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token. Joined, they are the text; special tokens have none."""

    token_bytes: list[bytes]
    """By token id. b"" for special tokens and for ids that the tokenizer leaves out."""
    special_ids: frozenset[int]
    strips_leading_space: bool
    """Whether the tokenizer adds a space before a text and its decoder removes it."""

    @classmethod
    def load(cls, base_dir: Path) -> Vocabulary:
        """Reads `base_dir / "tokenizer.json"`. Raises ValueError when the tokenizer is not supported."""
        path = base_dir / "tokenizer.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ValueError(f"{base_dir} has no tokenizer.json") from error
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        try:
            return cls.parse(document)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Vocabulary:
        """Reads a parsed tokenizer.json. Raises ValueError naming the part that is not supported."""
        model = document.get("model") or {}
        if model.get("type") != "BPE":
            raise ValueError(f"model.type is {model.get('type')!r}; only BPE tokenizers are supported")
        steps = _decoder_steps(document.get("decoder"))
        read = _token_reader(steps)
        tokens: dict[int, str] = {token_id: token for token, token_id in model["vocab"].items()}
        special_ids = set()
        for added in document.get("added_tokens") or []:
            tokens[added["id"]] = added["content"]
            if added.get("special"):
                special_ids.add(added["id"])
        token_bytes = [b""] * (max(tokens, default=-1) + 1)
        for token_id, token in tokens.items():
            if token_id not in special_ids:
                token_bytes[token_id] = read(token)
        return cls(token_bytes, frozenset(special_ids), any(_strips_leading_space(step) for step in steps))

    def decode(self, token_ids: Iterable[int]) -> bytes:
        """Returns the bytes of a run of tokens. Ids beyond the tokenizer's last one have none."""
        table = self.token_bytes
        return b"".join([table[token_id] for token_id in token_ids if token_id < len(table)])


def _decoder_steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        raise ValueError("decoder is missing")
    if decoder["type"] == "Sequence":
        return [step for part in decoder["decoders"] for step in _decoder_steps(part)]
    return [decoder]


def _token_reader(steps: list[dict[str, Any]]) -> _TokenReader:
    """Returns the decoder as a function of one token: those of its steps that act on single tokens."""
    replacements: list[tuple[str, str]] = []
    byte_level = byte_fallback = False
    for step in steps:
        match step:
            case {"type": "ByteLevel"}:
                byte_level = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": replacement}:
                replacements.append((replacement, " "))
            case {"type": "Fuse"} | {"type": "Strip", "content": " ", "start": 0 | 1, "stop": 0}:
                pass  # acts on the whole text: see strips_leading_space
            case _:
                raise ValueError(f"decoder step {step} is not supported")
    if byte_level:
        alphabet = _byte_level_alphabet()
        return lambda token: _read_byte_level(token, alphabet)

    def read(token: str) -> bytes:
        if byte_fallback and (found := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(found[1], 16)])
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        return token.encode("utf-8")

    return read


def _strips_leading_space(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        # Files older than prepend_scheme have add_prefix_space.
        default = "always" if step.get("add_prefix_space", True) else "never"
        return step.get("prepend_scheme", default) != "never"
    return step["type"] == "Strip" and step["start"] == 1


def _read_byte_level(token: str, alphabet: dict[str, int]) -> bytes:
    """Returns a token's bytes. A token outside the alphabet is an added one, and stands for itself."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def _byte_level_alphabet() -> dict[str, int]:
    """Returns GPT-2's map of characters to bytes: printable Latin-1 is itself, the rest counts up from
    U+0100.
    """
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update({chr(0x100 + offset): byte for offset, byte in enumerate(others)})
    return alphabet
