"""Generates the documents that Sapling's base is trained on: exercises, talk and stories in conversations.

The same seed gives the same documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

from . import lexicon as lx
from . import skills, stories, talk, topics, world

Role = Literal["system", "user", "assistant", "text"]


@dataclass(frozen=True)
class Turn:
    """One role's message; the role `text` is a document outside any conversation."""

    role: Role
    content: str


Document = list[Turn]

_SYSTEM = [
    "You are a helpful assistant.",
    "You are Sapling, a helpful assistant.",
    "You are a friendly assistant.",
    "Be helpful and polite.",
    "You are a helpful AI assistant.",
]


def _say(asked: tuple[str, str]) -> Document:
    return [Turn("user", asked[0]), Turn("assistant", asked[1])]


def _sentence(instruction: str) -> str:
    """Returns the instruction with its full stop or question mark."""
    return instruction + ("?" if instruction.startswith(("What", "Which", "Who", "How")) else ".")


def _opening(rng: Random) -> Document:
    return [Turn("system", rng.choice(_SYSTEM))] if rng.random() < 0.2 else []


def _told_inline(rng: Random) -> Document:
    """Makes one to three exercises, each with its own instruction."""
    document = _opening(rng)
    for _ in range(rng.choice([1, 1, 2, 3])):
        skill = skills.pick(rng)
        payload, answer = skill.make(rng)
        instruction = rng.choice(skill.instructions)
        soft = instruction[0].lower() + instruction[1:]
        prompt = rng.choice(
            [
                f"{instruction}: {payload}",
                f"{instruction}: {payload}",
                f"{_sentence(instruction)}\n{payload}",
                f"{payload}\n{_sentence(instruction)}",
                f"Please help me: {soft}: {payload}",
                f"{instruction}, please: {payload}",
            ]
        )
        document += _say((prompt, answer))
    return document


def _told_once(rng: Random) -> Document:
    """Makes an instruction, then several messages that it applies to."""
    skill = skills.pick(rng)
    told = _sentence(rng.choice(skill.instructions))
    if rng.random() < 0.6:
        document = [
            Turn("system", rng.choice([told, f"You get a message. {told}", f"{rng.choice(_SYSTEM)} {told}"]))
        ]
    else:
        agreed = rng.choice(["Of course.", "Yes, I will do that.", "All right. I am ready."])
        asked = rng.choice(
            [f"{told} Do it with each of my next messages.", f"When I send you something: {told}"]
        )
        document = _opening(rng) + _say((asked, agreed))
    for _ in range(rng.choice([1, 1, 2, 3, 4])):
        document += _say(skill.make(rng))
    return document


_ASKS = [
    talk.exchange,
    skills.bare_remark,
    skills.quick_question,
    topics.topic,
    world.advice,
    world.translation,
    world.unknown,
]
_ASK_WEIGHTS = [9, 4, 4, 4, 3, 1, 3]


def _conversation(rng: Random) -> Document:
    document = _opening(rng)
    for _ in range(rng.choice([1, 1, 2, 3, 5, 8])):
        document += _say(rng.choices(_ASKS, _ASK_WEIGHTS)[0](rng))
    return document


def _bare(rng: Random) -> Document:
    return _opening(rng) + _say(skills.bare_remark(rng))


def _introduced(rng: Random) -> Document:
    """Makes a user who gives a name and is remembered, or a system message that names the assistant."""
    name, other = rng.sample(lx.NAMES, 2)
    city, animal = rng.choice(lx.CITIES), rng.choice(lx.ANIMALS)
    if rng.random() < 0.5:
        document = [
            Turn(
                "system",
                rng.choice(
                    [
                        f"Your name is {name}.",
                        f"You are {name}, a friendly assistant.",
                        f"You are {name}. You live in {city}.",
                    ]
                ),
            )
        ]
        document += _say((rng.choice(["What is your name?", "Who are you?"]), f"My name is {name}."))
        return document
    document = _opening(rng) + _say(
        (
            f"My name is {name}, I live in {city} and I have {lx.a(animal)}.",
            f"It is nice to meet you, {name}!",
        )
    )
    if rng.random() < 0.5:
        document += _say(talk.exchange(rng))
    asked = [
        ("What is my name?", f"Your name is {name}."),
        ("Where do I live?", f"You live in {city}."),
        ("Which animal do I have?", f"You have {lx.a(animal)}."),
        (f"Is my name {other}?", f"No, your name is {name}."),
    ]
    for question in rng.sample(asked, rng.randint(1, 3)):
        document += _say(question)
    return document


def _story(rng: Random) -> Document:
    if rng.random() < 0.1:
        return _opening(rng) + _say(stories.long_story_request(rng))
    request, text, who = stories.story_request(rng)
    document = _opening(rng) + _say((request, text))
    if rng.random() < 0.5:
        for asked in stories.story_questions(rng, who):
            document += _say(asked)
    if rng.random() < 0.15:
        document += _say(("Tell me another story.", stories.tell(rng, stories.cast(rng))))
    return document


def _writing(rng: Random) -> Document:
    make = rng.choice(
        [stories.describe, stories.poem, stories.listing, stories.listing, stories.letter, world.count_up]
    )
    return _opening(rng) + _say(make(rng))


def _plain(rng: Random) -> Document:
    """Makes text without a conversation: stories, one after another, or facts in a row."""
    if rng.random() < 0.6:
        return [
            Turn(
                "text",
                "\n\n".join(stories.tell(rng, stories.cast(rng)) for _ in range(rng.choice([1, 1, 2, 4]))),
            )
        ]
    return [Turn("text", " ".join(talk.exchange(rng)[1] for _ in range(rng.randint(2, 8))))]


_MIX = [
    (_told_inline, 30),
    (_told_once, 22),
    (_conversation, 14),
    (_bare, 7),
    (_introduced, 4),
    (_story, 6),
    (_writing, 6),
    (_plain, 3),
]


def documents(seed: int | str, count: int) -> Iterator[Document]:
    """Yields `count` documents, the same ones for the same seed."""
    rng = Random(f"corpus/{seed}")
    makers, weights = zip(*_MIX, strict=True)
    for _ in range(count):
        yield rng.choices(makers, weights)[0](rng)
