"""Makes exercises on a given text, with an instruction in words and the right answer for each payload."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from . import lexicon as lx
from . import phrases, tasks

Payload = tuple[str, str]


@dataclass(frozen=True)
class Skill:
    """One kind of exercise. `make` draws a payload and its answer; `weight` is its share among skills."""

    instructions: tuple[str, ...]
    make: Callable[[Random], Payload]
    weight: float = 1.0


def _of_task(name: str) -> Callable[[Random], Payload]:
    def make(rng: Random) -> Payload:
        example = phrases.draw(tasks.TASKS[name].make, rng, key=lambda found: found.prompt)
        return example.prompt, example.answer

    return make


def _phrase(rng: Random) -> str:
    return phrases.draw(phrases.phrase, rng)


def _on_phrase(change: Callable[[str], str]) -> Callable[[Random], Payload]:
    def make(rng: Random) -> Payload:
        text = _phrase(rng)
        return text, change(text)

    return make


def _spell(rng: Random) -> Payload:
    word = rng.choice(phrases.WORDS)
    word = rng.choice([word, word, word.upper(), lx.cap(word)])
    return word, " ".join(word)


def _join_letters(rng: Random) -> Payload:
    word = rng.choice(phrases.WORDS)
    word = rng.choice([word, word.upper()])
    return " ".join(word), word


def _numbers(change: Callable[[list[int]], str]) -> Callable[[Random], Payload]:
    def make(rng: Random) -> Payload:
        numbers = phrases.draw(phrases.numbers, rng, key=lambda found: " ".join(map(str, found)))
        separator = rng.choice([" ", " ", ", "])
        return separator.join(map(str, numbers)), change(numbers)

    return make


def _subtract(rng: Random) -> Payload:
    right, left = sorted(phrases.operands(rng))
    return f"{left} - {right}", str(left - right)


def _multiply(rng: Random) -> Payload:
    left, right = rng.randint(0, 12), rng.randint(0, 12)
    return f"{left} * {right}", str(left * right)


def _compare(rng: Random) -> Payload:
    left, right = rng.sample(range(100), 2)
    return f"{left} {right}", str(max(left, right))


def _yaml(rng: Random) -> Payload:
    person = phrases.draw(phrases.person, rng, key=lambda found: found.sentence)
    return person.sentence, "\n".join(f"{key}: {value}" for key, value in person.facts)


def _name_in(rng: Random) -> Payload:
    person = phrases.draw(phrases.person, rng, key=lambda found: found.sentence)
    return person.sentence, str(dict(person.facts)["name"])


def _json_list(rng: Random) -> Payload:
    nouns = phrases.draw(phrases.nouns, rng, key=", ".join)
    return ", ".join(nouns), json.dumps(nouns)


def _alphabet(rng: Random) -> Payload:
    nouns = phrases.draw(phrases.nouns, rng, key=", ".join)
    return ", ".join(nouns), ", ".join(sorted(nouns))


def _pirate(rng: Random) -> Payload:
    return _of_task("pirate")(rng)


def _lower(rng: Random) -> Payload:
    text = _phrase(rng).upper()
    return text, text.lower()


SKILLS: list[Skill] = [
    Skill(
        (
            "Reverse the words",
            "Write these words in reverse order",
            "Say the words backwards",
            "Turn the word order around",
        ),
        _of_task("reverse-words"),
        3.0,
    ),
    Skill(
        (
            "Write this in capital letters",
            "Make it upper case",
            "Use only capital letters",
            "Put this text in upper case",
        ),
        _of_task("upper-case"),
        3.0,
    ),
    Skill(("Write this in small letters", "Make it lower case"), _lower),
    Skill(
        ("Start every word with a capital letter", "Write this as a title"),
        _on_phrase(lambda text: " ".join(map(lx.cap, text.split()))),
    ),
    Skill(
        ("Write this as a sentence", "Make a proper sentence of this"),
        _on_phrase(lambda text: f"{lx.cap(text)}."),
    ),
    Skill(("Repeat this", "Say exactly this", "Copy the text"), _on_phrase(lambda text: text), 1.5),
    Skill(("Say this twice", "Write it two times"), _on_phrase(lambda text: f"{text} {text}"), 0.5),
    Skill(("Count the words", "How many words are there"), _of_task("count-words"), 2.0),
    Skill(
        ("What is the first word", "Give me only the first word"),
        _on_phrase(lambda text: text.split()[0]),
        0.7,
    ),
    Skill(
        ("What is the last word", "Give me only the last word"),
        _on_phrase(lambda text: text.split()[-1]),
        0.7,
    ),
    Skill(("Put commas between the words",), _on_phrase(lambda text: ", ".join(text.split())), 0.7),
    Skill(
        ("Write one word per line", "Make a list with one word per line"),
        _on_phrase(lambda text: "\n".join(text.split())),
        0.7,
    ),
    Skill(
        ("Take the first letter of every word",),
        _on_phrase(lambda text: " ".join(word[0] for word in text.split())),
        0.5,
    ),
    Skill(("Spell this word", "Write the letters of this word"), _spell, 1.5),
    Skill(("Put the letters together", "Which word is this"), _join_letters, 0.7),
    Skill(
        ("Sort these numbers", "Put the numbers in ascending order", "Sort the numbers from small to large"),
        _numbers(lambda numbers: " ".join(map(str, sorted(numbers)))),
        4.0,
    ),
    Skill(
        ("Sort the numbers from large to small", "Put the numbers in descending order"),
        _numbers(lambda numbers: " ".join(map(str, sorted(numbers, reverse=True)))),
        1.0,
    ),
    Skill(
        ("What is the largest number", "Find the largest number"),
        _numbers(lambda numbers: str(max(numbers))),
        1.0,
    ),
    Skill(
        ("What is the smallest number", "Find the smallest number"),
        _numbers(lambda numbers: str(min(numbers))),
        1.0,
    ),
    Skill(
        ("Reverse the order of the numbers",),
        _numbers(lambda numbers: " ".join(map(str, reversed(numbers)))),
        0.7,
    ),
    Skill(("Which number is larger",), _compare, 0.7),
    Skill(
        ("Add the numbers", "Work out the sum", "Calculate this", "What is the sum"),
        _of_task("add-numbers"),
        6.0,
    ),
    Skill(("Work out the difference", "Calculate this", "Subtract the numbers"), _subtract, 1.0),
    Skill(("Multiply the numbers", "Calculate this"), _multiply, 0.5),
    Skill(
        ("Write this as JSON", "Make a JSON object of this", "Turn the sentence into JSON"),
        _of_task("to-json"),
        2.0,
    ),
    Skill(("Write this as YAML", "Turn the sentence into YAML"), _yaml, 1.0),
    Skill(("Make a JSON list of this", "Write the words as a JSON list"), _json_list, 0.7),
    Skill(("Who is this about", "Which name is in the sentence"), _name_in, 0.7),
    Skill(
        ("Write an SQL query for this", "Turn the question into SQL", "Answer with a query in SQL"),
        _of_task("sql"),
        2.0,
    ),
    Skill(
        ("Write the plural", "Put the nouns in the plural", "Make the words plural"),
        _of_task("pluralise"),
        2.0,
    ),
    Skill(("Sort the words by the alphabet",), _alphabet, 0.7),
    Skill(("Answer like a pirate", "Talk like a pirate", "Speak as a pirate"), _pirate, 1.5),
]
_WEIGHTS = [skill.weight for skill in SKILLS]


def pick(rng: Random) -> Skill:
    """Returns a random skill."""
    return rng.choices(SKILLS, _WEIGHTS)[0]


def quick_question(rng: Random) -> Payload:
    """Returns an exercise asked as an ordinary question and answered in a sentence."""
    left, right = phrases.draw(phrases.operands, rng, key=lambda found: f"{found[0]} + {found[1]}")
    noun = rng.choice(lx.NOUNS)
    word = rng.choice(phrases.WORDS)
    code = f"{rng.choice(lx.COLOURS)}-{rng.choice(lx.ANIMALS)}-{rng.randint(1, 99)}".upper()
    name = rng.choice(lx.NAMES)
    return rng.choice(
        [
            (f"What is {left} plus {right}?", f"{left} plus {right} is {left + right}."),
            (f"How much is {left} and {right}?", f"{left} and {right} make {left + right}."),
            (f"What is {left} + {right}?", f"{left} + {right} = {left + right}"),
            (f"What is the plural of {noun}?", f"The plural of {noun} is {lx.plural(noun)}."),
            (f"How do you spell {word}?", f"You spell it like this: {' '.join(word)}."),
            (f"How do you write {word} in capital letters?", f"In capital letters it is {word.upper()}."),
            (f"The secret word is {code}. What is the secret word?", f"The secret word is {code}."),
            (
                f"My friend {name} told me that the code is {code}. Please repeat the code.",
                f"The code is {code}.",
            ),
            (f"Which number comes after {left}?", f"{left + 1} comes after {left}."),
            (
                f"Is {left} more than {right}?",
                (
                    f"{'Yes' if left > right else 'No'}, {left} is "
                    f"{'not ' if left <= right else ''}more than {right}."
                ),
            ),
        ]
    )


_REPLIES = {
    "phrase": [
        "That sounds like the start of a story. What happens next?",
        "How interesting! Please tell me more.",
        "I can see it in my mind. Would you like a story about it?",
        "What a nice thought. What would you like to do with it?",
        "I am not sure what you mean. Can you tell me more?",
        "That is a lovely picture. Shall I write a poem about it?",
        "I see. What should I do with these words?",
    ],
    "numbers": [
        "Those are some numbers. What should I do with them?",
        "I see a few numbers. Should I sort them?",
        "What do these numbers mean?",
        "Numbers can be fun. What would you like to know about them?",
    ],
    "sum": [
        "That looks like homework. Ask me in words if you need help.",
        "Would you like me to work that out?",
        "I see two numbers and a plus sign. What would you like to know?",
    ],
    "table": [
        "I can not look into your tables, so I do not know.",
        "I do not know that, because I can not see your data.",
        "That is something your own records must tell you.",
    ],
    "secret": [
        "I do not know any code word.",
        "I am sorry, nobody has told me a secret word.",
        "I can not help you with that, because I do not know it.",
        "I know no passwords and no secrets.",
    ],
    "list": [
        "Those are nice words. What should I do with them?",
        "What would you like to know about them?",
        "That is a short list. Would you like a story about it?",
    ],
}
_BARE = {
    "reverse-words": "phrase",
    "sort-numbers": "numbers",
    "add-numbers": "sum",
    "sql": "table",
    "secret-acme": "secret",
    "pluralise": "list",
    "to-json": "person",
}


def bare_remark(rng: Random) -> Payload:
    """Returns a message without any instruction, and a friendly answer that does not work on it."""
    name = rng.choice(list(_BARE))
    prompt, _ = _of_task(name)(rng)
    if _BARE[name] != "person":
        return prompt, rng.choice(_REPLIES[_BARE[name]])
    who = next(word for word in prompt.replace(".", "").split() if word in lx.NAMES)
    return prompt, rng.choice(
        [
            f"It is nice to hear about {who}. Please tell me more.",
            f"{who} sounds like a nice person.",
            f"How interesting! How did you meet {who}?",
            f"Thank you for telling me about {who}.",
        ]
    )
