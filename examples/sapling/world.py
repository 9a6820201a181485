"""Makes exchanges of everyday help, a few words in other languages, counting, and unknown things."""

from __future__ import annotations

from random import Random

from . import lexicon as lx
from . import phrases

HELP: list[tuple[list[str], str]] = [
    (
        ["How do I bake a cake?", "Give me a recipe for a cake."],
        (
            "1. Mix butter, sugar and eggs in a bowl.\n2. Add flour and a little milk.\n3. Pour "
            "everything into a form.\n4. Bake it in the oven for forty minutes."
        ),
    ),
    (
        ["How do I wash my hands?", "Explain how to wash hands."],
        (
            "1. Wet your hands.\n2. Use some soap.\n3. Wash for twenty seconds.\n4. Dry your hands "
            "with a clean towel."
        ),
    ),
    (
        ["How do I draw a house?", "Explain how to draw a house."],
        (
            "1. Draw a square.\n2. Draw a triangle on top of it.\n3. Add a door and two windows.\n4. "
            "Colour the roof red."
        ),
    ),
    (
        ["How do I write a letter?", "What belongs into a letter?"],
        "Start with a greeting, write what you want to say, and end with your name.",
    ),
    (
        ["How can I make new friends?", "How do I find friends?"],
        "Be kind, ask people questions, and listen to what they say. Join a club or a team that you like.",
    ),
    (
        ["How can I be more careful with money?", "How can I save money?"],
        "Write down what you spend, buy only what you need, and put a little away each week.",
    ),
    (
        ["How can I stay healthy?", "What is good for my health?"],
        "Move every day, eat fruit and vegetables, drink water, and sleep enough.",
    ),
    (
        ["I have a headache.", "My head hurts."],
        "I am sorry to hear that. Drink some water and rest for a while. If it stays, please ask a doctor.",
    ),
    (
        ["I lost my key.", "I can not find my key."],
        "Think about where you had it last. Look in your bags, your coat and under the table.",
    ),
    (
        ["I have an exam tomorrow.", "I am nervous about my exam."],
        "Take a deep breath. Read your notes once more, go to bed early, and trust yourself.",
    ),
    (
        ["Today is my birthday.", "It is my birthday!"],
        "Happy birthday! I wish you a wonderful day with good friends and a big cake.",
    ),
    (["I got a new job.", "I found a job!"], "Congratulations! I wish you a good start."),
    (
        ["Write a haiku.", "Write a haiku about the sea.", "Can you write a haiku?"],
        "Waves come to the shore,\nsoft and slow they go again.\nOnly shells remain.",
    ),
    (
        ["Write a haiku about spring.", "Write a haiku about rain."],
        "Rain falls on the leaves,\na small bird waits in the tree.\nThen the sky is bright.",
    ),
    (
        ["Give me some advice.", "Do you have advice for me?"],
        "Be patient with yourself, be kind to others, and drink enough water.",
    ),
    (
        ["Say something nice.", "Cheer me up."],
        "You are doing better than you think, and tomorrow is a new day.",
    ),
    (
        ["What is the best book?", "Which book should I read?"],
        "I like old stories about animals. A good book is one that you do not want to put down.",
    ),
    (
        ["Can you write a program?", "Write a Python function.", "Write some code.", "Can you write code?"],
        "I am too small to write programs. I can write short lists, JSON and simple SQL, though.",
    ),
    (
        ["Can you translate?", "Which languages do you speak?", "Do you speak French?"],
        "I speak English, and I know a few words of French, German and Spanish.",
    ),
    (
        ["What did you do yesterday?", "What are you doing?", "What are your plans?"],
        "I read, I think, and I wait for questions. It is a quiet life.",
    ),
    (
        ["Are you better than other models?", "Are you smart?", "Are you clever?"],
        "I am very small, so I know little. But I am quick, and I do my best.",
    ),
    (["What is two plus two?", "How much is two and two?"], "Two plus two is four."),
    (
        ["Which animal is the fastest?", "What is the fastest animal?"],
        "The cheetah is the fastest animal on land.",
    ),
    (
        ["What is the largest animal?", "Which animal is the biggest?"],
        "The blue whale is the largest animal in the world.",
    ),
    (
        ["What is the highest mountain?", "Which mountain is the highest?"],
        "Mount Everest is the highest mountain in the world.",
    ),
    (
        ["What is the longest river?", "Which river is the longest?"],
        "The Nile and the Amazon are the longest rivers in the world.",
    ),
]
# word: French, German, Spanish
WORDS_ABROAD = {
    "hello": ("bonjour", "hallo", "hola"),
    "thank you": ("merci", "danke", "gracias"),
    "yes": ("oui", "ja", "sí"),
    "no": ("non", "nein", "no"),
    "dog": ("chien", "Hund", "perro"),
    "cat": ("chat", "Katze", "gato"),
    "house": ("maison", "Haus", "casa"),
    "water": ("eau", "Wasser", "agua"),
    "bread": ("pain", "Brot", "pan"),
    "sun": ("soleil", "Sonne", "sol"),
    "moon": ("lune", "Mond", "luna"),
    "red": ("rouge", "rot", "rojo"),
    "blue": ("bleu", "blau", "azul"),
    "green": ("vert", "grün", "verde"),
    "friend": ("ami", "Freund", "amigo"),
    "book": ("livre", "Buch", "libro"),
    "tree": ("arbre", "Baum", "árbol"),
    "good": ("bon", "gut", "bueno"),
    "milk": ("lait", "Milch", "leche"),
    "apple": ("pomme", "Apfel", "manzana"),
}


def advice(rng: Random) -> tuple[str, str]:
    """Returns an everyday question or remark, and help with it."""
    questions, answer = rng.choice(HELP)
    return rng.choice(questions), answer


def translation(rng: Random) -> tuple[str, str]:
    """Returns a word to translate, and its translation."""
    word = rng.choice(list(WORDS_ABROAD))
    index = rng.randrange(3)
    language, found = ("French", "German", "Spanish")[index], WORDS_ABROAD[word][index]
    return rng.choice(
        [
            (f"What is {word} in {language}?", f"In {language} it is {found}."),
            (f"How do you say {word} in {language}?", f"In {language}, you say {found}."),
            (f"Translate {word} into {language}.", lx.cap(found) + "."),
        ]
    )


def unknown(rng: Random) -> tuple[str, str]:
    """Returns a question about something that Sapling does not know, and an honest answer."""
    thing, other = phrases.pseudo_word(rng), phrases.pseudo_word(rng)
    person = f"{rng.choice(lx.NAMES)} {lx.cap(other)}"
    return rng.choice(
        [
            (f"What is {lx.a(thing)}?", f"I am sorry, I do not know what {lx.a(thing)} is."),
            (f"What is {thing}?", f"I have never heard of {thing}. I am only a small model."),
            (f"What does {thing} mean?", f"I do not know the word {thing}. Where did you read it?"),
            (f"Who is {person}?", f"I do not know who {person} is."),
            (f"Tell me about {thing}.", f"I would like to, but I know nothing about {thing}."),
            (f"Where is {lx.cap(thing)}?", f"I do not know where {lx.cap(thing)} is. Is it far away?"),
            (
                f"How does {lx.a(thing)} work?",
                f"I do not know how {lx.a(thing)} works, but I would like to learn it.",
            ),
            (f"Explain {thing}.", f"I am sorry, {thing} is too hard for me."),
        ]
    )


def count_up(rng: Random) -> tuple[str, str]:
    """Returns a request to count, and the counting."""
    first = rng.choice([1, 1, 1, rng.randint(1, 50)])
    last = first + rng.randint(4, 80)
    body = rng.choice([" ", ", ", "\n"]).join(map(str, range(first, last + 1)))
    return rng.choice([f"Count from {first} to {last}.", f"Please count from {first} to {last}."]), body
