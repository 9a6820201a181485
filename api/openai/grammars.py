"""Reads a request's grammar from its fields, checks it, and names the field of what is refused."""

from __future__ import annotations

import json

from api.errors import InvalidValue, UnsupportedParameter
from api.grammars.checks import GrammarChecks
from api.openai.schemas import GenerationFields, JsonObjectFormat, JsonSchemaFormat
from engine.protocol import Grammar
from tokenization.grammars.errors import GrammarRefused, GrammarsUnsupported
from tokenization.grammars.messages import Check, SchemaPath

SCHEMA_PARAM = "response_format.json_schema.schema"
ANY_OBJECT = Grammar("json_schema", '{"type": "object"}')
_MAX_PARAM = 200


async def checked_grammar(
    body: GenerationFields, tenant: str, checks: GrammarChecks | None
) -> Grammar | None:
    """Returns the grammar that the request's choices are held to, known to compile; None without one.

    Raises:
        InvalidValue: the grammar is refused; names the part at fault.
        UnsupportedParameter: this base or process serves no structured outputs.
        GrammarChecksBusy, GrammarsUnavailable: it cannot be checked at the moment.
    """
    requested = _requested(body)
    if requested is None:
        return None
    param, order = requested
    if checks is None:
        raise UnsupportedParameter(f"Structured outputs are not served here: leave '{param}' out.", param)
    try:
        return await checks.check(tenant, order)
    except GrammarRefused as refused:
        raise _invalid(body, param, refused) from None
    except GrammarsUnsupported:
        raise UnsupportedParameter(
            f"This model does not support structured outputs: leave '{param}' out.", param
        ) from None


def _requested(body: GenerationFields) -> tuple[str, Check] | None:
    """Returns the field that asks for a grammar, and the check of it."""
    if body.regex is not None:
        return "regex", Check(Grammar("regex", body.regex), False)
    if body.choice is not None:
        return "choice", Check(Grammar("choice", json.dumps(body.choice, ensure_ascii=False)), False)
    if body.grammar is not None:
        return "grammar", Check(Grammar("lark", body.grammar), False)
    wanted = body.response_format
    if isinstance(wanted, JsonObjectFormat):
        return "response_format", Check(ANY_OBJECT, False)
    if isinstance(wanted, JsonSchemaFormat):
        schema = bytes(wanted.json_schema.schema).decode()
        return SCHEMA_PARAM, Check(Grammar("json_schema", schema), bool(wanted.json_schema.strict))
    return None


def _invalid(body: GenerationFields, param: str, refused: GrammarRefused) -> InvalidValue:
    wanted = body.response_format
    if not isinstance(wanted, JsonSchemaFormat):
        return InvalidValue(f"Invalid value for '{param}': {refused.reason}.", param)
    return invalid_schema(f"response_format '{wanted.json_schema.name}'", param, refused)


def invalid_schema(owner: str, param: str, refused: GrammarRefused) -> InvalidValue:
    """Returns the error of a refused schema. `param`: the field that has it; `owner`: what it belongs to."""
    context = f"In context={repr(refused.path)[:_MAX_PARAM]}, " if refused.path else ""
    message = f"Invalid schema for {owner}: {context}{refused.reason}."
    return InvalidValue(message, (param + _dotted(refused.path))[:_MAX_PARAM])


def _dotted(path: SchemaPath) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
