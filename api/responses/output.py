"""Builds a response's output items from the deltas of its answer, and the stream events that report them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from api.openai.answer import Answer, AnswerDelta
from api.openai.tool_calls import CallDelta
from db.base import new_id

Json = dict[str, Any]
_CLOSED = "response.output_item.done"


class OutputBuilder:
    """The output of one response. Events are objects without a sequence number.

    Args:
        has_logprobs: whether parts of text list the log probabilities of their tokens.
    """

    def __init__(self, has_logprobs: bool) -> None:
        self._has_logprobs = has_logprobs
        self.items: list[Json] = []
        """Items so far; the last one may be unfinished."""
        self._texts: list[str] = []
        """Pieces of the last item's text or arguments, while it is unfinished."""
        self._logprobs: list[Json] = []
        self._is_open = False
        self.finish_reason: str | None = None

    def take(self, delta: AnswerDelta) -> Iterator[Json]:
        """Adds a delta; yields the events that it causes."""
        if delta.reasoning:
            yield from self._add_reasoning(delta.reasoning)
        if delta.text or (delta.logprobs and delta.logprobs["content"]):
            yield from self._add_text(delta)
        for call in delta.calls:
            yield from self._add_call(call)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            has_answer = any(item["type"] != "reasoning" for item in self.items)
            if not self.items or (not has_answer and delta.finish_reason != "length"):
                yield from self._close("completed")
                yield from self._open_message()
            yield from self._close("incomplete" if delta.finish_reason == "length" else "completed")

    def _add_reasoning(self, text: str) -> Iterator[Json]:
        if not self._is_open or self.items[-1]["type"] != "reasoning":
            yield from self._close("completed")
            yield from self._open(
                {
                    "id": new_id("rs"),
                    "type": "reasoning",
                    "status": "in_progress",
                    "summary": [],
                    "content": [],
                }
            )
            part = {"type": "reasoning_text", "text": ""}
            yield self._event("content_part.added", content_index=0, part=part)
        self._texts.append(text)
        yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _add_text(self, delta: AnswerDelta) -> Iterator[Json]:
        if not self._is_open or self.items[-1]["type"] != "message":
            yield from self._close("completed")
            yield from self._open_message()
        logprobs = [] if delta.logprobs is None else delta.logprobs["content"]
        self._texts.append(delta.text)
        self._logprobs += logprobs
        yield self._event("output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs)

    def _open_message(self) -> Iterator[Json]:
        item: Json = {
            "id": new_id("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        yield from self._open(item)
        yield self._event("content_part.added", content_index=0, part=self._part())

    def _add_call(self, call: CallDelta) -> Iterator[Json]:
        if call.id is not None:
            yield from self._close("completed")
            yield from self._open(_new_call(call))
        if not call.arguments:
            return
        self._texts.append(call.arguments)
        if self.items[-1]["type"] == "function_call":
            yield self._event("function_call_arguments.delta", delta=call.arguments)
        else:
            yield self._event("custom_tool_call_input.delta", delta=call.arguments)

    def _open(self, item: Json) -> Iterator[Json]:
        self.items.append(item)
        self._is_open = True
        yield {
            "type": "response.output_item.added",
            "output_index": len(self.items) - 1,
            "item": dict(item),
        }

    def _close(self, status: str) -> Iterator[Json]:
        """Completes the last item, if it is unfinished."""
        if not self._is_open:
            return
        self._is_open = False
        text, item = "".join(self._texts), self.items[-1]
        item["status"] = status
        if item["type"] == "message":
            part = self._part(text)
            item["content"] = [part]
            yield self._event("output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            yield self._event("content_part.done", content_index=0, part=part)
        elif item["type"] == "reasoning":
            part = {"type": "reasoning_text", "text": text}
            item["content"] = [part]
            yield self._event("reasoning_text.done", content_index=0, text=text)
            yield self._event("content_part.done", content_index=0, part=part)
        elif item["type"] == "function_call":
            item["arguments"] = text
            yield self._event("function_call_arguments.done", name=item["name"], arguments=text)
        else:
            item["input"] = text
            yield self._event("custom_tool_call_input.done", input=text)
        yield {"type": _CLOSED, "output_index": len(self.items) - 1, "item": dict(item)}
        self._texts, self._logprobs = [], []

    def _part(self, text: str = "") -> Json:
        logprobs = self._logprobs if self._has_logprobs else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _event(self, kind: str, **fields: Any) -> Json:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}


def _new_call(call: CallDelta) -> Json:
    if call.is_custom:
        head: Json = {"id": new_id("ctc"), "type": "custom_tool_call", "status": "in_progress"}
        return {**head, "call_id": call.id, "name": call.name, "input": ""}
    head = {"id": new_id("fc"), "type": "function_call", "status": "in_progress"}
    return {**head, "call_id": call.id, "name": call.name, "arguments": ""}


async def read_output(answer: Answer, output: OutputBuilder) -> None:
    """Reads the answer to its end, without events. Raises what `Answer.read` does."""

    def take(deltas: list[AnswerDelta]) -> bool:
        for delta in deltas:
            for _ in output.take(delta):
                pass
        return True

    await answer.read(take)
