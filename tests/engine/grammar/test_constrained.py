"""Rows that are held to a grammar: what they generate is of it, whatever else the row or its batch does."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.core import EngineCore
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.store import GrammarKey
from engine.model.model import Model
from engine.protocol import Grammar, Rejected
from engine.scheduling.validation import MAX_GRAMMAR_BYTES
from tests.engine.grammar.sapling import grammar_core, schema, small_model, submission, text_of
from tests.engine.runner.rig import Answer, make_core, run

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bb", "größe"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
LIST = {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return small_model(tmp_path_factory.mktemp("small"))


def rejections(core: EngineCore, num: int) -> list[Rejected]:
    found: list[Rejected] = []
    deadline = time.monotonic() + 30
    while len(found) < num:
        found += core.step().rejected
        assert time.monotonic() < deadline, found
    return found


def valid(answer: Answer, document: Any = PERSON) -> bool:
    assert answer.finish_reason == "stop", answer
    return bool(jsonschema_rs.is_valid(document, json.loads(text_of(answer.token_ids))))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 2.0])
def test_every_choice_is_of_the_schema(model: Model, tmp_path: Path, temperature: float) -> None:
    found = run(
        grammar_core(model, tmp_path),
        [
            submission(f"r{seed}", schema(PERSON), temperature=temperature, seed=seed, n=2, logprobs=2)
            for seed in range(6)
        ],
    )
    assert len(found.answers) == 12
    assert all(valid(answer) for answer in found.answers.values())
    assert all(len(answer.logprobs) == len(answer.token_ids) for answer in found.answers.values())
    texts = {text_of(answer.token_ids) for answer in found.answers.values()}
    assert len(texts) > 3 or temperature == 0


def test_rows_without_a_grammar_draw_what_they_draw_alone(model: Model, tmp_path: Path) -> None:
    free = [submission(f"f{seed}", None, seed=seed, max_tokens=40, top_p=0.9) for seed in range(4)]
    held = [submission(f"h{seed}", schema(PERSON), seed=seed) for seed in range(4)]
    mixed = [request for pair in zip(held, free, strict=True) for request in pair]
    alone = run(grammar_core(model, tmp_path), free)
    together = run(grammar_core(model, tmp_path), mixed)
    assert {key: together.tokens()[key] for key in alone.tokens()} == alone.tokens()
    assert all(valid(together.answers[request.request_id, 0]) for request in held)


def test_a_preempted_row_goes_on_in_its_grammar(model: Model, tmp_path: Path) -> None:
    requests = [submission(f"r{seed}", schema(PERSON), seed=seed) for seed in range(6)]
    calm = run(grammar_core(model, tmp_path), requests)
    tight = run(
        grammar_core(model, tmp_path, num_blocks=10, max_rows=6, context_length=128),
        [submission(f"r{seed}", schema(PERSON), seed=seed, max_tokens=110) for seed in range(6)],
    )
    assert sum(event.preemptions for event in tight.usage.values()) > 0
    assert tight.tokens() == calm.tokens()


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {7: 100.0, 300: -100.0}},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repetition_penalty": 1.5},
        {"top_k": 3, "top_p": 0.5, "min_p": 0.2},
        {"top_k": 1},
        {"top_p": 1e-6},
    ],
    ids=str,
)
def test_shaping_and_truncation_come_beside_the_mask(
    model: Model, tmp_path: Path, fields: dict[str, Any]
) -> None:
    found = run(
        grammar_core(model, tmp_path),
        [submission(f"r{seed}", schema(LIST), seed=seed, **fields) for seed in range(4)],
    )
    assert all(valid(answer, LIST) for answer in found.answers.values())


def test_stop_strings_and_limits_end_it_early(model: Model, tmp_path: Path) -> None:
    found = run(
        grammar_core(model, tmp_path),
        [
            submission("stopped", schema(LIST), stop=("e",)),
            submission("short", schema(PERSON), max_tokens=3),
        ],
    )
    assert found.answers["stopped", 0].finish_reason == "stop"
    assert text_of(found.answers["stopped", 0].token_ids).endswith("e")
    assert found.answers["short", 0].finish_reason == "length"
    assert len(found.answers["short", 0].token_ids) == 3


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "[a-c]{4}-[0-9]{2}"), r"[a-c]{4}-[0-9]{2}"),
        (Grammar("choice", json.dumps(["red", "green", 'a "quoted" \\ one', "größe"])), None),
        (
            Grammar("lark", 'start: "SELECT " NAME " FROM " NAME\nNAME: /[a-z]{1,8}/'),
            r"SELECT [a-z]{1,8} FROM [a-z]{1,8}",
        ),
    ],
    ids=["regex", "choice", "lark"],
)
def test_other_kinds(model: Model, tmp_path: Path, grammar: Grammar, pattern: str | None) -> None:
    found = run(
        grammar_core(model, tmp_path), [submission(f"r{seed}", grammar, seed=seed) for seed in range(5)]
    )
    for answer in found.answers.values():
        text = text_of(answer.token_ids)
        assert answer.finish_reason == "stop"
        assert text in json.loads(grammar.source) if pattern is None else re.fullmatch(pattern, text)


def test_a_grammar_that_does_not_compile_is_rejected(model: Model, tmp_path: Path) -> None:
    core = grammar_core(model, tmp_path)
    for number, grammar in enumerate(
        [
            Grammar("regex", "(a"),
            Grammar("json_schema", "{"),
            Grammar(
                "json_schema", json.dumps({"type": "object", "unevaluatedProperties": {"$ref": "#/nowhere"}})
            ),
            Grammar("lark", "begin: /a/"),
            Grammar("choice", "[]"),
        ]
    ):
        assert core.submit(submission(f"r{number}", grammar)) is None
    rejected = rejections(core, 5)
    assert {one.code for one in rejected} == {"invalid"}
    assert all(one.message.startswith("grammar: ") for one in rejected)
    core.check_integrity()
    assert not core.has_work


def test_an_aborted_request_whose_grammar_is_being_compiled_ends_at_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = grammar_core(model, tmp_path)
    assert core.grammars is not None
    started: list[GrammarKey] = []
    monkeypatch.setattr(GrammarCompiler, "start", lambda _, key: started.append(key))
    for request_id in ("r", "other"):
        assert core.submit(submission(request_id, schema(PERSON))) is None
    core.abort("r")
    assert core.has_work
    [(_, finished)] = core.step().finished
    assert (finished.request_id, finished.finish_reason) == ("r", "abort")
    assert finished.usage.completion_tokens == 0
    assert not core.has_work
    assert len(core.grammars) == 1, "another request waits for the same grammar"
    monkeypatch.undo()
    (key,) = started
    core.grammars._compiler.start(key)
    ended: list[Any] = []
    while not ended:
        ended += core.step().finished
    assert [one.request_id for _, one in ended] == ["other"]


@pytest.mark.parametrize(
    ("grammar", "fields", "problem"),
    [
        (schema(LIST), {"min_tokens": 2}, "min_tokens cannot be combined with a grammar"),
        (schema(LIST), {"ignore_eos": True}, "ignore_eos cannot be combined with a grammar"),
        (schema(LIST), {"temperature": -1.0}, "temperature must be a number of at least 0"),
        (Grammar("regex", "a" * (MAX_GRAMMAR_BYTES + 1)), {}, "grammar must have at most"),
    ],
    ids=["min_tokens", "ignore_eos", "temperature", "size"],
)
def test_an_invalid_request_is_rejected_before_its_grammar_is_compiled(
    model: Model, tmp_path: Path, grammar: Grammar, fields: dict[str, Any], problem: str
) -> None:
    core = grammar_core(model, tmp_path)
    rejected = core.submit(submission("r", grammar, **fields))
    assert rejected is not None
    assert rejected.code == "invalid"
    assert problem in rejected.message
    assert core.grammars is not None
    assert not len(core.grammars), "its grammar is being compiled"
    assert core.stats.rejected == 1
    assert not core.has_work


def test_an_engine_without_a_compiler_rejects_grammars_and_counts_them(model: Model, tmp_path: Path) -> None:
    core = make_core(model, tmp_path)
    rejected = core.submit(submission("r", schema(LIST)))
    assert rejected is not None
    assert (rejected.code, rejected.message) == ("invalid", "this engine does not support grammars")
    assert core.stats.rejected == 1
    assert not core.has_work
