"""Parses tool calls of Mistral's newer models: `[TOOL_CALLS]name[ARGS]{...}` for each call."""

from __future__ import annotations

from tokenization.tools.json_call import read_object
from tokenization.tools.mistral import OPEN
from tokenization.tools.parser import (
    WHITESPACE,
    NotACall,
    Reading,
    ToolCallParser,
    after_spaces,
    literal,
    offered_name,
)

CALL_ID, ARGUMENTS = "[CALL_ID]", "[ARGS]"


class MistralArgsParser(ToolCallParser):
    """Some releases write `[CALL_ID]` and an id before `[ARGS]`, and some leave `[ARGS]` out."""

    markers = (OPEN,)
    tokens = (OPEN, CALL_ID, ARGUMENTS)
    call_id_length = 9

    def _read_call(self, marker: str) -> Reading:
        name, character = yield from offered_name(self.functions, "[{" + WHITESPACE)
        if character == "[":
            character = yield
            if character == CALL_ID[1]:
                yield from literal(CALL_ID[2:])
                while (character := (yield)) != "[":
                    if not character.isalnum():
                        raise NotACall
                character = yield
            if character != ARGUMENTS[1]:
                raise NotACall
            yield from literal(ARGUMENTS[2:])
            character = yield from after_spaces()
        elif character != "{":
            character = yield from after_spaces()
        if character != "{":
            raise NotACall
        self.start_call(name)
        yield from read_object(self.add_arguments)
