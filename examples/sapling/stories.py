"""Makes longer texts: stories, descriptions, poems, lists, letters, and questions about a story just told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from . import lexicon as lx


@dataclass(frozen=True)
class Cast:
    """The characters, place and thing of a story."""

    name: str
    kind: str
    adjective: str
    friend: str
    friend_kind: str
    place: str
    thing: str
    colour: str
    food: str
    pronoun: str
    possessive: str


def cast(rng: Random) -> Cast:
    """Draws a hero, a friend, a place and a thing."""
    kinds = rng.sample(lx.ANIMALS, 2)
    girl = rng.random() < 0.5
    name = rng.choice(lx.GIRLS if girl else lx.BOYS)
    if rng.random() < 0.25:
        kinds[0] = "girl" if girl else "boy"
    friend = rng.choice([other for other in lx.NAMES if other != name])
    return Cast(
        name,
        kinds[0],
        rng.choice(
            [
                "small",
                "young",
                "brave",
                "kind",
                "clever",
                "shy",
                "happy",
                "gentle",
                "quiet",
                "lazy",
                "funny",
                "old",
            ]
        ),
        friend,
        kinds[1],
        rng.choice(lx.PLACES),
        rng.choice(lx.OBJECTS),
        rng.choice(lx.COLOURS),
        rng.choice(lx.FOODS),
        "she" if girl else "he",
        "her" if girl else "his",
    )


_OPENINGS = [
    "Once upon a time, there was a {adjective} {kind} named {name}. {Pronoun} lived {near} the {place}.",
    "{Near} the {place} lived {an_adjective} {kind} whose name was {name}.",
    "There was once {an_adjective} {kind} called {name}. Every day, {pronoun} walked to the {place}.",
    "{name} was {an_adjective} {kind}. {Pronoun} had a little home {near} the {place}.",
    "Long ago, {an_adjective} {kind} named {name} lived {near} a quiet {place}.",
]
_DAYS = [
    "One day,",
    "One sunny morning,",
    "One cold evening,",
    "One rainy day,",
    "Early one morning,",
    "One night,",
]
# problem, search or help, solution
_PLOTS = [
    [
        (
            "{day} {name} lost {possessive} {colour} {thing}. {Pronoun} looked for it everywhere, "
            "but it was gone."
        ),
        (
            '"Do not be sad," said {friend}, a friendly {friend_kind}. "I will help you. Let us look '
            'for it together."'
        ),
        (
            "They looked under the bed, behind the door and beside the road. At last, {friend} found "
            "the {thing} under {an_leaf}."
        ),
        '{name} was very happy. "Thank you," {pronoun} said. "You are a true friend."',
    ],
    [
        (
            "{day} {name} found {a_colour} {thing} near the {place}. It was beautiful, but it did "
            "not belong to {object}."
        ),
        '{Pronoun} asked everyone {pronoun} met. "Is this your {thing}?" But nobody knew it.',
        'Then {name} met {a_friend_kind} named {friend}, who was crying. "I lost my {thing}," said {friend}.',
        "{name} gave the {thing} back at once. {friend} smiled and shared a sweet {food} with {object}.",
    ],
    [
        (
            "{day} {name} wanted to bake {a_food} for {possessive} friend {friend}, but there was "
            "nothing left in the kitchen."
        ),
        "So {pronoun} took a basket and went to the market. The way was long, and the sun was hot.",
        (
            "On the way {pronoun} met an old {friend_kind} who could not carry {its} bags. {name} "
            "stopped and helped."
        ),
        (
            "The old {friend_kind} gave {object} everything {pronoun} needed. That evening, {friend} "
            "had the best {food} in the world."
        ),
    ],
    [
        "{day} a big storm came over the {place}. The wind was loud, and {name} was afraid.",
        "{Pronoun} heard somebody crying outside. It was {friend}, a little {friend_kind}, cold and wet.",
        (
            '{name} opened the door and said, "Come in! It is warm here." {Pronoun} lit a candle and '
            "made some soup."
        ),
        "They told each other stories until the storm was over. From that day on, they were best friends.",
    ],
    [
        "{name} had a dream. {Pronoun} wanted to see the high mountain behind the {place}.",
        '"You are too small," said {friend}, the {friend_kind}. But {name} did not listen.',
        (
            "{day} {pronoun} packed {possessive} {colour} {thing} and a {food}, and began to walk. "
            "{Pronoun} climbed for a long time, and {pronoun} did not stop."
        ),
        (
            'When {name} stood on the top, {pronoun} could see the whole world. "It is never too '
            'early to try," {pronoun} said.'
        ),
    ],
    [
        (
            "{day} {name} and {possessive} friend {friend}, a clever {friend_kind}, both wanted the "
            "same {thing}."
        ),
        (
            '"It is mine!" said {name}. "No, it is mine!" said {friend}. They pulled and pulled '
            "until the {thing} broke."
        ),
        'Both of them were quiet. "I am sorry," said {name} at last. "I am sorry too," said {friend}.',
        "They mended the {thing} together, and from then on they shared it. It was more fun that way.",
    ],
    [
        "{day} {name} planted a tiny seed near the {place}. {Pronoun} gave it water every day.",
        '"Nothing will grow there," laughed {friend}, the {friend_kind}. But {name} waited and waited.',
        "Weeks went by. Then a small green leaf came out of the earth, and it grew and grew.",
        "In summer, there was a tall tree, and {name} and {friend} rested together in its shade.",
    ],
]
_ENDINGS = [
    "And they lived happily ever after.",
    "They were happy, and they never forgot that day.",
    "That night, {name} slept very well.",
    "And that is the end of the story.",
    "Since that day, {name} always helps others.",
    "",
]


def tell(rng: Random, who: Cast) -> str:
    """Tells a short story of one paragraph about the cast."""
    near = rng.choice(["near", "beside", "close to"])
    words = {
        **who.__dict__,
        "near": near,
        "Near": lx.cap(near),
        "Pronoun": lx.cap(who.pronoun),
        "day": rng.choice(_DAYS),
        "an_adjective": lx.a(who.adjective),
        "a_colour": lx.a(who.colour),
        "a_food": lx.a(who.food),
        "a_friend_kind": lx.a(who.friend_kind),
        "an_leaf": rng.choice(["a big leaf", "an old tree", "a flat stone"]),
        "object": "her" if who.pronoun == "she" else "him",
        "its": "the heavy",
    }
    parts = [rng.choice(_OPENINGS), *rng.choice(_PLOTS), rng.choice(_ENDINGS)]
    text = " ".join(part.format(**words) for part in parts if part)
    return text.replace(" a old ", " an old ")


def story_request(rng: Random) -> tuple[str, str, Cast]:
    """Returns a request for a story, the story, and its cast."""
    who = cast(rng)
    request = rng.choice(
        [
            "Tell me a story.",
            "Can you tell me a story?",
            "Please write a short story.",
            "I would like to hear a story.",
            f"Tell me a story about {lx.a(who.kind)}.",
            f"Write a story about {lx.a(who.adjective)} {who.kind}.",
            f"Tell me a story about {lx.a(who.kind)} named {who.name}.",
            f"Write a short story about {lx.a(who.kind)} and {lx.a(who.friend_kind)}.",
            f"Tell me a story about {who.name} and {who.friend}.",
            f"Can you write a story about {lx.a(who.kind)}?",
        ]
    )
    return request, tell(rng, who), who


def long_story_request(rng: Random) -> tuple[str, str]:
    """Returns a request for a long story, and a story in two to five chapters with the same hero."""
    hero = cast(rng)
    chapters = []
    for number in range(1, rng.randint(2, 5) + 1):
        again = cast(rng)
        chapter = replace(
            again,
            name=hero.name,
            kind=hero.kind,
            pronoun=hero.pronoun,
            possessive=hero.possessive,
            friend=hero.friend,
            friend_kind=hero.friend_kind,
            adjective=hero.adjective,
        )
        chapters.append(f"Chapter {lx.SMALL_NUMBERS[number]}\n{tell(rng, chapter)}")
    request = rng.choice(
        [
            "Tell me a long story.",
            "Can you tell me a very long story?",
            f"Write a long story about {lx.a(hero.kind)}.",
            f"Tell me a long story about {hero.name} and {hero.friend}.",
            "Write a story with several chapters.",
            f"Write a long story about {lx.a(hero.kind)} named {hero.name}.",
        ]
    )
    return request, "\n\n".join(chapters)


def story_questions(rng: Random, who: Cast) -> list[tuple[str, str]]:
    """Returns questions that the story answers, in random order."""
    asked = [
        (f"Where did {who.name} live?", f"{who.name} lived near the {who.place}."),
        (f"What kind of animal was {who.friend}?", f"{who.friend} was {lx.a(who.friend_kind)}."),
        ("Who is the story about?", f"The story is about {lx.a(who.kind)} named {who.name}."),
        (f"Who was {who.name}?", f"{who.name} was {lx.a(who.adjective)} {who.kind}."),
        ("What is the name of the friend?", f"The name of the friend is {who.friend}."),
        ("Did you like the story?", f"Yes, I did. I like {who.name} very much."),
    ]
    return rng.sample(asked, rng.randint(1, 3))


def describe(rng: Random) -> tuple[str, str]:
    """Returns a request for a description, and the description."""
    place, one, two = rng.choice(lx.PLACES), rng.choice(lx.ADJECTIVES[20:40]), rng.choice(lx.ADJECTIVES[:10])
    animal, thing = rng.choice(lx.ANIMALS), rng.choice(lx.OBJECTS)
    text = rng.choice(
        [
            f"The {place} is quiet in the morning. The air is fresh, and {lx.a(two)} {animal} "
            "rests in the sun. "
            f"Beside the road lies an old {thing} that nobody needs any more.",
            f"It is {lx.a(one)} place. In the middle of the {place} stands a tall tree, and "
            f"{lx.plural(animal)} play around it. "
            f"In the evening, the sky turns red and everything becomes still.",
            f"When you come to the {place}, you first hear the wind. Then you see {lx.a(two)} "
            f"{thing} and a small {animal}. "
            f"Everyone who visits the {place} wants to come back.",
        ]
    )
    return rng.choice(
        [f"Describe {lx.a(place)}.", f"Describe the {place} for me.", f"What does the {place} look like?"]
    ), text


_RHYMES = [
    ("day", "play", "way", "stay"),
    ("night", "light", "bright", "sight"),
    ("tree", "free", "see", "me"),
    ("rain", "train", "again", "plain"),
    ("moon", "soon", "tune", "noon"),
    ("star", "far", "are", "jar"),
]


def poem(rng: Random) -> tuple[str, str]:
    """Returns a request for a poem, and four lines that rhyme in pairs."""
    animal, adjective = rng.choice(lx.ANIMALS), rng.choice(lx.ADJECTIVES)
    first, second = rng.sample(
        [
            (
                f"The {adjective} {animal} walks along the way,",
                f"{lx.cap(rng.choice(['dreaming', 'singing', 'thinking']))} of a warm and sunny day.",
            ),
            (f"The {animal} looks up into the night,", "and all the stars are clear and bright."),
            (f"A little {animal} sits beside the tree,", "happy and quiet, wild and free."),
            (f"The {animal} listens to the falling rain,", "and hopes the sun will come again."),
            (f"The {adjective} {animal} smiles at the moon,", "the morning light is coming soon."),
            (f"The {animal} follows a silver star,", "over the hills, so high and far."),
        ],
        2,
    )
    text = "\n".join([*first, *(lx.cap(line) if index == 0 else line for index, line in enumerate(second))])
    return rng.choice(
        [f"Write a poem about {lx.a(animal)}.", f"Can you write a short poem about {lx.a(animal)}?"]
    ), text


def listing(rng: Random) -> tuple[str, str]:
    """Returns a request for a list, and a numbered, dashed or plain list."""
    words, name = rng.choice(
        [
            (lx.ANIMALS, "animals"),
            (lx.COLOURS, "colours"),
            (lx.FOODS, "things to eat"),
            (lx.PLACES, "places"),
            (lx.CITIES, "cities"),
            (lx.NAMES, "names"),
            (lx.OBJECTS, "things"),
            (list(lx.JOBS), "jobs"),
            (lx.DAYS, "days"),
            (lx.MONTHS, "months"),
        ]
    )
    count = rng.randint(2, 6)
    chosen = rng.sample(words, count)
    number = lx.SMALL_NUMBERS[count]
    style = rng.random()
    if style < 0.4:
        body = "\n".join(f"{index}. {word}" for index, word in enumerate(chosen, 1))
        return f"Give me a list of {number} {name}.", body
    if style < 0.6:
        return f"Write a list of {number} {name} with dashes.", "\n".join(f"- {word}" for word in chosen)
    text = ", ".join(chosen[:-1]) + f" and {chosen[-1]}"
    return rng.choice([f"Name {number} {name}.", f"Tell me {number} {name}."]), f"{lx.cap(text)}."


def letter(rng: Random) -> tuple[str, str]:
    """Returns a request for a letter, and the letter."""
    name, sender = rng.sample(lx.NAMES, 2)
    city, place, food = rng.choice(lx.CITIES), rng.choice(lx.PLACES), rng.choice(lx.FOODS)
    body = rng.choice(
        [
            f"thank you for your kind letter. I am well, and the weather in {city} is lovely. "
            f"Yesterday I walked to the {place} and thought of you. Please come and visit me soon.",
            f"I hope you are well. I am writing from {city}. Every morning I eat {lx.a(food)} and "
            f"walk around the {place}. "
            "I miss you, and I hope to see you in spring.",
        ]
    )
    text = f"Dear {name},\n{body}\nYour friend,\n{sender}"
    return rng.choice(
        [f"Write a letter from {sender} to {name}.", f"Please write a letter to {name}. My name is {sender}."]
    ), text
