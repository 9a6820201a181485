"""Parses tool calls of Llama 3.x: `{"name": ..., "parameters": {...}}` as the whole message or after
`<|python_tag|>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenization.tools.deltas import ToolFunction
from tokenization.tools.json_call import read_json_call
from tokenization.tools.parser import Reading, ToolCallParser, after_spaces

TAG = "<|python_tag|>"


class LlamaParser(ToolCallParser):
    """Several calls are separated by semicolons or white space. Calls of built-in tools, written in Python,
    are text.
    """

    markers = (TAG,)
    tokens = (TAG,)

    def __init__(self, functions: Sequence[ToolFunction]) -> None:
        super().__init__(functions)
        self._open("", "")

    def _read_call(self, marker: str) -> Reading:
        """Reads all calls up to text that is none."""
        first = yield from after_spaces()
        while True:
            yield from read_json_call(self, first, needs_arguments=True)
            self.await_call()
            first = yield from after_spaces()
            if first == ";":
                first = yield from after_spaces()
