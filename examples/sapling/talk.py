"""Makes exchanges of general knowledge: one question and one answer at a time, mixed with small talk."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from . import lexicon as lx
from .small_talk import Exchange, small_talk


def _capital(rng: Random) -> Exchange:
    country = rng.choice(list(lx.CAPITALS))
    city = lx.CAPITALS[country]
    return rng.choice(
        [
            (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
            (f"Do you know the capital of {country}?", f"Yes, the capital of {country} is {city}."),
            (f"Which country is {city} in?", f"{city} is in {country}."),
            (f"Where is {city}?", f"{city} is the capital of {country}."),
            (
                f"Tell me something about {city}.",
                f"{city} is the capital of {country}. Many people live there.",
            ),
            (f"Which city is the capital of {country}?", f"The capital of {country} is {city}."),
        ]
    )


def _animal(rng: Random) -> Exchange:
    animal = rng.choice(list(lx.ANIMAL_FACTS))
    sound, home, food, young, legs = lx.ANIMAL_FACTS[animal]
    an, many = lx.a(animal), lx.plural(animal)
    count = {0: "no legs", 2: "two legs", 4: "four legs", 6: "six legs"}[legs]
    return rng.choice(
        [
            (f"What sound does {an} make?", f"{lx.cap(an)} says {sound}."),
            (f"What does {an} say?", f"{lx.cap(an)} says {sound}."),
            (f"Where does {an} live?", f"{lx.cap(an)} lives {home}."),
            (f"Where do {many} live?", f"{lx.cap(many)} live {home}."),
            (f"What does {an} eat?", f"{lx.cap(an)} eats {food}."),
            (f"What do {many} eat?", f"{lx.cap(many)} eat {food}."),
            (f"What is a young {animal} called?", f"A young {animal} is called {lx.a(young)}."),
            (f"How many legs does {an} have?", f"{lx.cap(an)} has {count}."),
            (
                f"Tell me about {many}.",
                f"{lx.cap(many)} live {home}. They eat {food}, and they have {count}.",
            ),
            (f"What do you know about the {animal}?", f"The {animal} lives {home} and eats {food}."),
        ]
    )


def _opposite(rng: Random) -> Exchange:
    one, other = rng.choice(lx.OPPOSITE_PAIRS)
    if rng.random() < 0.5:
        one, other = other, one
    return rng.choice(
        [
            (f"What is the opposite of {one}?", f"The opposite of {one} is {other}."),
            (f"Which word is the opposite of {one}?", f"The opposite of {one} is {other}."),
        ]
    )


def _colour(rng: Random) -> Exchange:
    thing = rng.choice(list(lx.THING_COLOURS))
    colour = lx.THING_COLOURS[thing]
    return rng.choice(
        [
            (f"What colour is {thing}?", f"{lx.cap(thing)} is {colour}."),
            (f"Which colour does {thing} have?", f"{lx.cap(thing)} is {colour}."),
        ]
    )


def _use(rng: Random) -> Exchange:
    thing = rng.choice(list(lx.USES))
    return rng.choice(
        [
            (f"What is {lx.a(thing)} for?", f"{lx.cap(lx.a(thing))} is for {lx.USES[thing]}."),
            (f"What do people use {lx.a(thing)} for?", f"People use {lx.a(thing)} for {lx.USES[thing]}."),
            (f"Why do I need {lx.a(thing)}?", f"You need {lx.a(thing)} for {lx.USES[thing]}."),
        ]
    )


def _definition(rng: Random) -> Exchange:
    thing = rng.choice(list(lx.DEFINITIONS))
    meaning = f"{lx.cap(thing)} is {lx.DEFINITIONS[thing]}."
    return rng.choice(
        [
            (f"What is {thing}?", meaning),
            (f"Can you explain what {thing} is?", f"Yes. {meaning}"),
            (f"Please tell me what {thing} is.", meaning),
        ]
    )


def _job(rng: Random) -> Exchange:
    job = rng.choice(list(lx.JOBS))
    return rng.choice(
        [
            (f"What does {lx.a(job)} do?", f"{lx.cap(lx.a(job))} {lx.JOBS[job]}."),
            (f"What is the work of {lx.a(job)}?", f"{lx.cap(lx.a(job))} {lx.JOBS[job]}."),
            (f"I want to be {lx.a(job)}.", f"That is a good plan. {lx.cap(lx.a(job))} {lx.JOBS[job]}."),
        ]
    )


def _calendar(rng: Random) -> Exchange:
    names, unit = rng.choice([(lx.DAYS, "day"), (lx.MONTHS, "month")])
    index = rng.randrange(len(names))
    after, before = names[(index + 1) % len(names)], names[index - 1]
    return rng.choice(
        [
            (f"Which {unit} comes after {names[index]}?", f"{after} comes after {names[index]}."),
            (f"Which {unit} comes before {names[index]}?", f"{before} comes before {names[index]}."),
        ]
    )


def _opinion(rng: Random) -> Exchange:
    thing, colour = rng.choice(lx.ANIMALS + lx.FOODS + lx.PLACES), rng.choice(lx.COLOURS)
    many = lx.plural(thing)
    return rng.choice(
        [
            (f"Do you like {many}?", f"Yes, I like {many} very much. Do you like them too?"),
            (f"What do you think about {many}?", f"I think {many} are wonderful. What do you think?"),
            (f"I like {many}.", f"I like {many} too. What do you like about them?"),
            (f"I do not like {many}.", f"That is fine. Not everyone likes {many}."),
            (f"I saw {lx.a(thing)} today.", f"How nice! What did the {thing} look like?"),
            (f"I am thinking about {many}.", f"That is a good thing to think about. I like {many}."),
            (f"My favourite colour is {colour}.", f"{lx.cap(colour)} is a beautiful colour. I like it too."),
            (f"Do you like the colour {colour}?", f"Yes, {colour} is a very nice colour."),
        ]
    )


def _introduction(rng: Random) -> Exchange:
    name, city, job = rng.choice(lx.NAMES), rng.choice(lx.CITIES), rng.choice(list(lx.JOBS))
    return rng.choice(
        [
            (f"My name is {name}.", f"It is nice to meet you, {name}. How can I help you?"),
            (f"Hello, I am {name}.", f"Hello, {name}! It is nice to meet you."),
            (
                f"Hi, my name is {name} and I live in {city}.",
                f"Hi, {name}! {city} must be a lovely place to live.",
            ),
            (f"I live in {city}.", f"{city} is a lovely city. What do you like about it?"),
            (f"I am {lx.a(job)}.", f"That is important work. {lx.cap(lx.a(job))} {lx.JOBS[job]}."),
            (f"I am going to {city} tomorrow.", f"Have a good journey! I hope you enjoy {city}."),
        ]
    )


_BIG = [
    "elephant",
    "whale",
    "house",
    "castle",
    "mountain",
    "ship",
    "train",
    "bridge",
    "tower",
    "lion",
    "horse",
]
_LITTLE = ["ant", "bee", "mouse", "key", "coin", "button", "pea", "cherry", "spider", "nail", "ring"]


def _compare(rng: Random) -> Exchange:
    big, little = rng.choice(_BIG), rng.choice(_LITTLE)
    return rng.choice(
        [
            (
                f"Is {lx.a(big)} bigger than {lx.a(little)}?",
                f"Yes, {lx.a(big)} is much bigger than {lx.a(little)}.",
            ),
            (
                f"Is {lx.a(little)} bigger than {lx.a(big)}?",
                f"No, {lx.a(little)} is much smaller than {lx.a(big)}.",
            ),
            (
                f"What is bigger, {lx.a(big)} or {lx.a(little)}?",
                f"{lx.cap(lx.a(big))} is bigger than {lx.a(little)}.",
            ),
            (
                f"Which one is smaller, {lx.a(big)} or {lx.a(little)}?",
                f"{lx.cap(lx.a(little))} is smaller than {lx.a(big)}.",
            ),
        ]
    )


_FACTS: list[Callable[[Random], Exchange]] = [
    _capital,
    _animal,
    _animal,
    _opposite,
    _colour,
    _use,
    _definition,
    _job,
    _calendar,
    _opinion,
    _introduction,
    _compare,
]


def exchange(rng: Random) -> Exchange:
    """Returns a question or a remark, and its answer: a third small talk, two thirds about the world."""
    return small_talk(rng) if rng.random() < 0.35 else rng.choice(_FACTS)(rng)
