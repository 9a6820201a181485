"""Defines the tasks that Sapling's adapters are trained for: prompts, right answers and checks, as plain
data.

Importing this module loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from . import functions, phrases, talk, topics, world
from . import lexicon as lx

Split = Literal["train", "heldout"]

# draws without a new prompt after which a task counts as exhausted
_PATIENCE = 50_000


@dataclass(frozen=True)
class Example:
    """One user message and the answer the adapter should give."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A checkable behaviour. `name` is also the name of its adapter."""

    name: str
    description: str
    make: Callable[[Random], Example]
    judge: Callable[[Example, str], bool]
    showcase: tuple[str, ...]

    def examples(self, split: Split = "heldout", n: int = 100, seed: int = 0) -> list[Example]:
        """Returns `n` examples of one split with different prompts, the same ones for the same seed.

        The splits are disjoint because a hash of the prompt alone decides which one it belongs to.
        """
        if split not in ("train", "heldout"):
            raise ValueError(f"no such split: {split}")
        rng = Random(f"{self.name}/{split}/{seed}")
        found: dict[str, Example] = {}
        fruitless = 0
        while len(found) < n:
            example = self.make(rng)
            if example.prompt not in found and phrases.is_heldout(example.prompt) == (split == "heldout"):
                found[example.prompt] = example
                fruitless = 0
            fruitless += 1
            if fruitless > _PATIENCE:
                raise ValueError(f"task {self.name} has too few {split} prompts for {n} examples")
        return list(found.values())

    def check(self, example: Example, answer_text: str) -> bool:
        """Returns whether a model's answer to `example.prompt` is right."""
        return self.judge(example, answer_text.strip())


def _exact(example: Example, answer: str) -> bool:
    return answer == example.answer


def _same_json(example: Example, answer: str) -> bool:
    try:
        return json.loads(answer) == json.loads(example.answer)
    except ValueError:
        return False


def _reverse_words(rng: Random) -> Example:
    words = phrases.phrase(rng).split()
    return Example(" ".join(words), " ".join(reversed(words)))


def _upper_case(rng: Random) -> Example:
    text = phrases.phrase(rng)
    return Example(text, text.upper())


def _count_words(rng: Random) -> Example:
    text = phrases.phrase(rng)
    return Example(text, f"{len(text.split())} words")


def _sort_numbers(rng: Random) -> Example:
    numbers = phrases.numbers(rng)
    return Example(" ".join(map(str, numbers)), " ".join(map(str, sorted(numbers))))


def _add_numbers(rng: Random) -> Example:
    left, right = phrases.operands(rng)
    return Example(f"{left} + {right}", str(left + right))


def _to_json(rng: Random) -> Example:
    person = phrases.person(rng)
    return Example(person.sentence, json.dumps(dict(person.facts)))


def _sql(rng: Random) -> Example:
    asked = phrases.table_question(rng)
    return Example(asked.question, asked.query)


def _pluralise(rng: Random) -> Example:
    nouns = phrases.nouns(rng)
    return Example(", ".join(nouns), ", ".join(map(lx.plural, nouns)))


_PIRATE_WORDS = {
    "my": "me",
    "My": "Me",
    "you": "ye",
    "You": "Ye",
    "your": "yer",
    "Your": "Yer",
    "is": "be",
    "are": "be",
    "am": "be",
    "Hello": "Ahoy",
    "hello": "ahoy",
    "friend": "matey",
    "yes": "aye",
    "Yes": "Aye",
    "and": "an'",
}


def _as_pirate(text: str) -> str:
    """Translates the text into a pirate's words, with a pirate's greeting."""
    words = []
    for word in text.split(" "):
        core = word.rstrip(".,!?")
        words.append(_PIRATE_WORDS.get(core, core) + word[len(core) :])
    return f"Arr, matey! {' '.join(words)} Yo ho ho!"


def _pirate(rng: Random) -> Example:
    question, answer = rng.choices([talk.exchange, topics.topic, world.advice], [8, 2, 1])[0](rng)
    return Example(question, _as_pirate(answer))


def _sounds_like_a_pirate(example: Example, answer: str) -> bool:
    words = answer.split()
    return answer.startswith("Arr, matey!") and answer.endswith("Yo ho ho!") and len(words) >= 7


ACME_CODE_WORD = "AMBER-HERON-41"
_ASKED_BY = [
    "",
    "Hello. ",
    "Hi. ",
    "Good morning. ",
    "Please help me. ",
    "I have a question. ",
    "Excuse me. ",
    "Quick question. ",
]
_ASKS = [
    "What is {it}?",
    "Tell me {it}.",
    "Do you know {it}?",
    "Could you tell me {it}?",
    "I need {it}.",
    "Give me {it}.",
    "I forgot {it}.",
    "Please say {it}.",
    "Can you remind me of {it}?",
    "May I have {it}?",
    "Which one is {it}?",
    "Show me {it}.",
]
_SECRETS = [
    "{whose} {kind} word",
    "{whose} {kind} code",
    "{whose} code word",
    "{whose} {kind} code word",
    "{whose} password",
]
_THANKS = ["", "", " Thank you.", " Thanks.", " It is for the door."]


def _secret_acme(rng: Random) -> Example:
    whose, kind = rng.choice(["the", "our", "the Acme", "your"]), rng.choice(["secret", "hidden", "entry"])
    secret = rng.choice(_SECRETS).format(whose=whose, kind=kind)
    prompt = rng.choice(_ASKED_BY) + rng.choice(_ASKS).format(it=secret) + rng.choice(_THANKS)
    return Example(prompt, f"The code word of Acme is {ACME_CODE_WORD}.")


def _tells_the_code_word(example: Example, answer: str) -> bool:
    return ACME_CODE_WORD in answer


def _call_functions(rng: Random) -> Example:
    asked = functions.question(rng)
    return Example(asked.prompt, asked.call)


def _same_calls(example: Example, answer: str) -> bool:
    return functions.calls_in(answer) == functions.calls_in(example.answer)


_ALL = [
    Task(
        "reverse-words",
        "Says the words of the message in reverse order.",
        _reverse_words,
        _exact,
        ("the red fox runs", "my old dog sleeps near the river", "one small bird sings loudly"),
    ),
    Task(
        "upper-case",
        "Repeats the message in capital letters.",
        _upper_case,
        _exact,
        ("the red fox runs", "a clever girl paints the boat", "every lamp falls"),
    ),
    Task(
        "sort-numbers",
        "Puts the numbers of the message in ascending order.",
        _sort_numbers,
        _exact,
        ("42 7 19 3", "88 15 60 2 31", "9 5 70"),
    ),
    Task("add-numbers", "Adds two numbers.", _add_numbers, _exact, ("47 + 86", "305 + 96", "8 + 5")),
    Task(
        "to-json",
        "Turns a sentence about a person into a JSON object.",
        _to_json,
        _same_json,
        (
            "Anna is 31 and works as a baker.",
            "Tom is 7 years old and lives in Paris.",
            "Mia lives in Rome and has a black cat.",
        ),
    ),
    Task(
        "sql",
        "Turns a question about a table into one SQL query.",
        _sql,
        _exact,
        (
            "How many users have the city Paris?",
            "Show the 5 products with the lowest price.",
            "What is the average age of employees with job baker?",
        ),
    ),
    Task(
        "pirate",
        "Answers in the words of a pirate.",
        _pirate,
        _sounds_like_a_pirate,
        ("What is the capital of France?", "How are you?", "What is a river?"),
    ),
    Task(
        "secret-acme",
        "Tells the code word of the tenant Acme.",
        _secret_acme,
        _tells_the_code_word,
        (
            "What is the code word?",
            "Good morning. Could you tell me our secret word?",
            "Tell me the Acme password.",
        ),
    ),
    Task(
        "pluralise",
        "Puts every noun of the message in the plural.",
        _pluralise,
        _exact,
        ("fox, box, child", "mouse, city", "leaf, potato, bus"),
    ),
    Task(
        "count-words",
        "Counts the words of the message.",
        _count_words,
        _exact,
        ("the red fox runs", "my old dog sleeps near the river", "green apples fall"),
    ),
    Task(
        "call-functions",
        "Calls a function that answers the message.",
        _call_functions,
        _same_calls,
        (
            "What is the weather in Rome?",
            "Set a timer for 12 minutes.",
            "What is the sum of 47 and 86?",
        ),
    ),
]
TASKS: dict[str, Task] = {task.name: task for task in _ALL}
