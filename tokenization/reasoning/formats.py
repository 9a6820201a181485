"""Chooses the markers of a model's thinking, from its chat template or by name.

What else differs between models is read from what the template writes: whether the prompt of an answer ends
within thinking (DeepSeek-R1, QwQ), after it (Qwen 3 with `enable_thinking` false, DeepSeek-V3.1), or leaves
it to the model (Qwen 3, Magistral).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from engine.protocol import Reasoning
from engine.vocabulary import Vocabulary
from tokenization.chat_template import ChatTemplate
from tokenization.codec import TextCodec
from tokenization.tools.formats import ToolFormat

AUTO, OFF = "auto", "none"
FORMATS = {
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "mistral": ("[THINK]", "[/THINK]"),
    "think": ("<think>", "</think>"),
}
"""Markers by the name that `ROOTSTOCK_API_REASONING_FORMAT` takes. `think` is that of Qwen 3, QwQ,
DeepSeek-R1, GLM and others."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates turn thinking on and off."""
_TAIL_TOKENS = 32


class Opening(Enum):
    """Where the prompt leaves the model."""

    FREE = "free"
    """It may begin to think, or answer."""
    THINKING = "thinking"
    ANSWERING = "answering"
    """Thinking is over."""


def detect(template: str) -> str | None:
    """Returns the name of the format whose markers a chat template knows; None when it knows none."""
    for name, (_, end) in FORMATS.items():
        if end in template:
            return name
    return None


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one base model delimits its thinking."""

    name: str
    start: str
    end: str
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    """A line break and the end marker: what is generated when the budget is spent."""
    special: dict[int, str]
    """Markers that are special tokens of the model, by id."""
    switch: str | None
    """The variable of the chat template that turns thinking on and off; None: there is none."""
    vocabulary: Vocabulary
    """The model's, with bytes for special tokens that are markers."""
    tool_vocabulary: Vocabulary
    """The same, for answers that may call tools."""

    @classmethod
    def of(
        cls, codec: TextCodec, setting: str = AUTO, tools: ToolFormat | None = None
    ) -> ReasoningFormat | None:
        """Returns the format that `setting` names, or the one of the chat template; None if the model does
        not reason. `tools`: the format of the model's tool calls.

        Raises:
            ValueError: a format is named, and the model has no chat template.
        """
        template = codec.template
        if setting not in (AUTO, OFF) and template is None:
            raise ValueError(
                f"the reasoning format is {setting!r}, but the base has no chat template: set it to {AUTO!r} "
                f"or {OFF!r}"
            )
        name = detect(template.source) if template is not None and setting == AUTO else setting
        if template is None or name is None or name == OFF:
            return None
        start, end = FORMATS[name]
        special = {
            token_id: text
            for token_id in sorted(codec.vocabulary.special_ids)
            if (text := codec.special_token(token_id)) in (start, end)
        }
        vocabularies = (codec.vocabulary, codec.vocabulary if tools is None else tools.vocabulary)
        return cls(
            name,
            start,
            end,
            tuple(codec.encode_part(start)),
            tuple(codec.encode_part("\n" + end)),
            special,
            _switch(template),
            *(_with_text(vocabulary, special) for vocabulary in vocabularies),
        )

    def opening(self, prompt_ids: Sequence[int]) -> Opening:
        """Returns where a rendered conversation leaves the model."""
        text = self.vocabulary.decode(prompt_ids[-_TAIL_TOKENS:]).rstrip()
        if text.endswith(self.start.encode()):
            return Opening.THINKING
        return Opening.ANSWERING if text.endswith(self.end.encode()) else Opening.FREE

    def closing(self, opening: Opening) -> str:
        """Returns what to append to a prompt so that the model answers without thinking."""
        closed = f"\n\n{self.end}\n\n"
        return {
            Opening.FREE: self.start + closed,
            Opening.THINKING: closed,
            Opening.ANSWERING: "",
        }[opening]

    def reasoning(self, opening: Opening, budget: int | None, keeps_space: bool = False) -> Reasoning | None:
        """Returns the engine's parameters for a prompt; None if no thinking follows it."""
        if opening is Opening.ANSWERING:
            return None
        is_open = opening is Opening.THINKING
        return Reasoning(
            self.start,
            self.end,
            self.start_ids,
            self.end_ids,
            self.special,
            is_open,
            budget,
            keeps_space,
        )


def _switch(template: ChatTemplate) -> str | None:
    return next((name for name in SWITCHES if name in template.variables), None)


def _with_text(vocabulary: Vocabulary, special: dict[int, str]) -> Vocabulary:
    if not special:
        return vocabulary
    token_bytes = list(vocabulary.token_bytes)
    for token_id, text in special.items():
        token_bytes[token_id] = text.encode()
    return dataclasses.replace(vocabulary, token_bytes=token_bytes)
