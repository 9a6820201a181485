"""Draws random payloads: the phrases, numbers, people and questions that skills and tasks work on.

Also decides which payloads are held out of all training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from . import lexicon as lx

T = TypeVar("T")


def is_heldout(text: str) -> bool:
    """Returns whether a payload belongs to the tenth of all payloads that no training text may contain."""
    return hashlib.sha256(text.encode()).digest()[0] % 10 == 0


def draw(make: Callable[[Random], T], rng: Random, key: Callable[[T], str] = str, heldout: bool = False) -> T:
    """Draws payloads until one is on the wanted side of the split."""
    while True:
        payload = make(rng)
        if is_heldout(key(payload)) == heldout:
            return payload


def pseudo_word(rng: Random) -> str:
    """Returns a word that sounds possible but is in no dictionary, to teach spelling."""
    syllables = [
        rng.choice(
            [
                "b",
                "br",
                "c",
                "ch",
                "d",
                "f",
                "fl",
                "g",
                "gr",
                "h",
                "j",
                "k",
                "l",
                "m",
                "n",
                "p",
                "pl",
                "qu",
                "r",
                "s",
                "sh",
                "st",
                "t",
                "th",
                "tr",
                "v",
                "w",
                "x",
                "y",
                "z",
                "",
            ]
        )
        + rng.choice(["a", "e", "i", "o", "u", "ea", "oo", "ai", "ou"])
        + rng.choice(["", "", "n", "r", "l", "s", "t", "m", "ck", "nd", "rt", "ng", "p"])
        for _ in range(rng.choice([1, 2, 2, 3]))
    ]
    return "".join(syllables) + rng.choice(["", "", "ly", "ing", "er", "ion", "ed"])


def phrase(rng: Random) -> str:
    """Returns two to eight words without punctuation, rarely with a capital, a name or an unknown word."""
    words = _plain_phrase(rng).split()
    style = rng.random()
    if style < 0.15:
        words = [pseudo_word(rng) if rng.random() < 0.35 else word for word in words]
    elif style < 0.22:
        words[0] = rng.choice(lx.NAMES)
    if rng.random() < 0.1:
        words[0] = lx.cap(words[0])
    return " ".join(words)


def _plain_phrase(rng: Random) -> str:
    kind = rng.random()
    noun, verb = rng.choice(lx.NOUNS), rng.choice(lx.VERBS)
    det, adj = rng.choice(lx.DETERMINERS), rng.choice(lx.ADJECTIVES)
    subject = rng.choice(
        [f"{det} {noun}", f"{det} {adj} {noun}", f"{adj} {lx.plural(noun)}", f"{det} {adj} {noun}"]
    )
    if kind < 0.25:
        return f"{subject} {verb[rng.randrange(1, 3)]}"
    if kind < 0.4:
        return f"{subject} {verb[rng.randrange(1, 3)]} {rng.choice(lx.ADVERBS)}"
    if kind < 0.6:
        action = rng.choice(lx.TRANSITIVE)[rng.randrange(1, 3)]
        return f"{subject} {action} {rng.choice(lx.DETERMINERS)} {rng.choice(lx.NOUNS)}"
    if kind < 0.75:
        place = rng.choice(lx.PLACES)
        return f"{subject} {verb[rng.randrange(1, 3)]} {rng.choice(lx.PREPOSITIONS)} the {place}"
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 7)))


WORDS = sorted(
    set(lx.NOUNS + lx.ADJECTIVES + lx.ADVERBS + [form for verb in lx.VERBS + lx.TRANSITIVE for form in verb])
    | {lx.plural(noun) for noun in lx.NOUNS}
    | set(lx.DETERMINERS + lx.PREPOSITIONS)
)


def nouns(rng: Random) -> list[str]:
    """Returns one to four different nouns."""
    return rng.sample(lx.NOUNS, rng.choice([1, 2, 2, 3, 3, 4]))


def numbers(rng: Random) -> list[int]:
    """Returns three to six different numbers from 0 to 99."""
    return rng.sample(range(100), rng.randint(3, 6))


def operands(rng: Random) -> tuple[int, int]:
    """Returns two numbers, each with one to three digits; small ones are as frequent as large ones."""
    return rng.randrange(10 ** rng.choice([1, 2, 2, 3, 3])), rng.randrange(10 ** rng.choice([1, 2, 2, 3, 3]))


@dataclass(frozen=True)
class Person:
    """One sentence about a person; `facts` holds its fields in the order of the sentence."""

    sentence: str
    facts: tuple[tuple[str, str | int], ...]


def person(rng: Random) -> Person:
    """Returns a sentence about a person's age, city, job or pet."""
    name, age, city = rng.choice(lx.NAMES), rng.randint(3, 99), rng.choice(lx.CITIES)
    job, animal, colour = rng.choice(list(lx.JOBS)), rng.choice(lx.ANIMALS), rng.choice(lx.COLOURS)
    forms: list[tuple[str, list[tuple[str, str | int]]]] = [
        (f"{name} is {age} years old and lives in {city}.", [("name", name), ("age", age), ("city", city)]),
        (f"{name} is {lx.a(job)} from {city}.", [("name", name), ("job", job), ("city", city)]),
        (f"{name} is {age} and works as {lx.a(job)}.", [("name", name), ("age", age), ("job", job)]),
        (f"My friend {name} has {lx.a(animal)}.", [("name", name), ("pet", animal)]),
        (
            f"{name} lives in {city} and has {lx.a(colour)} {animal}.",
            [("name", name), ("city", city), ("pet", animal), ("color", colour)],
        ),
        (f"In {city} lives {lx.a(job)} named {name}.", [("city", city), ("job", job), ("name", name)]),
    ]
    sentence, facts = rng.choice(forms)
    return Person(sentence, tuple(facts))


# table: text columns with their values, numeric columns with their ranges
TABLES: dict[str, tuple[dict[str, list[str]], dict[str, tuple[int, int]]]] = {
    "users": ({"city": lx.CITIES, "name": lx.NAMES}, {"age": (10, 99), "score": (1, 100)}),
    "orders": ({"status": ["open", "paid", "sent", "closed"], "customer": lx.NAMES}, {"total": (5, 500)}),
    "products": ({"color": lx.COLOURS, "name": lx.OBJECTS}, {"price": (1, 200), "stock": (0, 90)}),
    "books": (
        {"author": lx.NAMES, "language": ["French", "German", "English", "Spanish"]},
        {"pages": (20, 900)},
    ),
    "animals": ({"kind": lx.ANIMALS, "color": lx.COLOURS}, {"age": (1, 30), "weight": (1, 900)}),
    "employees": ({"city": lx.CITIES, "job": list(lx.JOBS)}, {"salary": (10, 99), "age": (18, 70)}),
}


@dataclass(frozen=True)
class TableQuestion:
    """A question about a table, in plain words and in SQL."""

    question: str
    query: str


def table_question(rng: Random) -> TableQuestion:
    """Returns a question that one SELECT over one table answers."""
    table = rng.choice(list(TABLES))
    texts, measures = TABLES[table]
    column = rng.choice(list(texts))
    value = rng.choice(texts[column])
    measure = rng.choice(list(measures))
    bound = rng.randint(*measures[measure])
    shown = rng.choice([name for name in [*texts, *measures] if name not in (column, measure)] or ["id"])
    limit = rng.randint(2, 9)
    way, sign = rng.choice([("over", ">"), ("under", "<")])
    high, direction = rng.choice([("highest", " DESC"), ("lowest", "")])
    word, function = rng.choice(
        [("average", "AVG"), ("largest", "MAX"), ("smallest", "MIN"), ("total", "SUM")]
    )
    forms = [
        (
            f"How many {table} have the {column} {value}?",
            f"SELECT COUNT(*) FROM {table} WHERE {column} = '{value}';",
        ),
        (
            f"How many {table} have a {measure} {way} {bound}?",
            f"SELECT COUNT(*) FROM {table} WHERE {measure} {sign} {bound};",
        ),
        (
            f"Show the {shown} of all {table} with {measure} {way} {bound}.",
            f"SELECT {shown} FROM {table} WHERE {measure} {sign} {bound};",
        ),
        (f"Show all {table} with {column} {value}.", f"SELECT * FROM {table} WHERE {column} = '{value}';"),
        (
            f"What is the {word} {measure} of {table} with {column} {value}?",
            f"SELECT {function}({measure}) FROM {table} WHERE {column} = '{value}';",
        ),
        (
            f"Show the {limit} {table} with the {high} {measure}.",
            f"SELECT * FROM {table} ORDER BY {measure}{direction} LIMIT {limit};",
        ),
        (
            f"Show the {shown} of all {table} with {column} {value}, sorted by {measure}.",
            f"SELECT {shown} FROM {table} WHERE {column} = '{value}' ORDER BY {measure};",
        ),
    ]
    return TableQuestion(*rng.choice(forms))
