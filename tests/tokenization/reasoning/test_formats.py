"""What a chat template says about thinking: its markers, its switch, and where a prompt leaves the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.protocol import Reasoning, SamplingParams, Submit
from engine.scheduling.validation import EngineLimits, validate_submit
from tests.support.reasoning_templates import DEEPSEEK_R1, DEEPSEEK_V31, MAGISTRAL, QWEN3
from tests.support.text_base import TEMPLATE, TOOL_TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.reasoning.formats import FORMATS, Opening, ReasoningFormat, detect
from tokenization.tools.formats import ToolFormat

HELLO = [{"role": "user", "content": "Hello"}]
SPECIAL = ("[THINK]", "[/THINK]")


def loaded(folder: Path, template: str) -> tuple[TextCodec, ReasoningFormat]:
    codec = TextCodec.load(write_base(folder, template, SPECIAL if template == MAGISTRAL else ()))
    format = ReasoningFormat.of(codec)
    assert format is not None
    return codec, format


async def prompt(codec: TextCodec, options: dict[str, Any] | None = None) -> list[int]:
    return await codec.encode_chat(codec.render_chat(HELLO, options=options))


@pytest.mark.parametrize(
    ("template", "name", "switch", "openings"),
    [
        (QWEN3, "think", "enable_thinking", (Opening.FREE, Opening.FREE, Opening.ANSWERING)),
        (DEEPSEEK_R1, "think", None, (Opening.THINKING,) * 3),
        (
            DEEPSEEK_V31,
            "think",
            "thinking",
            (Opening.ANSWERING, Opening.THINKING, Opening.ANSWERING),
        ),
        (MAGISTRAL, "mistral", None, (Opening.FREE,) * 3),
    ],
    ids=["qwen3", "deepseek_r1", "deepseek_v31", "magistral"],
)
async def test_templates(
    tmp_path: Path,
    template: str,
    name: str,
    switch: str | None,
    openings: tuple[Opening, Opening, Opening],
) -> None:
    codec, format = loaded(tmp_path, template)
    assert (format.name, format.switch) == (name, switch)
    options: list[dict[str, Any] | None] = [None, *({switch or "x": state} for state in (True, False))]
    prompts = [await prompt(codec, option) for option in options]
    assert tuple(format.opening(prompt_ids) for prompt_ids in prompts) == openings
    for prompt_ids, opening in zip(prompts, openings, strict=True):
        closed = prompt_ids + codec.encode_part(format.closing(opening))
        assert format.opening(closed) is Opening.ANSWERING
        reasoning = format.reasoning(opening, 7)
        if opening is Opening.ANSWERING:
            assert closed == prompt_ids
            assert reasoning is None
        else:
            assert reasoning is not None
            assert (reasoning.is_open, reasoning.budget) == (opening is Opening.THINKING, 7)


def test_markers_may_be_special_tokens(tmp_path: Path) -> None:
    codec, format = loaded(tmp_path, MAGISTRAL)
    start, end = (codec.encode_part(marker)[0] for marker in SPECIAL)
    assert format.special == {start: "[THINK]", end: "[/THINK]"}
    assert format.start_ids == (start,)
    assert format.end_ids[-1] == end
    assert format.vocabulary.decode([start, *codec.encode_part("so"), end]) == b"[THINK]so[/THINK]"
    assert codec.vocabulary.decode([start, end]) == b""


def test_markers_may_be_text(tmp_path: Path) -> None:
    codec, format = loaded(tmp_path, QWEN3)
    assert format.special == {}
    assert len(format.end_ids) > 2
    assert codec.vocabulary.decode(format.end_ids) == b"\n</think>"
    assert codec.vocabulary.decode(format.start_ids) == b"<think>"


def test_a_user_who_types_markers_opens_nothing(tmp_path: Path) -> None:
    codec, format = loaded(tmp_path, MAGISTRAL)
    chat = codec.render_chat([{"role": "user", "content": "[THINK]"}])
    token_ids = codec._encode_chat(chat)
    assert sum(token_id in format.special for token_id in token_ids) == 2, "those of the template's own text"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (TEMPLATE, None),
        (TOOL_TEMPLATE, None),
        ("{{ messages }}<seed:think></seed:think>", "seed_oss"),
        ("<|START_THINKING|><|END_THINKING|>", "cohere"),
        ("◁think▷◁/think▷", "kimi"),
    ],
)
def test_detection(template: str, name: str | None) -> None:
    assert detect(template) == name


def test_a_setting_comes_before_the_template(tmp_path: Path) -> None:
    codec = TextCodec.load(write_base(tmp_path, TEMPLATE))
    assert ReasoningFormat.of(codec) is None
    for name, (start, end) in FORMATS.items():
        format = ReasoningFormat.of(codec, name)
        assert format is not None
        assert (format.name, format.start, format.end, format.switch) == (name, start, end, None)
    thinks = TextCodec.load(write_base(tmp_path / "thinks", QWEN3))
    assert ReasoningFormat.of(thinks, "none") is None
    raw = TextCodec.load(write_base(tmp_path / "raw", None))
    assert ReasoningFormat.of(raw) is None
    with pytest.raises(ValueError, match="no chat template"):
        ReasoningFormat.of(raw, "think")


def test_answers_that_call_tools_have_both_formats_bytes(tmp_path: Path) -> None:
    special = (*SPECIAL, "<tool_call>", "</tool_call>")
    codec = TextCodec.load(write_base(tmp_path, TOOL_TEMPLATE, special))
    tools = ToolFormat.of(codec)
    format = ReasoningFormat.of(codec, "mistral", tools)
    assert format is not None
    ids = [codec.encode_part(token)[0] for token in special]
    assert format.tool_vocabulary.decode(ids) == "".join(special).encode()
    assert format.vocabulary.decode(ids) == "".join(SPECIAL).encode()


def test_operators_set_single_efforts(tmp_path: Path) -> None:
    _, format = loaded(tmp_path, QWEN3)
    offered = OfferedReasoning.of(format, {"low": 64, "high": None})
    assert offered.budgets == {"minimal": 256, "low": 64, "medium": 4096, "high": None, "xhigh": None}


def test_the_engine_takes_what_the_formats_say(tmp_path: Path) -> None:
    for name in FORMATS:
        codec = TextCodec.load(write_base(tmp_path / name, TEMPLATE, FORMATS[name]))
        format = ReasoningFormat.of(codec, name)
        assert format is not None
        reasoning = format.reasoning(Opening.FREE, 3)
        assert isinstance(reasoning, Reasoning)
        token_bytes = codec.vocabulary.token_bytes
        submit = Submit("r", "t", [5], SamplingParams(max_tokens=3), reasoning=reasoning)
        assert validate_submit(submit, EngineLimits(64, len(token_bytes)), 1000, token_bytes) is None
