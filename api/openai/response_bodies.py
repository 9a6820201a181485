"""Encodes answers as OpenAI's JSON: whole responses, and the chunks of a stream.

Chunks of a stream differ only in their text, so the JSON before and after it is encoded once per choice, and
each chunk encodes one string.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from api.errors import body_of
from api.openai.answer import Answer, AnswerDelta
from api.openai.logprobs import joined, no_tokens
from api.openai.submission import Submission
from api.openai.tool_calls import CallDelta, streamed_call, whole_calls
from engine.protocol import Usage

DONE = b"data: [DONE]\n\n"
"""The end of a complete stream."""
_encode = msgspec.json.Encoder().encode


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _reasoning_fields(text: str | None) -> dict[str, Any]:
    """Returns the thinking of a message under both of the names that clients read."""
    return {"reasoning": text, "reasoning_content": text}


async def whole(answer: Answer, chat: bool) -> bytes:
    """Reads the answer to its end and returns it as one JSON object. Raises what `Answer.read` does."""
    submission = answer.submission
    num_choices = submission.n * len(submission.submits)
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    logprobs: list[dict[str, Any] | None] = [None] * num_choices
    calls: list[list[CallDelta]] = [[] for _ in range(num_choices)]
    thoughts: list[list[str]] = [[] for _ in range(num_choices)]
    reasons: list[str | None] = [None] * num_choices

    def take(deltas: list[AnswerDelta]) -> bool:
        for delta in deltas:
            texts[delta.choice].append(delta.text)
            thoughts[delta.choice].append(delta.reasoning)
            calls[delta.choice] += delta.calls
            if delta.logprobs is not None:
                logprobs[delta.choice] = joined(logprobs[delta.choice], delta.logprobs)
            reasons[delta.choice] = delta.finish_reason
        return True

    await answer.read(take)
    choices: list[dict[str, Any]] = []
    for number, parts in enumerate(texts):
        text = "".join(parts)
        if chat:
            message: dict[str, Any] = {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": [],
            }
            if calls[number]:
                message |= {"content": text or None, "tool_calls": whole_calls(calls[number])}
            if submission.thinking is not None:
                message |= _reasoning_fields("".join(thoughts[number]) or None)
            content: dict[str, Any] = {"message": message}
        else:
            content = {
                "text": answer.echo[number // submission.n] + text if answer.echo is not None else text
            }
        if logprobs[number] is None and submission.logprobs is not None:
            logprobs[number] = no_tokens(chat)
        choices.append(
            {
                "index": number,
                **content,
                "logprobs": logprobs[number],
                "finish_reason": reasons[number],
            }
        )
    return _encode(
        {
            "id": submission.id,
            "object": "chat.completion" if chat else "text_completion",
            "created": submission.created,
            "model": submission.model,
            "choices": choices,
            "usage": usage_object(answer.usage),
            "service_tier": submission.tier,
            "system_fingerprint": submission.fingerprint,
        }
    )


class JsonAnswer(Response):
    """A response with a whole answer and the rate limit headers. Sets its headers directly, because the
    framework's generic construction takes as long as sending.
    """

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]


class ChunkFormat:
    """Encodes one stream's server-sent events.

    Args:
        submission: has the fields that every chunk starts with.
        chat: the chat format, else the older completions format.
        include_usage: whether a last chunk has the usage; all others then have `"usage":null`.
        echo: per prompt, the text that the first chunk of each of its choices starts with.
        usage_so_far: returns the usage to show in every chunk; None: chunks show none.
    """

    def __init__(
        self,
        submission: Submission,
        chat: bool,
        include_usage: bool,
        echo: list[str] | None = None,
        usage_so_far: Callable[[], Usage] | None = None,
    ) -> None:
        head = {
            "id": submission.id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": submission.created,
            "model": submission.model,
            "service_tier": submission.tier,
            "system_fingerprint": submission.fingerprint,
        }
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._include_usage = include_usage
        self._usage_so_far = usage_so_far
        self._echo = echo
        self._n = submission.n
        self._has_parts = submission.tools is not None or submission.thinking is not None
        self._started = [False] * (submission.n * len(submission.submits))
        if chat:
            self._first, self._next, self._after = (
                b',"delta":{"role":"assistant","content":',
                b',"delta":{"content":',
                b"}",
            )
        else:
            self._first = self._next = b',"text":'
            self._after = b""

    def chunk(self, delta: AnswerDelta) -> bytes:
        """Returns the events of a delta, usually one; empty if there is nothing to send yet."""
        if self._has_parts:
            return self._in_parts(delta)
        text, number = delta.text, delta.choice
        started = self._started[number]
        if not text and started and delta.finish_reason is None and delta.logprobs is None:
            return b""
        if not started:
            self._started[number] = True
            if self._echo is not None:
                text = self._echo[number // self._n] + text
        content = (self._next if started else self._first, _encode(text), self._after)
        return self._event(number, b"".join(content), delta.logprobs, delta.finish_reason)

    def _in_parts(self, delta: AnswerDelta) -> bytes:
        """Returns an event for the delta's thinking, one for its text and one for each piece of a call."""
        number, reason = delta.choice, delta.finish_reason
        parts: list[dict[str, Any]] = [_reasoning_fields(delta.reasoning)] if delta.reasoning else []
        parts += [{"content": delta.text}] if delta.text else []
        parts += [{"tool_calls": [streamed_call(call)]} for call in delta.calls]
        if not self._started[number]:
            self._started[number] = True
            first = parts[0] if parts else {}
            parts[:1] = [{"role": "assistant", "content": None} | first]
        elif not parts and (reason is not None or delta.logprobs is not None):
            parts = [{}]
        last = len(parts) - 1
        scored = 1 if delta.reasoning and last > 0 else 0  # log probabilities are the answer's
        return b"".join(
            self._event(
                number,
                b',"delta":' + _encode(part),
                delta.logprobs if place == scored else None,
                reason if place == last else None,
            )
            for place, part in enumerate(parts)
        )

    def _event(
        self, number: int, content: bytes, logprobs: dict[str, Any] | None, reason: str | None
    ) -> bytes:
        """Returns one event. `content`: the fields with the text or calls, after a comma."""
        return b"".join(
            (
                self._head,
                b'{"index":%d' % number,
                content,
                b',"logprobs":',
                _encode(logprobs) if logprobs is not None else b"null",
                b',"finish_reason":',
                b'"%s"' % reason.encode() if reason is not None else b"null",
                self._tail if self._usage_so_far is None else _running_tail(self._usage_so_far()),
            )
        )

    def start(self) -> bytes:
        return b""

    async def end(self, usage: Usage) -> bytes:
        """Returns the event with the usage, where one was asked for, and the end of the stream."""
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + _encode(usage_object(usage)) + b"}\n\n" + DONE

    async def failed(self, error: Exception) -> bytes:
        return b"data: " + body_of(error) + b"\n\n"

    async def left(self) -> None:
        pass


def _running_tail(usage: Usage) -> bytes:
    """Returns the end of a chunk with the usage so far; cached tokens are left out, because they are known
    only at the end.
    """
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    counts = b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d' % (
        prompt,
        completion,
        prompt + completion,
    )
    return b'}],"usage":{' + counts + b"}}\n\n"
