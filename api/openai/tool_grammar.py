"""Derives the grammar that a request's tool choice holds its answer to."""

from __future__ import annotations

from api.openai.schemas import ChatCompletionRequest
from api.openai.tool_calls import OfferedTools
from api.openai.tool_schemas import AllowedToolsChoice, NamedFunction
from tokenization.tools.grammar import call_grammar


def grammar_of(body: ChatCompletionRequest, tools: OfferedTools) -> str | None:
    """Returns a grammar in llguidance's dialect of Lark; None if the choice leaves the model free.

    `required`: one or more calls of any function. A named function: exactly one call of it. `allowed_tools`:
    calls of those functions, if its mode is `required`.
    """
    choice = body.tool_choice
    if choice == "required":
        return call_grammar(tools.format, tools.functions, is_parallel=tools.is_parallel)
    if isinstance(choice, NamedFunction):
        names = {choice.function.name}
        is_parallel = False
    elif isinstance(choice, AllowedToolsChoice) and choice.allowed_tools.mode == "required":
        names = {allowed.function.name for allowed in choice.allowed_tools.tools}
        is_parallel = tools.is_parallel
    else:
        return None
    functions = [function for function in tools.functions if function.name in names]
    return call_grammar(tools.format, functions, is_parallel=is_parallel)
