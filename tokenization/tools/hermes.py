"""Parses tool calls of Hermes, Qwen 2.5 and Qwen 3:
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
"""

from __future__ import annotations

from tokenization.tools.json_call import read_json_call
from tokenization.tools.parser import NotACall, Reading, ToolCallParser, after_spaces, literal

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ToolCallParser):
    """One pair of tags per call. A call whose closing tag is missing stands."""

    markers = (OPEN,)
    tokens = (OPEN, CLOSE)

    def _read_call(self, marker: str) -> Reading:
        yield from read_json_call(self, (yield from after_spaces()))
        if (yield from after_spaces()) != CLOSE[0]:
            raise NotACall
        yield from literal(CLOSE[1:])
