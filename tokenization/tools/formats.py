"""Chooses the format of a model's tool calls, from its chat template or by name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from engine.vocabulary import Vocabulary
from tokenization.codec import TextCodec
from tokenization.tools.hermes import HermesParser
from tokenization.tools.llama import LlamaParser
from tokenization.tools.mistral import MistralParser
from tokenization.tools.mistral_args import MistralArgsParser
from tokenization.tools.parser import ToolCallParser
from tokenization.tools.qwen_coder import QwenCoderParser

AUTO, OFF = "auto", "none"
FORMATS: dict[str, type[ToolCallParser]] = {
    "hermes": HermesParser,
    "llama": LlamaParser,
    "mistral": MistralParser,
    "mistral_args": MistralArgsParser,
    "qwen_coder": QwenCoderParser,
}
"""By the name that `ROOTSTOCK_API_TOOL_FORMAT` takes."""

_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("qwen_coder", ("<tool_call>", "<function=")),
    ("hermes", ("<tool_call>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("llama", ("<|python_tag|>",)),
    # Llama 3.2 shows the model an object, and names the role of results.
    ("llama", ("<|start_header_id|>", "ipython")),
)
"""Formats with the strings of their chat templates, the more specific first."""


def detect(template: str) -> str | None:
    """Returns the name of the format that a chat template teaches; None when it is none of ours."""
    for name, marks in _MARKS:
        if all(mark in template for mark in marks):
            return name
    return None


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How one base model writes tool calls."""

    name: str
    parser: type[ToolCallParser]
    special_ids: dict[str, int]
    """Strings of the format that are special tokens of the model, with their ids."""
    vocabulary: Vocabulary
    """The model's, with bytes for special tokens of the format: the text that is parsed contains them."""

    @classmethod
    def of(cls, codec: TextCodec, setting: str = AUTO) -> ToolFormat | None:
        """Returns the format that `setting` names, or the one of the chat template; None if tools cannot be
        offered.

        Raises:
            ValueError: a format is named, and the chat template shows no tools to the model.
        """
        template = codec.template
        takes_tools = template is not None and template.takes_tools
        if setting not in (AUTO, OFF) and not takes_tools:
            raise ValueError(
                f"the tool format is {setting!r}, but the base's chat template takes no tools: set it to "
                f"{AUTO!r} or {OFF!r}"
            )
        if template is None or not takes_tools or setting == OFF:
            return None
        name = detect(template.tool_source) if setting == AUTO else setting
        if name is None:
            return None
        parser = FORMATS[name]
        special = {
            token: token_id
            for token_id in codec.vocabulary.special_ids
            if (token := codec.special_token(token_id)) in parser.tokens
        }
        token_bytes = list(codec.vocabulary.token_bytes)
        for token, token_id in special.items():
            token_bytes[token_id] = token.encode()
        vocabulary = dataclasses.replace(codec.vocabulary, token_bytes=token_bytes)
        return cls(name, parser, special, vocabulary)
