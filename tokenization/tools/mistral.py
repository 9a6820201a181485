"""Parses tool calls of Mistral's older models: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from tokenization.tools.json_call import read_json_call
from tokenization.tools.parser import NotACall, Reading, ToolCallParser, after_spaces

OPEN = "[TOOL_CALLS]"


class MistralParser(ToolCallParser):
    """One list with all calls of the message."""

    markers = (OPEN,)
    tokens = (OPEN,)
    call_id_length = 9

    def _read_call(self, marker: str) -> Reading:
        if (yield from after_spaces()) != "[":
            raise NotACall
        while True:
            yield from read_json_call(self, (yield from after_spaces()))
            character = yield from after_spaces()
            if character == "]":
                return
            if character != ",":
                raise NotACall
            self.await_call()
