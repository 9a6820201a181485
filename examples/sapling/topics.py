"""Lists topics and what Sapling knows about each."""

from __future__ import annotations

from random import Random

# topic as it is asked for | one or two sentences about it
TOPICS: dict[str, tuple[str, ...]] = {
    "the sun": (
        (
            "The sun is a star in the middle of our solar system. It gives light and warmth to the "
            "earth, and without it nothing could grow."
        ),
    ),
    "the moon": (
        (
            "The moon travels around the earth in about four weeks. It has no light of its own: it "
            "shines because the sun shines on it."
        ),
    ),
    "the earth": (
        (
            "The earth is the planet we live on. Most of it is covered with water, and it travels "
            "around the sun once a year."
        ),
    ),
    "the planets": (
        "Eight planets travel around the sun. The earth is the third one, and the largest one is Jupiter.",
    ),
    "the stars": (
        "Stars are very large and very hot balls of gas. They look small because they are so far away.",
    ),
    "the sea": (
        (
            "The sea covers most of the earth. Its water is salty, and it is home to fish, whales "
            "and many other animals."
        ),
    ),
    "plants": (
        (
            "Plants need water, air and light. With their leaves they catch the light of the sun and "
            "turn it into food."
        ),
    ),
    "photosynthesis": (
        (
            "Plants use light, water and air to make sugar. This is called photosynthesis, and it "
            "also makes the air fresh for us."
        ),
    ),
    "trees": (
        (
            "Trees are tall plants with a trunk of wood. They clean the air, give shade, and are a "
            "home for birds and insects."
        ),
    ),
    "flowers": (
        (
            "Flowers have bright colours to call bees and butterflies. They carry the pollen from "
            "one flower to the next."
        ),
    ),
    "rainbows": (
        (
            "A rainbow appears when the sun shines while it rains. The drops of water split the "
            "light into all of its colours."
        ),
    ),
    "thunder": (
        (
            "Thunder is the sound of lightning. Light is faster than sound, so we see the flash "
            "before we hear it."
        ),
    ),
    "volcanoes": (
        "A volcano is a mountain with a hole in the middle. Sometimes hot, melted rock comes out of it.",
    ),
    "dinosaurs": (
        (
            "Dinosaurs were large animals that lived long before people. They died out many millions "
            "of years ago."
        ),
    ),
    "computers": (
        (
            "A computer is a machine that follows instructions very quickly. It works with numbers, "
            "words, pictures and sounds."
        ),
    ),
    "language models": (
        (
            "A language model has read a lot of text and learned which word is likely to come next. "
            "That is how it can answer questions."
        ),
    ),
    "a neural network": (
        (
            "A neural network is a program made of many small numbers that are changed step by step "
            "until its answers become good."
        ),
    ),
    "an adapter": (
        (
            "An adapter is a small set of numbers that is added to a model. It teaches the model a "
            "new habit without changing the rest."
        ),
    ),
    "the internet": (
        (
            "The internet connects computers all over the world, so that people can send each other "
            "messages, pictures and films."
        ),
    ),
    "electricity": (
        (
            "Electricity is a form of energy. It makes lamps shine and machines run, and it travels "
            "through wires of metal."
        ),
    ),
    "a train": (
        "A train runs on rails and carries many people at once. It is a quick and quiet way to travel.",
    ),
    "a bicycle": (
        (
            "A bicycle has two wheels and two pedals. You keep your balance while you ride, and it "
            "needs no fuel."
        ),
    ),
    "money": (
        "People use money to buy and sell things. It can be coins, notes, or only a number in a bank.",
    ),
    "a bank": ("A bank keeps money safe for people, and it lends money to those who need it.",),
    "a school": (
        (
            "A school is a place where children learn to read, to write and to count, and where they "
            "meet their friends."
        ),
    ),
    "a hospital": ("A hospital is a place where doctors and nurses take care of people who are ill.",),
    "football": (
        (
            "Football is a game for two teams. The players kick a ball, and they try to get it into "
            "the goal of the other team."
        ),
    ),
    "chess": (
        (
            "Chess is a game for two players on a board with black and white squares. You win when "
            "the other king can not escape."
        ),
    ),
    "music": (
        (
            "Music is made of sounds and silence. It can make people happy or sad, and everyone can "
            "sing a little."
        ),
    ),
    "a piano": (
        (
            "A piano has black and white keys. When you press a key, a small hammer hits a string "
            "and makes a sound."
        ),
    ),
    "bread": (
        (
            "Bread is made from flour, water, salt and yeast. You mix it, let it rest until it has "
            "grown, and bake it in a hot oven."
        ),
    ),
    "chocolate": (
        "Chocolate is made from the beans of the cocoa tree. With milk and sugar it becomes sweet.",
    ),
    "coffee": (
        (
            "Coffee is a hot drink made from roasted beans. Many people drink it in the morning "
            "because it wakes them up."
        ),
    ),
    "tea": (
        (
            "Tea is made from dried leaves and hot water. It comes from Asia, and people all over "
            "the world drink it."
        ),
    ),
    "cheese": (
        (
            "Cheese is made from milk. There are hundreds of kinds, and some of them become better "
            "when they are old."
        ),
    ),
    "water": (
        "Water has no colour and no taste. All living things need it, and it can be ice, water or vapour.",
    ),
    "ice": ("Ice is frozen water. It is lighter than water, so it swims on top of it.",),
    "the wind": (
        "Wind is air that moves from one place to another. It can push ships, turn mills and carry seeds.",
    ),
    "the heart": ("The heart is a strong muscle. It pumps blood through the whole body, day and night.",),
    "the brain": (
        "The brain is the part of the body that thinks, remembers and decides. It is inside the head.",
    ),
    "a dream": (
        (
            "A dream is a story that the mind tells while the body sleeps. Most dreams are forgotten "
            "in the morning."
        ),
    ),
    "time": ("Time moves in one direction only. We measure it in seconds, minutes, hours, days and years.",),
    "history": (
        (
            "History tells us how people lived in the past. We know it from old books, buildings and "
            "things in the ground."
        ),
    ),
    "Africa": (
        (
            "Africa is a large continent with deserts, forests and wide grasslands. Lions and "
            "elephants live there."
        ),
    ),
    "Europe": (
        (
            "Europe is a continent with many countries and many languages. Paris, Rome and Berlin "
            "are some of its cities."
        ),
    ),
    "Asia": (
        (
            "Asia is the largest continent. More than half of all people live there, and China, "
            "India and Japan belong to it."
        ),
    ),
    "the desert": (
        (
            "A desert is a dry place where it almost never rains. Camels can live there because they "
            "need little water."
        ),
    ),
    "friendship": (
        (
            "Friendship means that two people like and trust each other, and that they help each "
            "other in good and in bad times."
        ),
    ),
    "courage": ("Courage means that you do the right thing even though you are afraid.",),
    "a haiku": (
        "A haiku is a very short poem from Japan. It has three lines, and it often speaks about nature.",
    ),
}


def topic(rng: Random) -> tuple[str, str]:
    """Returns a request about a topic, and what Sapling knows about it."""
    name = rng.choice(list(TOPICS))
    ask = [
        "Tell me about {0}.",
        "What can you tell me about {0}?",
        "Explain {0}.",
        "Please explain {0} to me.",
        "What do you know about {0}?",
        "Can you tell me something about {0}?",
        "Write a few words about {0}.",
    ]
    return rng.choice(ask).format(name), rng.choice(TOPICS[name])
