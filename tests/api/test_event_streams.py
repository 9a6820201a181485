"""Server-sent events by themselves: what is sent when, and that nothing follows the last event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from api.openai import stream
from api.openai.answer import AnswerDelta
from api.openai.response_bodies import ChunkFormat
from api.openai.stream import DONE, PING, EventStream, _Pings
from api.openai.submission import Submission
from api.response_writer import EXTENSION, do_nothing
from engine.client import EngineGone
from engine.protocol import PriorityClass, SamplingParams, Submit, Usage
from tests.support.waiting import eventually

SILENCE = 0.02


class Outlet:
    """Remembers what is written, after its last event too."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.paused = False
        self.gone: Callable[[], None] = do_nothing
        self.resumed: Callable[[], None] = do_nothing

    def write(self, body: bytes) -> bool:
        self.written.append(body)
        return not self.paused

    async def flushed(self) -> None:
        pass

    def watch(self, gone: Callable[[], None], resumed: Callable[[], None]) -> None:
        self.gone, self.resumed = gone, resumed

    def unwatch(self) -> None:
        self.gone = self.resumed = do_nothing


class Answer:
    """Gives pieces when the test says so, until it is over."""

    def __init__(self) -> None:
        self.submission = SimpleNamespace(id="chatcmpl-1")
        self.outcome = SimpleNamespace(failed=lambda error: self.told.append(type(error).__name__))
        self.usage = Usage(1, 0, 2)
        self.told: list[str] = []
        self.give: Callable[[list[AnswerDelta]], bool] = lambda pieces: False
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def read(self, give: Callable[[list[AnswerDelta]], bool]) -> None:
        self.give = give
        await self._over

    def says(self, text: str) -> bool:
        return self.give([AnswerDelta(0, text, None, None)])

    def ends(self) -> None:
        self._over.set_result(None)

    def fail(self, error: Exception) -> None:
        self._over.set_exception(error)

    def resume(self) -> None:
        self.told.append("go on")

    def left(self) -> None:
        self.told.append("left")


SUBMISSION = Submission(
    id="chatcmpl-1",
    created=1,
    model="sapling",
    fingerprint="fp",
    tier=PriorityClass.DEFAULT,
    n=1,
    submits=[Submit("chatcmpl-1", "ten_one", [1], SamplingParams(max_tokens=1))],
    stops=(),
    logprobs=None,
)


class Format(ChunkFormat):
    """Chunks of bare text; the end of the stream is the real one."""

    def chunk(self, delta: AnswerDelta) -> bytes:
        return f"data: {delta.text}\n\n".encode() if delta.text else b""


class Site:
    """A stream on its way to a client."""

    def __init__(self, *, include_usage: bool = False) -> None:
        self.writer, self.answer = Outlet(), Answer()
        self.messages: list[Any] = []
        self.open: list[int] = []
        self.failed: list[str] = []
        metrics = SimpleNamespace(
            open_streams=SimpleNamespace(inc=lambda: self.open.append(1), dec=lambda: self.open.append(-1)),
            failed=self.failed.append,
        )
        format = Format(SUBMISSION, True, include_usage)
        self.stream = EventStream(self.answer, format, SILENCE, metrics, {})  # type: ignore[arg-type]
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        async def send(message: Any) -> None:
            self.messages.append(message)

        async def receive() -> Any:
            raise AssertionError("the writer hears of the client")

        await self.stream({"type": "http", "extensions": {EXTENSION: self.writer}}, receive, send)

    @property
    def last(self) -> Any:
        assert not self.messages[-1]["more_body"]
        return self.messages[-1]["body"]


async def test_the_last_event_says_that_it_is_the_last() -> None:
    site = Site()
    await asyncio.sleep(0)
    assert site.answer.says("one") is True
    site.answer.ends()
    await site.task
    assert site.writer.written == [b"data: one\n\n"]
    assert site.last == DONE
    assert site.messages[0]["status"] == 200
    assert sum(site.open) == 0


async def test_usage_comes_before_it() -> None:
    site = Site(include_usage=True)
    await asyncio.sleep(0)
    site.answer.ends()
    await site.task
    event, done, rest = site.last.partition(DONE)
    assert (done, rest) == (DONE, b"")
    assert json.loads(event.removeprefix(b"data: "))["usage"]["total_tokens"] == 3


async def test_a_silent_stream_sends_comments_and_none_after_its_end() -> None:
    site = Site()
    await eventually(lambda: site.writer.written.count(PING) >= 2, 1.0)
    site.answer.ends()
    await site.task
    written = len(site.writer.written)
    await asyncio.sleep(5 * SILENCE)
    assert len(site.writer.written) == written, "after [DONE] nothing may follow"


async def test_a_client_that_does_not_read_gets_no_comments() -> None:
    site = Site()
    site.writer.paused = True
    await asyncio.sleep(5 * SILENCE)
    assert site.writer.written == []
    assert site.answer.says("one") is False, "it has to catch up"
    site.writer.paused = False
    await eventually(lambda: PING in site.writer.written)
    site.answer.ends()
    await site.task


async def test_nothing_is_sent_for_pieces_without_text_and_the_answer_goes_on() -> None:
    site = Site()
    await asyncio.sleep(0)
    assert site.answer.says("") is True
    assert site.writer.written == []
    site.answer.ends()
    await site.task


async def test_an_error_is_the_last_event_and_counted() -> None:
    site = Site()
    await asyncio.sleep(0)
    site.answer.fail(EngineGone("connection lost"))
    await site.task
    assert site.last.startswith(b'data: {"error"')
    assert DONE not in site.last
    assert site.answer.told == ["EngineGone"]
    assert len(site.failed) == 1
    written = len(site.writer.written)
    await asyncio.sleep(5 * SILENCE)
    assert len(site.writer.written) == written


async def test_a_client_that_hangs_up_breaks_the_answer_off() -> None:
    site = Site()
    await asyncio.sleep(0)
    site.writer.gone()
    await site.task
    assert site.answer.told == ["left"]
    assert [message["type"] for message in site.messages] == ["http.response.start"], "nobody is there"
    assert sum(site.open) == 0
    assert site.failed == []
    await asyncio.sleep(3 * SILENCE)
    assert PING not in site.writer.written


async def test_a_client_that_has_caught_up_has_the_answer_go_on() -> None:
    site = Site()
    await asyncio.sleep(0)
    site.writer.resumed()
    assert site.answer.told == ["go on"]
    site.answer.ends()
    await site.task


async def test_nobody_listens_to_the_client_after_the_end() -> None:
    site = Site()
    await asyncio.sleep(0)
    site.answer.ends()
    await site.task
    assert site.writer.gone is do_nothing
    site.writer.gone()
    assert site.answer.told == []


class Clock:
    """An event loop's time and its one timer, moved by the test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due = 0.0
        self._fire: Callable[[], None] = do_nothing

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, fire: Callable[[], None]) -> None:
        self.due, self._fire = self.now + delay, fire

    def reach(self) -> None:
        """Let the time come for which the timer is set."""
        self.now = self.due
        self._fire()


def test_what_was_sent_puts_the_next_comment_off(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writer = Clock(), Outlet()
    monkeypatch.setattr(stream, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    pings = _Pings(writer, 8.0)
    clock.now = 6.0
    pings.sent()
    clock.reach()
    assert (clock.now, writer.written) == (8.0, [])
    clock.reach()
    assert (clock.now, writer.written) == (14.0, [PING])


async def test_each_event_puts_the_next_comment_off(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[None] = []
    monkeypatch.setattr(_Pings, "sent", lambda pings: noted.append(None))
    site = Site()
    await asyncio.sleep(0)
    for text in ("one", "", "two"):
        site.answer.says(text)
    assert len(noted) == 2, "one that is empty is not sent"
    site.answer.ends()
    await site.task
