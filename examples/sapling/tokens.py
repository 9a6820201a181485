"""Encodes documents as token ids, with the special tokens, the chat template and the mask of learned
tokens.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from .corpus import Document

BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, END = SPECIALS = (
    "<|bos|>",
    "<|eos|>",
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
)
BOS_ID, EOS_ID, PAD_ID, SYSTEM_ID, USER_ID, ASSISTANT_ID, END_ID = range(7)
VOCAB_SIZE = 4096

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}"
    "{{ '<|system|>' }}"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + '\n' }}{% endif %}"
    "{{ 'Functions: ' }}"
    "{% for tool in tools %}"
    "{{ ', ' if not loop.first }}"
    "{{ tool['function']['name'] + '(' }}"
    "{{ tool['function'].get('parameters', {}).get('properties', {}) | join(', ') }}"
    "{{ ')' }}"
    "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('Sapling knows the roles system, user, assistant and tool.') }}"
    "{% endif %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|user|><tool_response>\n' + message['content'] + '\n</tool_response><|end|>' }}"
    "{% elif not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|' + message['role'] + '|>' + (message['content'] or '') }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\n' if message['content'] or not loop.first }}"
    "{{ '<tool_call>\n{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}"
    "{{ '}\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Functions are listed by their names and the names of their parameters; calls are written as Hermes does."""


class Encoder:
    """Turns documents and chat prompts into ids, exactly as the chat template renders them."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, text: str) -> list[int]:
        """Returns the ids of a plain text, without any special token."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def document(self, document: Document) -> tuple[list[int], list[bool]]:
        """Returns the ids of a document and, for each id, whether a model should learn to predict it.

        Text of an assistant or without a role is learned; text of a user or a system message is only read.
        """
        ids, learned = [BOS_ID], [False]
        for turn in document:
            content = self.text(turn.content)
            if turn.role == "text":
                ids += [*content, EOS_ID]
                learned += [True] * (len(content) + 1)
                continue
            ids += [
                {"system": SYSTEM_ID, "user": USER_ID, "assistant": ASSISTANT_ID}[turn.role],
                *content,
                END_ID,
            ]
            learned += [False, *[turn.role == "assistant"] * (len(content) + 1)]
        return ids, learned

    def prompt(self, user: str, system: str | None = None) -> list[int]:
        """Returns the ids of a chat with one user message, up to the start of the assistant's answer."""
        opening = [] if system is None else [SYSTEM_ID, *self.text(system), END_ID]
        return [BOS_ID, *opening, USER_ID, *self.text(user), END_ID, ASSISTANT_ID]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of ids, without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)
