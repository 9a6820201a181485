"""Reads a tenant's JSONL, or a default set, as token ids: a prompt and the answer to score.

Every line is one JSON object, in one of two forms:

    {"prompt": "...", "completion": "..."}
    {"messages": [{"role": "user", "content": "..."}, ..., {"role": "assistant", "content": "..."}]}

The completion, or the assistant's last turn with its end token, is scored. A field that would change the
model's input and is not supported (tools, images) is rejected by name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from adapters.calibration.errors import SamplesInvalid
from tokenization.chat_template import TemplateRefusal
from tokenization.codec import TextCodec

Origin = Literal["tenant", "base", "general"]
"""Origin of the samples: the tenant's own file, the base's set, or the general set shipped with Rootstock."""

BASE_SET = "calibration.jsonl"
"""Name of the base's own set, beside its weights."""
GENERAL_SET = Path(__file__).with_name("default.jsonl")
ROLES = ("system", "developer", "user", "assistant")
_IGNORED = {"id", "metadata"}
_MESSAGE_FIELDS = {"role", "content", "name", "weight"}


@dataclass(frozen=True, slots=True)
class SampleLimits:
    """Limits on the samples that are read and scored."""

    max_bytes: int = 16 << 20
    """Bytes of the file; a larger one is rejected."""
    max_lines: int = 10_000
    """Lines of the file; a longer one is rejected."""
    max_line_bytes: int = 1 << 20
    """Bytes of one line: parsed JSON may take twenty times as much memory."""
    max_samples: int = 256
    """Scored samples; of a longer file, evenly spaced lines are chosen."""
    max_sample_tokens: int = 4096
    """Prompt and answer of one sample: the answer is cut off at the end, or the sample is left out."""
    max_tokens: int = 131_072
    """Tokens of all samples together: later samples are left out."""


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One text, whose tokens from `start` on are scored."""

    line: int
    """Line number in the file, from 1."""
    token_ids: list[int]
    start: int

    @property
    def num_scored(self) -> int:
        return len(self.token_ids) - self.start


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """A line that is not scored, or whose answer is only scored in part."""

    line: int
    reason: str


class SampleSet(msgspec.Struct, frozen=True):
    """The samples to score, in the file's order."""

    origin: Origin
    samples: list[Sample]
    num_lines: int
    """Lines with a sample, in the whole file."""
    cut: list[LeftOut] = []
    left_out: list[LeftOut] = []

    @property
    def num_tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)

    @property
    def num_scored(self) -> int:
        return sum(sample.num_scored for sample in self.samples)


def default_set(base_dir: Path) -> tuple[Path, Origin]:
    """Returns the set to score when a tenant gives none: the base's own, else the general one."""
    own = base_dir / BASE_SET
    return (own, "base") if own.is_file() else (GENERAL_SET, "general")


def read_samples(
    path: Path, origin: Origin, codec: TextCodec, context_length: int, limits: SampleLimits | None = None
) -> SampleSet:
    """Reads, checks and encodes every line that is scored. Slow: not for an event loop.

    Args:
        context_length: tokens that the engine accepts for a prompt.

    Raises:
        SamplesInvalid: naming line and field. Lines of a default set are left out instead.
    """
    limits = limits or SampleLimits()
    lines = list(_lines(path, limits))
    if not lines:
        raise SamplesInvalid(0, "", "the file holds no samples")
    chosen = _evenly(lines, limits.max_samples)
    if origin == "tenant" and len(chosen) < len(lines):
        for number, text in lines:  # lines that are not scored must be valid too
            _conversation(number, _object(number, text))
    longest = min(context_length, limits.max_sample_tokens)
    samples: list[Sample] = []
    cut: list[LeftOut] = []
    left_out: list[LeftOut] = []
    if len(chosen) < len(lines):
        reason = f"{len(chosen)} of the {len(lines)} lines are scored, evenly spaced"
        left_out.append(LeftOut(0, reason))
    num_tokens = 0
    for number, text in chosen:
        try:
            token_ids, start = _encoded(number, _object(number, text), codec)
        except SamplesInvalid as error:
            if origin == "tenant":
                raise
            left_out.append(LeftOut(number, error.reason))
            continue
        if start >= longest:
            left_out.append(LeftOut(number, f"the prompt has {start} tokens, more than fit into {longest}"))
            continue
        if len(token_ids) > longest:
            cut.append(LeftOut(number, f"{len(token_ids)} tokens, of which {longest} are scored or read"))
            token_ids = token_ids[:longest]
        if num_tokens + len(token_ids) > limits.max_tokens:
            left_out.append(
                LeftOut(number, f"all samples together have more than {limits.max_tokens} tokens")
            )
            continue
        num_tokens += len(token_ids)
        samples.append(Sample(number, token_ids, start))
    if not samples:
        raise SamplesInvalid(0, "", f"no sample is left to score: {left_out[-1].reason}")
    return SampleSet(origin, samples, len(lines), cut, left_out)


def _lines(path: Path, limits: SampleLimits) -> Iterator[tuple[int, bytes]]:
    """Yields (number, text) of lines that are not blank."""
    size = path.stat().st_size
    if size > limits.max_bytes:
        raise SamplesInvalid(0, "", f"the file has {size} bytes, more than {limits.max_bytes}")
    count = 0
    with path.open("rb") as file:
        for number in itertools.count(1):
            text = file.readline(limits.max_line_bytes + 1)
            if not text:
                return
            if len(text) > limits.max_line_bytes:
                raise SamplesInvalid(number, "", f"is longer than {limits.max_line_bytes} bytes")
            if number == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if not text.strip():
                continue
            count += 1
            if count > limits.max_lines:
                raise SamplesInvalid(number, "", f"the file has more than {limits.max_lines} lines")
            yield number, text


def _evenly(lines: list[tuple[int, bytes]], count: int) -> list[tuple[int, bytes]]:
    if len(lines) <= count:
        return lines
    return [lines[place * len(lines) // count] for place in range(count)]


def _object(number: int, text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SamplesInvalid(number, "", f"is not valid JSON: {error}") from None
    except ValueError:  # Python's limit on converting digits
        raise SamplesInvalid(number, "", "has a number of more than 4300 digits") from None
    if not isinstance(value, dict):
        raise SamplesInvalid(number, "", "must be a JSON object")
    return value


def _encoded(number: int, value: dict[str, Any], codec: TextCodec) -> tuple[list[int], int]:
    """Returns (all token ids, number of the prompt's ids)."""
    found = _conversation(number, value)
    if isinstance(found, tuple):
        prompt_ids, answer_ids = codec.encode_completion(*found)
        asked, answered = "prompt", "completion"
    else:
        if codec.template is None:
            raise SamplesInvalid(
                number, "messages", "the base has no chat template: give prompt and completion"
            )
        try:
            prompt_ids, answer_ids = codec.encode_conversation(found)
        except TemplateRefusal as error:
            raise SamplesInvalid(
                number, "messages", f"the model's chat template rejects them: {error}"
            ) from None
        asked, answered = "messages", f"messages[{len(found) - 1}].content"
    if not prompt_ids:
        raise SamplesInvalid(number, asked, "has no tokens")
    if not answer_ids:
        raise SamplesInvalid(number, answered, "has no tokens, so there is nothing to score")
    return prompt_ids + answer_ids, len(prompt_ids)


def _conversation(number: int, value: dict[str, Any]) -> tuple[str, str] | list[dict[str, str]]:
    """Returns (prompt, completion), or the messages in the form of a template's input."""
    known = {"messages"} if "messages" in value else {"prompt", "completion"}
    for field in value:
        if field not in known | _IGNORED:
            raise SamplesInvalid(
                number, field, "is not known: a sample has prompt and completion, or messages"
            )
    if "messages" in value:
        return _messages(number, value["messages"])
    return _text(number, "prompt", value), _text(number, "completion", value)


def _text(number: int, field: str, value: dict[str, Any]) -> str:
    if field not in value:
        raise SamplesInvalid(number, field, "is missing")
    text = value[field]
    if not isinstance(text, str):
        raise SamplesInvalid(number, field, f"must be a text, not {_kind(text)}")
    _check_encodable(number, field, text)
    return text


def _messages(number: int, value: Any) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise SamplesInvalid(number, "messages", "must be a list of messages")
    messages = [_message(number, f"messages[{place}]", message) for place, message in enumerate(value)]
    last = f"messages[{len(messages) - 1}]"
    if messages[-1]["role"] != "assistant":
        raise SamplesInvalid(number, f"{last}.role", "must be 'assistant': the last turn is scored")
    if len(messages) == 1:
        raise SamplesInvalid(number, "messages", "must contain a message before the assistant's answer")
    return messages


def _message(number: int, where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SamplesInvalid(number, where, f"must be an object, not {_kind(value)}")
    for field in value:
        if field not in _MESSAGE_FIELDS:
            raise SamplesInvalid(number, f"{where}.{field}", "is not supported: remove it")
    role = value.get("role")
    if role not in ROLES:
        raise SamplesInvalid(number, f"{where}.role", f"must be one of {', '.join(ROLES)}")
    content = value.get("content")
    if isinstance(content, list):
        content = "\n".join(
            _part(number, f"{where}.content[{place}]", part) for place, part in enumerate(content)
        )
    if not isinstance(content, str):
        raise SamplesInvalid(number, f"{where}.content", f"must be a text, not {_kind(content)}")
    _check_encodable(number, f"{where}.content", content)
    message = {"role": "system" if role == "developer" else str(role), "content": content}
    if value.get("name") is not None:
        message["name"] = _text(number, f"{where}.name", {f"{where}.name": value["name"]})
    return message


def _part(number: int, where: str, value: Any) -> str:
    """Returns a text part's text, in the form of the API's content parts."""
    if not isinstance(value, dict) or value.get("type") != "text" or not isinstance(value.get("text"), str):
        raise SamplesInvalid(number, where, 'must be {"type": "text", "text": ...}')
    return str(value["text"])


def _check_encodable(number: int, field: str, text: str) -> None:
    """Rejects half a surrogate pair, which JSON can express but UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise SamplesInvalid(number, field, "holds half of a surrogate pair") from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), "a text")
