"""Derives the grammar that holds a message to calls of the functions that it may call.

`required`, and a named function: the message consists of calls. `auto`: it is text, or text and then calls;
a call that begins is held to its function's schema.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from api.errors import UnsupportedParameter
from api.openai.tool_calls import OfferedTools
from engine.protocol import Grammar
from tokenization.tools.argument_rules import ANY_OBJECT
from tokenization.tools.grammar import call_grammar, message_grammar


def grammar_of(
    tools: OfferedTools, answer: dict[str, Any] | None = None, loose: Collection[str] = ()
) -> Grammar:
    """Returns a grammar in llguidance's dialect of Lark.

    Args:
        answer: a JSON Schema that messages without calls are of; None: text.
        loose: names of functions that are held to any object, in place of their schema.

    Raises:
        UnsupportedParameter: an answer by a schema cannot be told from calls in the model's format.
    """
    functions = [
        function._replace(parameters=ANY_OBJECT) if function.name in loose else function
        for function in tools.functions
    ]
    if tools.is_required:
        return Grammar("lark", call_grammar(tools.format, functions, is_parallel=tools.is_parallel))
    try:
        source = message_grammar(tools.format, functions, is_parallel=tools.is_parallel, answer=answer)
    except ValueError as error:
        raise UnsupportedParameter(
            f"'tools' and 'response_format' cannot be combined on this model: {error}. Leave one out, or set "
            "'tool_choice' to 'required' or 'none'.",
            "tools",
        ) from None
    return Grammar("lark", source)
