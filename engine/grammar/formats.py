"""Translates grammars from the wire's forms to llguidance's, and bounds what following one costs.

Used by the engine and, to check grammars before they are sent, by the API. No torch.
"""

from __future__ import annotations

import json

from llguidance import LLMatcher, LLParserLimits

from engine.grammar.exact_schemas import exact
from engine.protocol import Grammar

WHITESPACE = r"( |\n( {0,16}|\t{0,8}))"
"""Between the tokens of JSON, at most once: a space, or a new line with its indentation. Compact and indented
JSON pass, and no model can go on with spaces until its last token."""


def to_llguidance(grammar: Grammar) -> str:
    """Returns the grammar in llguidance's JSON form. Raises ValueError when the source cannot be read."""
    if grammar.kind == "json_schema":
        schema = exact(json.loads(grammar.source))
        if not isinstance(schema, dict):
            raise ValueError("the schema must be a JSON object")
        return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE})
    if grammar.kind == "regex":
        return LLMatcher.grammar_from_regex(grammar.source)
    if grammar.kind == "choice":
        return LLMatcher.grammar_from_lark(_choice(json.loads(grammar.source)))
    return LLMatcher.grammar_from_lark(grammar.source)


MAX_LEXER_STATES = 50_000
"""Of one compilation, about 0.5 kB each. They only grow; a lane is replaced before (`MAX_LANE_MASKS`)."""


def parser_limits(max_lexer_states: int = MAX_LEXER_STATES) -> LLParserLimits:
    """Returns the limits of one grammar: on its size, on the steps of compiling it and of filling a mask."""
    # The defaults (2 000 and 50 000 items) are too few for an object of 5 000 optional properties: each token
    # that reaches from one property into the next takes as many items as there are properties.
    return LLParserLimits(
        max_items_in_row=20_000,
        step_max_items=600_000,
        max_lexer_states=max_lexer_states,
        verbose_errors=False,
    )


def _choice(options: object) -> str:
    if not isinstance(options, list) or not options or not all(isinstance(one, str) for one in options):
        raise ValueError("choice must be a list of one or more strings")
    return "start: " + " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
