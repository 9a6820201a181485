"""Answers as OpenAI's JSON: whole ones, and the chunks of a stream.

Owns field names and their order. A stream's chunks share everything but the text, so their beginning and end
are encoded once per choice: what is left per wakeup is one string. Refuses to know where text comes from and
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from api.openai.answer import Answer, AnswerDelta
from api.openai.logprobs import joined, no_tokens
from api.openai.submission import Submission
from engine.protocol import Usage

_encode = msgspec.json.Encoder().encode


def usage_object(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def whole(answer: Answer, chat: bool) -> bytes:
    """Read the answer to its end and encode it as one object. Raises what `Answer.read` does."""
    submission = answer.submission
    num_choices = submission.n * len(submission.submits)
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    logprobs: list[dict[str, Any] | None] = [None] * num_choices
    reasons: list[str | None] = [None] * num_choices

    def take(pieces: list[AnswerDelta]) -> bool:
        for piece in pieces:
            texts[piece.choice].append(piece.text)
            if piece.logprobs is not None:
                logprobs[piece.choice] = joined(logprobs[piece.choice], piece.logprobs)
            reasons[piece.choice] = piece.finish_reason
        return True

    await answer.read(take)
    choices: list[dict[str, Any]] = []
    for number, pieces_of_text in enumerate(texts):
        text = "".join(pieces_of_text)
        if chat:
            content: dict[str, Any] = {
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": []}
            }
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
    """A whole answer, and what is said of the caller's limits. Its head is this alone: the framework's own
    making of one, for which there may be anything, takes as long as sending it.
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
        submission: what every chunk is headed with.
        chat: the chat form, else the older completions form.
        include_usage: the client asked for a last chunk with the usage; every other then says `"usage":null`.
        echo: per prompt, what the first chunk of each of its choices begins with.
        usage_so_far: returns the usage that every chunk is to show; None: chunks show none.
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
        self._usage_so_far = usage_so_far
        self._echo = echo
        self._n = submission.n
        self._begun = [False] * (submission.n * len(submission.submits))
        if chat:
            self._first, self._next, self._after = (
                b',"delta":{"role":"assistant","content":',
                b',"delta":{"content":',
                b"}",
            )
        else:
            self._first = self._next = b',"text":'
            self._after = b""

    def chunk(self, piece: AnswerDelta) -> bytes:
        """One event for what a choice gained; empty when there is nothing to tell yet."""
        text, number = piece.text, piece.choice
        begun = self._begun[number]
        if not text and begun and piece.finish_reason is None and piece.logprobs is None:
            return b""
        if not begun:
            self._begun[number] = True
            if self._echo is not None:
                text = self._echo[number // self._n] + text
        return b"".join(
            (
                self._head,
                b'{"index":%d' % number,
                self._next if begun else self._first,
                _encode(text),
                self._after,
                b',"logprobs":',
                _encode(piece.logprobs) if piece.logprobs is not None else b"null",
                b',"finish_reason":',
                b'"%s"' % piece.finish_reason.encode() if piece.finish_reason is not None else b"null",
                self._tail if self._usage_so_far is None else _running_tail(self._usage_so_far()),
            )
        )

    def usage(self, usage: Usage) -> bytes:
        """The event after the last choice's last."""
        return self._head + b'],"usage":' + _encode(usage_object(usage)) + b"}\n\n"


def _running_tail(usage: Usage) -> bytes:
    """The end of a chunk with the usage so far: counts alone, since what was cached is known at the end."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    counts = b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d' % (
        prompt,
        completion,
        prompt + completion,
    )
    return b'}],"usage":{' + counts + b"}}\n\n"
