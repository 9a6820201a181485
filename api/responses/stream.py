"""Encodes the stream events of a response, for `EventStream` to send and background responses to store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from api.openai.answer import AnswerDelta
from api.openai.response_bodies import DONE
from api.responses.bodies import failed, shown
from api.responses.output import OutputBuilder
from engine.protocol import Usage

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


class EventEncoder:
    """Numbers the events of one stream. `sequence`: the number of the next one."""

    def __init__(self, sequence: int = 0) -> None:
        self.sequence = sequence

    def encode(self, event: Json) -> bytes:
        """Returns a server-sent event."""
        numbered = {"type": event["type"], "sequence_number": self.sequence, **event}
        self.sequence += 1
        return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), _encode(numbered))

    def lifecycle(self, status: str, response: Json) -> bytes:
        """Returns an event that has the whole response, such as `response.completed`."""
        return self.encode({"type": f"response.{status}", "response": response})


class ResponseEvents:
    """The events of one response that is streamed while it is generated.

    Args:
        body: the response object in progress, without its output.
        output: collects the output.
        finish: ends the response; returns its whole object.
        fail: records the error; returns the whole object of the failed response.
        abandon: is called when the client has disconnected.
    """

    def __init__(
        self,
        body: Json,
        output: OutputBuilder,
        finish: Callable[[Usage], Awaitable[Json]],
        fail: Callable[[Exception], Awaitable[Json]],
        abandon: Callable[[], Awaitable[None]],
    ) -> None:
        self._body = body
        self._output = output
        self._finish = finish
        self._fail = fail
        self._abandon = abandon
        self._encoder = EventEncoder()

    def start(self) -> bytes:
        begun = shown(self._body, [])
        return b"".join(self._encoder.lifecycle(status, begun) for status in ("created", "in_progress"))

    def chunk(self, delta: AnswerDelta) -> bytes:
        return b"".join([self._encoder.encode(event) for event in self._output.take(delta)])

    async def end(self, usage: Usage) -> bytes:
        try:
            response = await self._finish(usage)
        except Exception as error:  # noqa: BLE001  reported to the client as the response's failure
            return await self.failed(error)
        return self._encoder.lifecycle(response["status"], response) + DONE

    async def failed(self, error: Exception) -> bytes:
        try:
            response = await self._fail(error)
        except Exception:  # noqa: BLE001  the first error is the one to report
            response = shown(failed(self._body, error), self._output.items)
        return self._encoder.lifecycle("failed", response)

    async def left(self) -> None:
        await self._abandon()
