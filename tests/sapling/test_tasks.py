"""The adapter tasks: splits, determinism, checkers, and that they load no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.sapling.tasks import TASKS, Example, Task

ROOT = Path(__file__).parents[2]
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS.keys())


def test_there_are_at_least_eight_tasks_with_valid_adapter_names() -> None:
    assert len(TASKS) >= 8
    assert all(re.fullmatch(r"[a-z0-9._-]{1,64}", name) and name == task.name for name, task in TASKS.items())


@each_task
def test_splits_are_disjoint(task: Task) -> None:
    heldout = {example.prompt for seed in range(3) for example in task.examples("heldout", 100, seed)}
    train = {example.prompt for seed in range(3) for example in task.examples("train", 500, seed)}
    assert not heldout & train


@each_task
def test_examples_depend_on_the_seed_alone(task: Task) -> None:
    assert task.examples("heldout", 20, seed=5) == task.examples("heldout", 20, seed=5)
    assert task.examples("heldout", 20, seed=5) != task.examples("heldout", 20, seed=6)


@each_task
def test_the_right_answer_passes_and_others_fail(task: Task) -> None:
    for example in task.examples("train", 30):
        assert task.check(example, example.answer)
        assert task.check(example, f" {example.answer}\n")
        assert not task.check(example, "")
        assert not task.check(example, "I do not know.")


@each_task
def test_showcase_prompts_are_given(task: Task) -> None:
    assert 2 <= len(task.showcase) <= 3
    assert task.description


def test_json_is_compared_by_value() -> None:
    example = Example("Tom is 7 and works as a baker.", json.dumps({"name": "Tom", "age": 7, "job": "baker"}))
    assert TASKS["to-json"].check(example, '{"age":7,"job":"baker","name":"Tom"}')
    assert not TASKS["to-json"].check(example, '{"age":"7","job":"baker","name":"Tom"}')


def test_unknown_splits_and_too_many_examples_are_refused() -> None:
    task = TASKS["secret-acme"]
    with pytest.raises(ValueError, match="no such split"):
        task.examples("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="too few"):
        task.examples("heldout", 5000)


def test_tasks_load_no_torch() -> None:
    code = "import sys, examples.sapling.tasks; print({'torch', 'transformers', 'peft'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
