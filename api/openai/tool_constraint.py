"""Decides how a message is constrained: by its format, and by the schemas of the functions that it may call.

A function that is not strict and whose schema cannot be followed is held to any JSON object. Where nothing
requires a grammar and none can be followed, the model is free.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from api.errors import InvalidValue, UnsupportedParameter
from api.grammars.checks import GrammarChecks
from api.openai.custom_tools import GRAMMAR, CustomGrammar
from api.openai.decoding import output_constraints
from api.openai.grammars import checked_grammar, invalid_schema
from api.openai.schemas import MAX_GRAMMAR_BYTES, ChatCompletionRequest
from api.openai.tool_calls import OfferedTools
from api.openai.tool_grammar import grammar_of
from api.openai.tool_schemas import CustomTool, FunctionDefinition, allowed_functions
from engine.protocol import Grammar
from tokenization.grammars.errors import GrammarRefused, GrammarsUnsupported
from tokenization.grammars.messages import Check
from tokenization.tools.argument_rules import not_held_in_tags

_TAGGED = "qwen_coder"
"""The format whose arguments are not JSON."""


async def message_constraint(
    body: ChatCompletionRequest, tools: OfferedTools | None, tenant: str, checks: GrammarChecks | None
) -> Grammar | None:
    """Returns the grammar that a message is held to, known to compile; None if it is free.

    Raises:
        InvalidValue: a schema or grammar is refused; names the part at fault.
        UnsupportedParameter: this base or process serves no structured outputs, or not this combination.
        GrammarChecksBusy, GrammarsUnavailable: it cannot be checked at the moment.
    """
    answer = await checked_grammar(body, tenant, checks)
    if tools is None:
        return answer
    fields = output_constraints(body)
    if fields and fields != ["response_format"]:
        raise UnsupportedParameter(
            f"'tools' cannot be combined with '{fields[0]}': leave one out, or set 'tool_choice' to 'none'.",
            "tools",
        )
    allowed = allowed_functions(body.tools or (), body.tool_choice)
    grammars = {
        number: tool.custom.grammar
        for number, tool in enumerate(body.tools or ())
        if number in allowed and isinstance(tool, CustomTool) and tool.custom.grammar is not None
    }
    needed_by = _needed_by(tools, allowed, grammars, answer)
    contradiction = next((name for name in ("min_tokens", "ignore_eos") if getattr(body, name)), None)
    if contradiction is not None and needed_by is not None:
        raise InvalidValue(
            f"'{contradiction}' cannot be combined with '{needed_by}', which says where output ends.",
            contradiction,
        )
    grammar = None
    if checks is not None and contradiction is None:
        schema = None if answer is None else json.loads(answer.source)
        await _check_grammars(tools, grammars, tenant, checks)
        grammar = await _tool_grammar(tools, allowed, grammars, schema, tenant, checks)
    if grammar is None and needed_by is not None:
        if checks is not None and checks.are_supported:
            raise InvalidValue(
                "The schemas of these functions are too large or too complex together to hold calls to.",
                "tools",
            )
        raise UnsupportedParameter(
            f"Structured outputs are not served here: leave '{needed_by}' out.", needed_by
        )
    return grammar


def _needed_by(
    tools: OfferedTools,
    allowed: dict[int, FunctionDefinition],
    grammars: dict[int, CustomGrammar],
    answer: Grammar | None,
) -> str | None:
    """Returns the field that requires a grammar; None: calls are held to one where that is possible."""
    if tools.is_required:
        return "tool_choice"
    if grammars:
        return f"tools[{min(grammars)}].custom.format"
    strict = next((number for number, function in allowed.items() if function.strict), None)
    if strict is not None:
        return f"tools[{strict}].function.strict"
    return None if answer is None else "response_format"


async def _check_grammars(
    tools: OfferedTools, grammars: dict[int, CustomGrammar], tenant: str, checks: GrammarChecks
) -> None:
    """Raises InvalidValue or UnsupportedParameter for the first grammar of a custom tool that does not
    compile, or that calls cannot be held to.
    """
    for number, grammar in grammars.items():
        param = f"tools[{number}].{GRAMMAR}"
        if tools.format.name == _TAGGED:
            raise UnsupportedParameter(
                f"'{param}': this model writes texts between tags, which cannot be held to a grammar. Leave "
                "'format' out.",
                param,
            )
        try:
            await checks.check(tenant, Check(Grammar(grammar.syntax, grammar.definition), False))
        except GrammarsUnsupported:
            return
        except GrammarRefused as refused:
            raise InvalidValue(f"Invalid grammar in '{param}': {refused.reason}.", param) from None


async def _tool_grammar(
    tools: OfferedTools,
    allowed: dict[int, FunctionDefinition],
    grammars: dict[int, CustomGrammar],
    answer: dict[str, Any] | None,
    tenant: str,
    checks: GrammarChecks,
) -> Grammar | None:
    """Returns the grammar of the message; None if none can be followed. Raises InvalidValue."""
    is_tagged = tools.format.name == _TAGGED
    try:
        for number, function in allowed.items():
            refused = await _refused_schema(function, is_tagged, tenant, checks) if function.strict else None
            if refused is not None:
                if number in grammars:
                    param = f"tools[{number}].{GRAMMAR}"
                    raise InvalidValue(f"Invalid grammar in '{param}': {refused.reason}.", param)
                param = f"tools[{number}].function.parameters"
                raise invalid_schema(f"function '{function.name}'", param, refused)
        grammar = await _accepted(grammar_of(tools, answer), tenant, checks)
        if grammar is not None:
            return grammar
        lenient = [function for function in allowed.values() if not function.strict]
        refused_names = [
            function.name
            for function in lenient
            if await _refused_schema(function, False, tenant, checks) is not None
        ]
        # Schemas that can be followed one by one may be too large together.
        for loose in (refused_names, [function.name for function in lenient]):
            grammar = await _accepted(grammar_of(tools, answer, loose), tenant, checks)
            if grammar is not None:
                return grammar
    except GrammarsUnsupported:
        pass
    return None


async def _refused_schema(
    function: FunctionDefinition, is_tagged: bool, tenant: str, checks: GrammarChecks
) -> GrammarRefused | None:
    """Returns why calls cannot be held to the function's schema; None if they can."""
    if function.parameters is None:
        return None
    path = not_held_in_tags(function.parameters) if is_tagged else None
    if path is not None:
        return GrammarRefused(path, "this model writes arguments in a form that cannot be held to it")
    source = msgspec.json.encode(function.parameters).decode()
    try:
        await checks.check(tenant, Check(Grammar("json_schema", source), bool(function.strict)))
    except GrammarRefused as refused:
        return refused
    return None


async def _accepted(grammar: Grammar, tenant: str, checks: GrammarChecks) -> Grammar | None:
    """Returns the grammar as the engine gets it; None if it is refused."""
    if len(grammar.source) > MAX_GRAMMAR_BYTES:
        return None
    try:
        return await checks.check(tenant, Check(grammar, False))
    except GrammarRefused:
        return None
