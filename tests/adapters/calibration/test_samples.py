"""A tenant's JSONL: every mistake is named with line and field, every limit says what it left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.calibration.errors import SamplesInvalid
from adapters.calibration.samples import GENERAL_SET, SampleLimits, default_set, read_samples
from examples.sapling import write_calibration
from tests.adapters.calibration.sapling import BASE, copy_base
from tests.support.text_base import SPECIAL, write_base
from tokenization.codec import TextCodec

END = SPECIAL.index("<|end|>")
CHAT = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "world"}]}


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return TextCodec.load(write_base(tmp_path_factory.mktemp("base")))


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_both_forms_are_read_as_they_are_served(tmp_path: Path, codec: TextCodec) -> None:
    path = write(tmp_path / "s.jsonl", {"prompt": "one", "completion": " two"}, "", CHAT)
    found = read_samples(path, "tenant", codec, 500)
    raw, chat = found.samples
    assert codec.vocabulary.decode(raw.token_ids[raw.start :]).decode() == " two"
    assert raw.line == 1
    assert chat.line == 3
    assert codec.vocabulary.decode(chat.token_ids[chat.start : -1]).decode() == "world"
    assert chat.token_ids[-1] == END, "that the turn ends is scored too"
    assert found.num_lines == 2
    assert found.num_scored == raw.num_scored + chat.num_scored


def test_contents_may_come_in_parts_and_developers_are_the_system(tmp_path: Path, codec: TextCodec) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    lines = [
        {"messages": [{"role": role, "content": content}, *CHAT["messages"]]}
        for role, content in (("developer", parts), ("system", "a\nb"))
    ]
    one, other = read_samples(write(tmp_path / "s", *lines), "tenant", codec, 500).samples
    assert one.token_ids == other.token_ids


def said(*messages: object) -> dict[str, object]:
    return {"messages": list(messages)}


USER = {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        ("{", "", "is not valid JSON"),
        ('{"prompt": ' + "1" * 100_000 + "}", "", "has a number of more than 4300 digits"),
        ("[" * 100_000, "", "is not valid JSON"),
        ("[1]", "", "must be a JSON object"),
        ({"prompt": "a"}, "completion", "is missing"),
        ({"completion": "a"}, "prompt", "is missing"),
        ({"prompt": 3, "completion": "a"}, "prompt", "must be a text, not a number"),
        ({"prompt": "a", "completion": None}, "completion", "must be a text, not nothing"),
        ({"prompt": "a", "completion": ""}, "completion", "has no tokens"),
        ('{"prompt": "a", "completion": "\\ud800"}', "completion", "half of a surrogate pair"),
        ({"prompt": "a", "completion": "b", "tools": []}, "tools", "is not known"),
        ({"messages": [], "prompt": "a"}, "prompt", "is not known"),
        ({"messages": []}, "messages", "must be a list of messages"),
        ({"messages": "hi"}, "messages", "must be a list of messages"),
        (said(ASSISTANT), "messages", "must contain a message before the assistant's answer"),
        (said(USER), "messages[0].role", "must be 'assistant'"),
        (said({"role": "robot", "content": "a"}, ASSISTANT), "messages[0].role", "must be one of"),
        (said({"role": "user"}, ASSISTANT), "messages[0].content", "must be a text, not nothing"),
        (said({"role": "user", "content": {}}, ASSISTANT), "messages[0].content", "must be a text"),
        (
            said({"role": "user", "content": [{"type": "image_url"}]}, ASSISTANT),
            "messages[0].content[0]",
            "must be",
        ),
        (said(USER, ASSISTANT | {"tool_calls": []}), "messages[1].tool_calls", "is not supported: remove it"),
        (said(USER, "hi"), "messages[1]", "must be an object, not a text"),
        (said({"role": "user", "content": "a", "name": 3}, ASSISTANT), "messages[0].name", "must be a text"),
    ],
)
def test_what_is_wrong_is_named(
    line: object, field: str, reason: str, tmp_path: Path, codec: TextCodec
) -> None:
    path = write(tmp_path / "s.jsonl", CHAT, line)
    with pytest.raises(SamplesInvalid) as refusal:
        read_samples(path, "tenant", codec, 500)
    assert refusal.value.line == 2
    assert refusal.value.field == f"line 2 {field}".rstrip()
    assert reason in refusal.value.reason


def test_a_conversation_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    base = write_base(tmp_path / "base", "{{ raise_exception('no system turns here') }}")
    path = write(tmp_path / "s.jsonl", CHAT)
    with pytest.raises(SamplesInvalid, match="no system turns here"):
        read_samples(path, "tenant", TextCodec.load(base), 500)
    bare = TextCodec.load(write_base(tmp_path / "bare", None))
    with pytest.raises(SamplesInvalid, match="no chat template"):
        read_samples(path, "tenant", bare, 500)


def test_files_that_are_empty_or_too_large_are_refused(tmp_path: Path, codec: TextCodec) -> None:
    with pytest.raises(SamplesInvalid, match="holds no samples"):
        read_samples(write(tmp_path / "a", "", " "), "tenant", codec, 500)
    many = write(tmp_path / "b", *[CHAT] * 30)
    with pytest.raises(SamplesInvalid, match="line 11: the file has more than 10 lines"):
        read_samples(many, "tenant", codec, 500, SampleLimits(max_lines=10))
    wide = write(tmp_path / "c", CHAT, CHAT, {"prompt": "a" * 200, "completion": "b"}, CHAT)
    with pytest.raises(SamplesInvalid, match="line 3: is longer than 200 bytes"):
        read_samples(wide, "tenant", codec, 500, SampleLimits(max_line_bytes=200))
    with pytest.raises(SamplesInvalid, match="more than 100"):
        read_samples(many, "tenant", codec, 500, SampleLimits(max_bytes=100))


def test_an_error_in_a_line_that_is_not_scored_is_an_error(tmp_path: Path, codec: TextCodec) -> None:
    path = write(tmp_path / "s", CHAT, {"prompt": "a"}, CHAT, CHAT)
    with pytest.raises(SamplesInvalid, match="line 2 completion: is missing"):
        read_samples(path, "tenant", codec, 500, SampleLimits(max_samples=2))


def test_of_many_samples_evenly_spaced_ones_are_scored(tmp_path: Path, codec: TextCodec) -> None:
    path = write(tmp_path / "s", *[CHAT] * 100)
    found = read_samples(path, "tenant", codec, 500, SampleLimits(max_samples=4))
    assert [sample.line for sample in found.samples] == [1, 26, 51, 76]
    assert found.left_out[0].reason == "4 of the 100 lines are scored, evenly spaced"


def test_what_does_not_fit_is_cut_or_left_out_and_said(tmp_path: Path, codec: TextCodec) -> None:
    long = "xyz " * 200
    path = write(
        tmp_path / "s",
        {"prompt": "a", "completion": long},
        {"prompt": long, "completion": "a"},
        CHAT,
        CHAT,
    )
    found = read_samples(path, "tenant", codec, 60, SampleLimits(max_tokens=70))
    assert len(found.samples[0].token_ids) == 60
    assert [note.line for note in found.cut] == [1]
    assert [note.line for note in found.left_out] == [2, 4]
    assert "more than fit into 60" in found.left_out[0].reason
    assert "more than 70 tokens" in found.left_out[1].reason
    with pytest.raises(SamplesInvalid, match="no sample is left"):
        read_samples(path, "tenant", codec, 60, SampleLimits(max_tokens=1))


def test_every_base_has_a_default_set(tmp_path: Path, sapling_codec: TextCodec, codec: TextCodec) -> None:
    assert default_set(BASE) == (BASE / "calibration.jsonl", "base")
    assert default_set(copy_base(tmp_path / "base")) == (GENERAL_SET, "general")
    general = read_samples(GENERAL_SET, "general", sapling_codec, 1000)
    assert len(general.samples) >= 64
    assert not general.left_out
    # A base without a chat template is given what needs none.
    bare = TextCodec.load(write_base(tmp_path / "bare", None))
    fewer = read_samples(GENERAL_SET, "general", bare, 1000)
    assert 40 < len(fewer.samples) < len(general.samples)
    assert all("chat template" in note.reason for note in fewer.left_out)


def test_saplings_own_set_is_what_its_generator_writes() -> None:
    written = (BASE / "calibration.jsonl").read_text(encoding="utf-8").splitlines()
    assert written == write_calibration.lines()
