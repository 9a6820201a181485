"""Renders chat messages with a checkpoint's chat template: Jinja in a sandbox, with the names that templates
expect.

The template is the operator's file, the messages are the tenant's: only the messages are treated as hostile.
The template runs in a sandbox nevertheless, because checkpoints come from strangers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


class TemplateRefusal(ValueError):
    """The template cannot express this conversation, for example two user turns in a row.

    The message is the template's own.
    """


class ChatTemplate:
    """One compiled template.

    Args:
        source: Jinja source, in the dialect of `tokenizer_config.json`.
        special_tokens: `bos_token`, `eos_token`... as the template may name them.
        tool_source: the template of conversations with tools, where a checkpoint has one of its own.
    """

    def __init__(self, source: str, special_tokens: dict[str, str], tool_source: str | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._template = _compile(environment, source)
        self.source = source
        """The template of conversations without tools."""
        self.tool_source = source if tool_source is None else tool_source
        """The template that conversations with tools are rendered with."""
        self.takes_tools = "tools" in _names(environment, self.tool_source)
        """Whether that template shows tools to the model."""
        self.variables = _names(environment, source)
        """Names that the template reads or sets."""
        self._tool_template = self._template if tool_source is None else _compile(environment, tool_source)
        self._special_tokens = special_tokens

    @classmethod
    def load(cls, base_dir: Path) -> ChatTemplate | None:
        """Reads the template beside a checkpoint; returns None when it has none.

        Looks into `chat_template.jinja` first, then `tokenizer_config.json`, where it may be one string or a
        list of named ones, of which "default" is taken, and "tool_use" for conversations with tools.

        Raises:
            ValueError: the file exists and holds no usable template.
        """
        config_path = base_dir / "tokenizer_config.json"
        config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        template_path = base_dir / "chat_template.jinja"
        source = (
            template_path.read_text(encoding="utf-8")
            if template_path.is_file()
            else config.get("chat_template")
        )
        if source is None:
            return None
        tool_source = None
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            if "default" not in named:
                raise ValueError(
                    f"{config_path.name}: no chat_template is called 'default', only {sorted(named)}"
                )
            source, tool_source = named["default"], named.get("tool_use")
        try:
            return cls(source, _special_tokens(base_dir, config), tool_source)
        except TemplateError as error:
            raise ValueError(f"the chat template of {base_dir.name} does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the conversation as the model's text, by default ending where the assistant's turn begins.

        `tools`: functions that the model may call, in OpenAI's form; None for none. `options`: variables of
        the template's own.

        Raises:
            TemplateRefusal: the template raised an exception of its own, or read what messages do not carry.
        """
        try:
            template = self._template if tools is None else self._tool_template
            return template.render(
                messages=list(messages),
                add_generation_prompt=add_generation_prompt,
                tools=None if tools is None else list(tools),
                **self._special_tokens,
                **(options or {}),
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            raise TemplateRefusal(str(error) or type(error).__name__) from error

    @cached_property
    def takes_later_systems(self) -> bool:
        """Whether it renders more system messages than one at the beginning. Others refuse or drop them."""
        first, later = ({"role": "system", "content": f"{word} instruction"} for word in ("first", "later"))
        turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        try:
            return all(
                later["content"] in self.render([*messages, turns[0]])
                for messages in ([first, later], [first, *turns, later])
            )
        except TemplateRefusal:
            return False


def _names(environment: ImmutableSandboxedEnvironment, source: str) -> frozenset[str]:
    return frozenset(name.name for name in environment.parse(source).find_all(nodes.Name))


def _compile(environment: ImmutableSandboxedEnvironment, source: str) -> Template:
    template = environment.from_string(source)
    # What Jinja gives it is a chain of maps, which it would copy name by name for every text.
    template.globals = dict(template.globals)
    return template


def _special_tokens(base_dir: Path, config: dict[str, Any]) -> dict[str, str]:
    """Returns the names a template may use, from tokenizer_config.json or the older
    special_tokens_map.json.
    """
    map_path = base_dir / "special_tokens_map.json"
    found = json.loads(map_path.read_text(encoding="utf-8")) if map_path.is_file() else {}
    found |= {name: config[name] for name in SPECIAL_TOKEN_NAMES if config.get(name) is not None}
    contents = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in found.items()
        if name in SPECIAL_TOKEN_NAMES
    }
    return {name: value for name, value in contents.items() if isinstance(value, str)}


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Templates want JSON for a model to read: Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; when serving it is its
    content.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration is a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()
