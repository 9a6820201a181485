"""Rows that think: the budget ends it, the grammar begins after it, and its tokens are counted."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import pytest

from engine.model.model import Model
from engine.protocol import Grammar, Reasoning
from engine.reasoning.constraint import EndMarker, has_bit
from engine.reasoning.splitter import Markers, ThinkingSplitter
from tests.engine.grammar.sapling import VOCABULARY, grammar_core, schema, small_model, submission, text_of
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.reasoning.markers import ids, reasoning
from tests.engine.runner.rig import Answer, Run, run

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["age"],
    "additionalProperties": False,
}


def split(answer: Answer, asked: Reasoning, is_exact: bool = False) -> tuple[bytes, bytes]:
    """Bytes: what nothing holds to a text may be none."""
    splitter = ThinkingSplitter(Markers(asked.start.encode(), asked.end.encode()), asked.is_open, is_exact)
    parts = [splitter.push(VOCABULARY.token_bytes[token_id]) for token_id in answer.token_ids]
    return b"".join(part.thinking for part in parts), b"".join(part.answer for part in parts)


def said_by(token_id: int) -> str:
    """Without the bytes of a character that other tokens end or begin."""
    return VOCABULARY.token_bytes[token_id].decode(errors="ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return small_model(tmp_path_factory.mktemp("small"))


def reasoning_tokens(found: Run, name: str) -> int:
    return found.usage[name].usage.reasoning_tokens


@pytest.mark.parametrize("budget", [0, 1, 7])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_thinking_ends_at_its_budget_and_the_answer_goes_on(
    model: Model, tmp_path: Path, budget: int, temperature: float
) -> None:
    asked = reasoning(budget)
    found = run(
        grammar_core(model, tmp_path),
        [
            submission(
                "r",
                None,
                reasoning=asked,
                temperature=temperature,
                max_tokens=40,
                n=2,
                ignore_eos=True,
                logprobs=1,
            )
        ],
    )
    end = list(asked.end_ids)
    for answer in found.answers.values():
        assert answer.token_ids[budget : budget + len(end)] == end
        assert len(answer.token_ids) == len(answer.logprobs) == 40
        assert answer.finish_reason == "length"
        assert split(answer, asked)[1]
    assert reasoning_tokens(found, "r") == 2 * (budget + len(end))
    assert found.usage["r"].usage.completion_tokens == 80


def test_a_budget_that_is_not_reached_changes_no_token(model: Model, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.8}
    free = run(grammar_core(model, tmp_path), [submission("r", None, **fields)])
    for asked in (reasoning(30), reasoning(None), reasoning(0, is_open=False)):
        held = run(grammar_core(model, tmp_path), [submission("r", None, reasoning=asked, **fields)])
        assert held.tokens() == free.tokens()
        assert reasoning_tokens(held, "r") == (30 if asked.is_open else 0)


def test_a_model_that_begins_to_think_by_itself_is_held_to_the_budget(model: Model, tmp_path: Path) -> None:
    """What the model says first is declared to be the marker."""
    fields: dict[str, Any] = {"max_tokens": 30, "ignore_eos": True, "temperature": 0.0}
    free = run(grammar_core(model, tmp_path), [submission("r", None, **fields)]).answers["r", 0].token_ids
    start = text_of(free[:3]).strip()
    asked = reasoning(4, is_open=False, start=start)
    found = run(grammar_core(model, tmp_path), [submission("r", None, reasoning=asked, **fields)])
    answer = found.answers["r", 0].token_ids
    assert answer[:7] == free[:7]
    assert answer[7 : 7 + len(asked.end_ids)] == list(asked.end_ids)
    assert reasoning_tokens(found, "r") == 7 + len(asked.end_ids)


def test_max_tokens_within_thinking_is_length(model: Model, tmp_path: Path) -> None:
    found = run(
        grammar_core(model, tmp_path),
        [
            submission("before", None, reasoning=reasoning(9), max_tokens=5, ignore_eos=True),
            submission("within", None, reasoning=reasoning(3), max_tokens=5, ignore_eos=True),
        ],
    )
    for name in ("before", "within"):
        assert found.answers[name, 0].finish_reason == "length"
        assert reasoning_tokens(found, name) == 5


def test_stops_hold_for_the_answer_alone(model: Model, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.5, "seed": 5}
    thought = run(grammar_core(model, tmp_path), [submission("r", None, reasoning=reasoning(12), **fields)])
    tokens = thought.answers["r", 0].token_ids
    end = 12 + len(reasoning(12).end_ids)
    stop_id = next(token_id for token_id in tokens[:12] if said_by(token_id))
    said = [place for place in range(end, len(tokens)) if said_by(tokens[place])]
    stop = said_by(tokens[said[4]])
    for name, given in (
        ("id", {"stop_token_ids": (stop_id,)}),
        ("text", {"stop": (said_by(stop_id), stop)}),
    ):
        found = run(
            grammar_core(model, tmp_path),
            [submission(name, None, reasoning=reasoning(12), **fields, **given)],
        )
        answer = found.answers[name, 0]
        assert answer.token_ids[:end] == tokens[:end]
        if name == "text":
            assert answer.finish_reason == "stop"
            assert len(answer.token_ids) <= said[4] + 1


def test_the_grammar_begins_after_thinking(model: Model, tmp_path: Path) -> None:
    asked = reasoning(6)
    found = run(
        grammar_core(model, tmp_path),
        [
            submission(f"r{seed}", schema(SCHEMA), reasoning=asked, seed=seed, temperature=temperature, n=2)
            for seed, temperature in enumerate((0.0, 0.7, 1.5))
        ],
    )
    assert len(found.answers) == 6
    for answer in found.answers.values():
        assert answer.finish_reason == "stop"
        thinking, text = split(answer, asked, is_exact=True)
        assert thinking
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(text))
    assert reasoning_tokens(found, "r0") == 2 * (6 + len(asked.end_ids))


def test_with_a_grammar_a_model_may_think_first_or_answer(model: Model, tmp_path: Path) -> None:
    """A bias makes one begin to think, which the grammar by itself would not allow."""
    asked = reasoning(5, is_open=False)
    found = run(
        grammar_core(model, tmp_path),
        [
            submission("answers", schema(SCHEMA), reasoning=asked, logit_bias={asked.start_ids[0]: -100.0}),
            submission("thinks", schema(SCHEMA), reasoning=asked, logit_bias={asked.start_ids[0]: 100.0}),
        ],
    )
    for name, num_thought in (("answers", 0), ("thinks", len(asked.start_ids) + 5 + len(asked.end_ids))):
        answer = found.answers[name, 0]
        assert answer.finish_reason == "stop"
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(split(answer, asked, is_exact=True)[1]))
        assert reasoning_tokens(found, name) == num_thought


def test_a_grammar_that_begins_like_the_marker_has_its_way(model: Model, tmp_path: Path) -> None:
    found = run(
        grammar_core(model, tmp_path),
        [submission("r", Grammar("regex", "<[ab]{3}>"), reasoning=reasoning(5, is_open=False))],
    )
    text = text_of(found.answers["r", 0].token_ids)
    assert text[0] == "<"
    assert set(text[1:4]) <= {"a", "b"}
    assert reasoning_tokens(found, "r") == 0


def test_no_answer_with_a_grammar_ends_within_thinking(model: Model, tmp_path: Path) -> None:
    """A bias towards the end of the sequence, and an end marker of one letter: nothing slips past the
    grammar.
    """
    eos = next(iter(model.config.eos_ids))
    asked = reasoning(20, end="e")
    found = run(
        grammar_core(model, tmp_path),
        [
            submission(f"r{seed}", schema(SCHEMA), reasoning=asked, seed=seed, logit_bias={eos: 100.0})
            for seed in range(8)
        ],
    )
    for answer in found.answers.values():
        assert answer.finish_reason == "stop"
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(split(answer, asked, is_exact=True)[1]))


def test_tokens_that_end_thinking_and_go_on_are_not_allowed() -> None:
    tokens = [b"</", b"think", b">", b">\n", b"</think>", b"</think>{", b"x>", b"nk>{", b""]
    marker = EndMarker(Reasoning("<think>", "</think>", (1,), (4,)), tokens)

    def forbidden(held: bytes) -> set[int]:
        mask = marker.mask(held, frozenset([8]), 1)
        return {token_id for token_id in range(len(tokens)) if not has_bit(mask, token_id)}

    assert forbidden(b"") == {5, 8}
    assert forbidden(b" </thi") == {5, 7, 8}
    assert forbidden(b"</think") == {3, 5, 8}


def test_a_preempted_row_keeps_its_place(model: Model, tmp_path: Path) -> None:
    def requests(n: int) -> list[Any]:
        return [
            submission(
                f"r{seed}",
                schema(SCHEMA) if seed % 2 else None,
                reasoning=reasoning(20 + 7 * seed),
                seed=seed,
                max_tokens=110,
            )
            for seed in range(n)
        ]

    calm = run(grammar_core(model, tmp_path), requests(6))
    tight = run(grammar_core(model, tmp_path, num_blocks=10, max_rows=6, context_length=128), requests(6))
    assert sum(event.preemptions for event in tight.usage.values()) > 0
    assert tight.tokens() == calm.tokens()
    for name, event in calm.usage.items():
        assert event.usage.reasoning_tokens == tight.usage[name].usage.reasoning_tokens > 0


def test_rows_that_do_not_think_draw_what_they_draw_alone(model: Model, tmp_path: Path) -> None:
    free = [submission(f"f{seed}", None, seed=seed, max_tokens=40, top_p=0.9) for seed in range(4)]
    thinking = [
        submission(f"t{seed}", None, seed=seed, max_tokens=40, reasoning=reasoning(8)) for seed in range(4)
    ]
    mixed = [request for pair in zip(thinking, free, strict=True) for request in pair]
    alone = run(grammar_core(model, tmp_path), free)
    together = run(grammar_core(model, tmp_path), mixed)
    assert {key: together.tokens()[key] for key in alone.tokens()} == alone.tokens()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (Reasoning("", "</think>", (1,), (2,)), "reasoning.start"),
        (Reasoning("<think>", "x" * 65, (1,), (2,)), "reasoning.end"),
        (Reasoning(" <think>", "</think>", ids("<think>"), ids("</think>")), "white space"),
        (reasoning(-1), "reasoning.budget"),
        (Reasoning("<think>", "</think>", ids("<think>"), (10**6,)), "token ids from 0"),
        (Reasoning("<think>", "</think>", (), ids("</think>")), "reasoning.start_ids"),
        (Reasoning("<think>", "</think>", ids("<think>"), ids("</think>.")), "reasoning.end_ids"),
        (Reasoning("<think>", "</think>", ids("<think>"), ids("</think>") * 20), "at most 64 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_ended_is_rejected(model: Model, tmp_path: Path, asked: Reasoning, named: str) -> None:
    rejected = grammar_core(model, tmp_path).submit(submission("r", None, reasoning=asked))
    assert rejected is not None
    assert rejected.code == "invalid"
    assert named in rejected.message


def test_special_tokens_may_be_markers(model: Model, tmp_path: Path) -> None:
    """They have no text of their own."""
    start, end = sorted(VOCABULARY.special_ids - set(model.config.eos_ids))[-2:]
    asked = Reasoning("[THINK]", "[/THINK]", (start,), (end,), {start: "[THINK]", end: "[/THINK]"}, True, 3)
    found = run(
        grammar_core(model, tmp_path), [submission("r", schema(SCHEMA), reasoning=asked, max_tokens=60)]
    )
    answer = found.answers["r", 0]
    assert answer.token_ids[3] == end
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(text_of(answer.token_ids[4:])))


def test_drafts_within_thinking_and_across_its_end_change_nothing(model: Model, tmp_path: Path) -> None:
    open_, shut = reasoning(4), reasoning(5, is_open=False)
    likely, unlikely = {shut.start_ids[0]: 100.0}, {shut.start_ids[0]: -100.0}
    requests = [
        submission(
            "free", None, reasoning=open_, max_tokens=24, ignore_eos=True, temperature=0.0, logprobs=1
        ),
        submission("short", None, reasoning=reasoning(0), max_tokens=12, ignore_eos=True),
        submission("held", schema(SCHEMA), reasoning=open_, seed=4, n=2),
        submission("unbounded", schema(SCHEMA), reasoning=reasoning(None), max_tokens=12),
        submission("thinks", schema(SCHEMA), reasoning=shut, logit_bias=likely),
        submission("begins", None, reasoning=shut, max_tokens=20, ignore_eos=True, logit_bias=likely),
        submission("answers", schema(SCHEMA), reasoning=shut, logit_bias=unlikely),
    ]
    without = run(grammar_core(model, tmp_path), requests)
    for skill in (1.0, 0.8):
        drafter = GuessingDrafter(
            lambda request: without.answers[request.request_id, request.index].token_ids,
            Random(5),
            vocab_size=model.config.vocab_size,
            skill=skill,
        )
        found = run(grammar_core(model, tmp_path, max_rows=72, drafter=drafter), requests)
        assert found.answers == without.answers
        assert all(
            reasoning_tokens(found, one.request_id) == reasoning_tokens(without, one.request_id)
            for one in requests
        )
        assert drafter.num_accepted > 60
        assert skill < 1 or drafter.num_accepted > drafter.num_drafts - 40, "beyond an answer's end alone"
