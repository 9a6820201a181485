"""The generated text: determinism, structure, and that it keeps the held-out prompts' answers to itself."""

from __future__ import annotations

from random import Random

import pytest

from examples.sapling import BASE, corpus, skills, tokens
from examples.sapling.tasks import TASKS, Example


def test_documents_depend_on_the_seed_alone() -> None:
    first = list(corpus.documents(3, 200))
    assert first == list(corpus.documents(3, 200))
    assert first != list(corpus.documents(4, 200))


def test_every_document_is_a_text_or_a_conversation() -> None:
    for document in corpus.documents(0, 2000):
        roles = [turn.role for turn in document]
        if roles[0] == "text":
            assert len(roles) == 1
            continue
        talk = roles[1:] if roles[0] == "system" else roles
        assert talk == ["user", "assistant"] * (len(talk) // 2)
        assert all(turn.content.strip() for turn in document)


@pytest.fixture(scope="module")
def tested() -> dict[str, dict[str, Example]]:
    """What each task's adapter is tested on, by prompt."""
    return {
        name: {example.prompt: example for example in task.examples("heldout", 200)}
        for name, task in TASKS.items()
    }


@pytest.mark.parametrize("skill", skills.SKILLS, ids=lambda skill: skill.instructions[0])
def test_exercises_use_no_heldout_payload(skill: skills.Skill, tested: dict[str, dict[str, Example]]) -> None:
    """What an adapter is tested on never had its right answer in the base's training text."""
    rng = Random(0)
    drawn = [skill.make(rng) for _ in range(500)]
    for name, task in TASKS.items():
        examples = tested[name]
        assert not any(task.check(examples[text], answer) for text, answer in drawn if text in examples)


def test_only_assistants_and_plain_texts_are_learned() -> None:
    encoder = tokens.Encoder(BASE)
    document = [
        corpus.Turn("system", "Be kind."),
        corpus.Turn("user", "Hello."),
        corpus.Turn("assistant", "Good day!"),
    ]
    ids, learned = encoder.document(document)
    assert [i for i, wanted in zip(ids, learned, strict=True) if wanted] == [
        *encoder.text("Good day!"),
        tokens.END_ID,
    ]
