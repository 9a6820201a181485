"""Encodes text as token ids: chat messages through the checkpoint's template, prompts as they are.

Keeps what a tenant's user typed apart from what the template says. `api.detokenizer` decodes, piece by piece.

A special token such as `<|end|>` is structure when the template writes it and plain text when a user types
it. Rendering would mix the two, so every special token's string inside a message is first replaced by one
private-use character that no message contains; the rendered text is then cut at the special tokens that are
left, which only the template can have written, and the text between them, user's strings restored, is encoded
by a twin of the tokenizer that knows no special tokens. A raw `/v1/completions` prompt is the caller's own
template: control tokens stay such.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.vocabulary import Vocabulary
from tokenization.chat_template import ChatTemplate
from tokenization.pieces import Pieces

INLINE_CHARACTERS = 4096
"""Texts up to this long are encoded on the event loop (a millisecond at most, where its words are new): a
thread's round trip costs as much.
"""
_PRIVATE_USE = range(0xF0000, 0xFFFFE)
_COMPOSING = {"NFC", "NFD", "NFKC", "NFKD"}
_COMPOSING_SHRINKS = 4
"""Unicode composition makes a text at most this many times shorter: Hangul jamo 9 bytes to 3, Greek 8 to
3.
"""


class RenderedChat:
    """A conversation after its template: the text, and what the private-use characters in it stand for."""

    __slots__ = ("text", "typed")

    def __init__(self, text: str, typed: dict[int, str]) -> None:
        self.text = text
        self.typed = typed
        """By code point: special-token strings that a user typed."""


class TextCodec:
    """The tokenizer of one base model.

    Args:
        tokenizer_json: the document of `tokenizer.json`.
        vocabulary: what each token is in bytes.
        template: None for a base without one; it serves completions and no chat.
    """

    def __init__(self, tokenizer_json: str, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        document = json.loads(tokenizer_json)
        added = document.get("added_tokens") or []
        special = [token for token in added if token.get("special")]
        self.vocabulary = vocabulary
        self.template = template
        self._tokenizer = Tokenizer.from_str(tokenizer_json)
        self._plain = Tokenizer.from_str(tokenizer_json)
        self._plain.encode_special_tokens = True
        for tokenizer in (self._tokenizer, self._plain):
            # Files are often saved with the limits of a training run.
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._special_ids = {token["content"]: token["id"] for token in special}
        self._names = {token["id"]: token["content"] for token in special}
        self._special = _any_of(self._special_ids)
        self._added_ids = {token["content"]: token["id"] for token in added}
        self._added = _any_of(self._added_ids)
        self._words = _any_of(token["content"] for token in added if not token.get("special"))
        """Added tokens that keep their meaning in any text, a user's included."""
        self._pieces = Pieces.of(document, self._plain) if all(map(_stands_alone, added)) else None
        self._strips = {
            token["content"]: (bool(token.get("lstrip")), bool(token.get("rstrip"))) for token in special
        }
        # A special token that is looked for after normalisation has spellings that our search would not see.
        self._always_cut = any(token.get("normalized") for token in special) and bool(
            document.get("normalizer")
        )
        self._bytes_per_token = _most_bytes_per_token(document, added, vocabulary)

    @classmethod
    def load(cls, base_dir: Path) -> TextCodec:
        """Reads tokenizer.json and the chat template beside it. Raises ValueError when they
        cannot be used.
        """
        vocabulary = Vocabulary.load(base_dir)
        document = (base_dir / "tokenizer.json").read_text(encoding="utf-8")
        return cls(document, vocabulary, ChatTemplate.load(base_dir))

    def fewest_tokens(self, text: str) -> int:
        """Returns a lower bound on the tokens of `text`, without tokenising: 0 where the tokenizer allows
        none.
        """
        return 0 if self._bytes_per_token is None else len(text.encode("utf-8")) // self._bytes_per_token

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, special ones by their names. Bytes that are no UTF-8 become U+FFFD."""
        table = self.vocabulary.token_bytes
        pieces = (
            self._names[token_id].encode() if token_id in self._names else table[token_id]
            for token_id in token_ids
            if token_id < len(table) or token_id in self._names
        )
        return b"".join(pieces).decode("utf-8", "replace")

    def special_token(self, token_id: int) -> str | None:
        """Returns the name of a special token, such as "<|end|>"; None for a token of text."""
        return self._names.get(token_id)

    def render_chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> RenderedChat:
        """Renders messages with the template, with special tokens in user text shielded.

        Args:
            messages: dicts of "role" and "content", and optionally "name", "tool_calls", "tool_call_id",
                "reasoning_content".
            tools: functions that the model may call, in OpenAI's form.
            options: variables of the template's own.

        Raises:
            TemplateRefusal: the template does not accept this conversation.
        """
        assert self.template is not None, "asked to render a chat for a base without a chat template"
        (shielded, shielded_tools), typed = self._shield([list(messages), tools])
        return RenderedChat(self.template.render(shielded, tools=shielded_tools, options=options), typed)

    def encode_conversation(self, messages: Sequence[dict[str, str]]) -> tuple[list[int], list[int]]:
        """A conversation that ends with the assistant's turn, as the model would have met and said it.

        For callers off the event loop: it may take a millisecond per page.

        Returns:
            (what the model is given before that turn, that turn up to the token that ends it).

        Raises:
            TemplateRefusal: the template does not take this conversation.
        """
        assert self.template is not None, "asked to render a chat for a base without a chat template"
        shielded, typed = self._shield(list(messages))
        prompt = self.template.render(shielded[:-1])
        whole = self.template.render(shielded, add_generation_prompt=False)
        # Where a template writes past turns in another way than the one that is to come, only what the
        # assistant said is known.
        answer = whole[len(prompt) :] if whole.startswith(prompt) else shielded[-1]["content"]
        answer_ids = self._encode_chat(RenderedChat(answer, typed))
        ends = [place for place, token_id in enumerate(answer_ids) if token_id in self._names]
        return (
            self._encode_chat(RenderedChat(prompt, typed)),
            # What follows the turn's end is the template's, and never generated.
            answer_ids[: ends[-1] + 1] if ends else answer_ids,
        )

    def encode_completion(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Returns the token ids of a raw prompt and of its continuation. For callers off the event loop."""
        return self._encode_prompt(prompt), self._tokenizer.encode(completion, add_special_tokens=False).ids

    def encode_part(self, text: str) -> list[int]:
        """Returns the token ids of text that a template could have written, without a BOS."""
        return _ids(self._tokenizer, text, add_special_tokens=False)

    def _shield(self, said: list[Any]) -> tuple[list[Any], dict[int, str]]:
        """Returns what users said with a private-use character for every special token that was typed, and
        the token that each character stands for.
        """
        texts = list(_texts(said))
        typed = {found for text in texts for found in (self._special.findall(text) if self._special else ())}
        if not typed:
            return said, {}
        used = {character for text in texts for character in text}
        free = (chr(point) for point in _PRIVATE_USE if chr(point) not in used)
        stand_ins = dict(zip(sorted(typed), free, strict=False))
        assert self._special is not None
        find = self._special.sub
        shielded: list[Any] = _with_texts(said, lambda text: find(lambda match: stand_ins[match[0]], text))
        return shielded, {ord(sign): text for text, sign in stand_ins.items()}

    async def encode_chat(self, chat: RenderedChat) -> list[int]:
        """Returns the token ids of a rendered conversation. `add_special_tokens` is off: the template has
        written the BOS.
        """
        if len(chat.text) <= INLINE_CHARACTERS:
            return self._encode_chat(chat)
        return await asyncio.to_thread(self._encode_chat, chat)

    async def encode_prompt(self, prompt: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a raw prompt, with a BOS unless the prompt begins with one, or
        `add_special_tokens` is false.
        """
        encode = self._encode_prompt if add_special_tokens else self.encode_part
        if len(prompt) <= INLINE_CHARACTERS:
            return encode(prompt)
        return await asyncio.to_thread(encode, prompt)

    def _encode_chat(self, chat: RenderedChat) -> list[int]:
        if self._special is None or not (chat.typed or self._always_cut):
            return self._encode_text(chat.text, self._added, self._tokenizer)
        token_ids: list[int] = []
        end, strips_left = 0, False
        for match in self._special.finditer(chat.text):
            token = match[0]
            lstrip, rstrip = self._strips[token]
            token_ids += self._encode_plain(chat, end, match.start(), strips_left, lstrip)
            token_ids.append(self._special_ids[token])
            end, strips_left = match.end(), rstrip
        return token_ids + self._encode_plain(chat, end, len(chat.text), strips_left, False)

    def _encode_plain(self, chat: RenderedChat, start: int, end: int, left: bool, right: bool) -> list[int]:
        """Encodes the text between two special tokens; `left` and `right`: they swallow white space there."""
        text = chat.text[start:end]
        text = text.lstrip() if left else text
        text = text.rstrip() if right else text
        return self._encode_text(text.translate(chat.typed), self._words, self._plain)

    def _encode_text(self, text: str, added: re.Pattern[str] | None, tokenizer: Tokenizer) -> list[int]:
        """Encodes piece by piece where that is equivalent; `added`: the added tokens that
        `tokenizer` finds.
        """
        if self._pieces is None or len(text) > INLINE_CHARACTERS:  # the tokenizer lets other threads run
            return _ids(tokenizer, text, add_special_tokens=False)
        token_ids: list[int] = []
        end = 0
        for match in added.finditer(text) if added is not None else ():
            token_ids += self._encode_between(text[end : match.start()], tokenizer)
            token_ids.append(self._added_ids[match[0]])
            end = match.end()
        return token_ids + self._encode_between(text[end:], tokenizer)

    def _encode_between(self, text: str, tokenizer: Tokenizer) -> list[int]:
        assert self._pieces is not None
        if not text:
            return []
        token_ids = self._pieces.encode(text)
        return _ids(tokenizer, text, add_special_tokens=False) if token_ids is None else token_ids

    def _encode_prompt(self, prompt: str) -> list[int]:
        token_ids = _ids(self._tokenizer, prompt, add_special_tokens=True)
        if len(token_ids) >= 2 and token_ids[0] == token_ids[1] and token_ids[0] in self._names:
            return token_ids[1:]
        return token_ids


def _texts(value: Any) -> Iterator[str]:
    """Yields the strings of a JSON value, keys of objects included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a copy of a JSON value with `change` applied to its strings, keys of objects included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _with_texts(inner, change) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_texts(inner, change) for inner in value]
    return value


def _ids(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> list[int]:
    """Returns token ids without their offsets in the text, which would take a fifth of the time."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    return token_ids


def _stands_alone(added: dict[str, Any]) -> bool:
    """Returns whether an added token is matched by its letters alone, without consuming anything else."""
    return not any(added.get(name) for name in ("lstrip", "rstrip", "single_word", "normalized"))


def _any_of(strings: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(strings, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _most_bytes_per_token(
    document: dict[str, Any], added: list[dict[str, Any]], vocabulary: Vocabulary
) -> int | None:
    """Returns how many bytes of input one token can stand for at most; None when that is unbounded.

    White space swallowed by an added token, and normalisers that delete, consume bytes without tokens.
    """
    if any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    longest = max(
        [len(data) for data in vocabulary.token_bytes]
        + [len(token["content"].encode("utf-8")) for token in added],
        default=0,
    )
    factor = 1
    normalizer = document.get("normalizer")
    for step in (normalizer or {}).get("normalizers", [normalizer] if normalizer else []):
        match step:
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if len(
                content
            ) >= len(pattern):
                pass
            case {"type": kind} if kind in _COMPOSING:
                factor = _COMPOSING_SHRINKS
            case _:
                return None
    return longest * factor or None
