"""Lists the words that Sapling learns, with their plurals, verb forms and a few facts per word."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


ANIMALS = _words(
    """
    fox dog cat bird horse cow pig sheep goat hen duck goose mouse rabbit bear wolf lion tiger
    elephant monkey frog fish snake owl bee ant deer turtle whale shark camel donkey crab spider
    butterfly squirrel hedgehog penguin parrot eagle swan beaver otter kitten puppy
    """
)
OBJECTS = _words(
    """
    box book lamp chair table cup bowl plate spoon knife fork pot basket bag hat coat shoe sock
    scarf glove ring key door window clock bell drum flute ball kite doll rope hammer nail brush pen
    pencil letter map candle mirror blanket pillow bed boat ship car bus train bike wagon wheel leaf
    stone shell feather stick coin flag ladder bucket bottle watch dress button picture umbrella
    """
)
PLACES = _words(
    """
    forest river lake hill mountain valley garden field farm village town city house castle bridge
    market school beach island cave park library kitchen barn meadow pond road tower mill harbour
    """
)
FOODS = _words(
    """
    apple pear cherry berry peach plum orange lemon grape melon banana carrot potato tomato onion
    bean pea cake pie cookie egg sandwich pancake
    """
)
PEOPLE = _words(
    """
    child man woman boy girl king queen farmer baker teacher doctor sailor miller painter singer
    friend brother sister baby lady driver gardener
    """
)
JOBS = {
    "baker": "bakes bread and cakes",
    "farmer": "grows food and looks after animals",
    "teacher": "helps people learn",
    "doctor": "helps people who are ill",
    "sailor": "works on a ship",
    "miller": "grinds grain into flour",
    "painter": "paints pictures and walls",
    "singer": "sings songs for people",
    "driver": "drives a car, a bus or a train",
    "gardener": "looks after plants and flowers",
    "nurse": "cares for people who are ill",
    "pilot": "flies a plane",
    "cook": "makes meals in a kitchen",
    "writer": "writes books and stories",
    "builder": "builds houses and bridges",
}
NOUNS = ANIMALS + OBJECTS + PLACES + FOODS + PEOPLE

_IRREGULAR_PLURALS = {
    "sheep": "sheep",
    "goose": "geese",
    "mouse": "mice",
    "wolf": "wolves",
    "fish": "fish",
    "deer": "deer",
    "knife": "knives",
    "leaf": "leaves",
    "scarf": "scarves",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "child": "children",
    "man": "men",
    "woman": "women",
}

ADJECTIVES = _words(
    """
    red blue green yellow white black brown grey golden silver big small tall short long old young
    new happy sad brave kind clever quiet loud quick slow warm cold bright dark soft hard heavy
    light strong weak clean dirty round flat sweet sour fresh dry wet deep high low thin thick rich
    poor shy proud gentle hungry sleepy busy lazy funny strange lovely tiny huge broken shiny wooden
    empty full simple rare calm wild
    """
)
COLOURS = _words(
    """
    red blue green yellow white black brown grey golden silver
    """
)
ADVERBS = _words(
    """
    quickly slowly quietly loudly happily sadly gently bravely softly often always never again today
    tomorrow together alone outside inside early late away home
    """
)
# base, third person, past, -ing
VERBS = [
    tuple(row.split())
    for row in """run runs ran running
walk walks walked walking
jump jumps jumped jumping
sleep sleeps slept sleeping
sing sings sang singing
dance dances danced dancing
swim swims swam swimming
laugh laughs laughed laughing
cry cries cried crying
play plays played playing
work works worked working
rest rests rested resting
wait waits waited waiting
smile smiles smiled smiling
talk talks talked talking
listen listens listened listening
look looks looked looking
hide hides hid hiding
climb climbs climbed climbing
fall falls fell falling
stand stands stood standing
sit sits sat sitting
dream dreams dreamed dreaming
grow grows grew growing
travel travels travelled travelling
shout shouts shouted shouting
stop stops stopped stopping
turn turns turned turning
eat eats ate eating
drink drinks drank drinking""".splitlines()
]
TRANSITIVE = [
    tuple(row.split())
    for row in """see sees saw seeing
find finds found finding
love loves loved loving
carry carries carried carrying
make makes made making
paint paints painted painting
bring brings brought bringing
buy buys bought buying
sell sells sold selling
hold holds held holding
wash washes washed washing
want wants wanted wanting
need needs needed needing
like likes liked liking
watch watches watched watching
follow follows followed following
help helps helped helping
meet meets met meeting
take takes took taking
give gives gave giving
draw draws drew drawing
push pushes pushed pushing
pull pulls pulled pulling
move moves moved moving
know knows knew knowing
lose loses lost losing
keep keeps kept keeping
hear hears heard hearing""".splitlines()
]
PREPOSITIONS = _words(
    """
    near in by behind under over beside across from to with
    """
)
DETERMINERS = _words(
    """
    the a my your his her our their this that one every
    """
)

GIRLS = _words(
    """
    Anna Mia Emma Lily Nora Sara Clara Ella Rosa Ida Maya Lena Zoe Ruth Alice Julia Amy Lucy Eva
    Nina Olga Ines Vera Kate
    """
)
BOYS = _words(
    """
    Tom Ben Max Leo Sam Jack Paul Noah Finn Omar Ravi Hugo Adam Luke Oscar Peter Carl Ali Ivan Mark
    David Felix Henry Theo
    """
)
NAMES = GIRLS + BOYS
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "England": "London",
    "Austria": "Vienna",
    "Portugal": "Lisbon",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Poland": "Warsaw",
    "Ireland": "Dublin",
    "Egypt": "Cairo",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "Delhi",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Cuba": "Havana",
    "Canada": "Ottawa",
    "Hungary": "Budapest",
    "Chile": "Santiago",
    "Turkey": "Ankara",
    "Russia": "Moscow",
}
CITIES = list(CAPITALS.values())
DAYS = _words(
    """
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
MONTHS = _words(
    """
    January February March April May June July August September October November December
    """
)
SMALL_NUMBERS = _words(
    """
    zero one two three four five six seven eight nine ten eleven twelve
    """
)

# animal: sound, home, food, young, legs
ANIMAL_FACTS = {
    "dog": ("woof", "in a house with people", "meat and bones", "puppy", 4),
    "cat": ("meow", "in a house with people", "fish and mice", "kitten", 4),
    "cow": ("moo", "on a farm", "grass", "calf", 4),
    "pig": ("oink", "on a farm", "corn and vegetables", "piglet", 4),
    "sheep": ("baa", "on a farm", "grass", "lamb", 4),
    "horse": ("neigh", "in a stable", "grass and hay", "foal", 4),
    "duck": ("quack", "on a pond", "water plants", "duckling", 2),
    "hen": ("cluck", "on a farm", "seeds", "chick", 2),
    "frog": ("croak", "in a pond", "flies", "tadpole", 4),
    "owl": ("hoot", "in the forest", "mice", "owlet", 2),
    "lion": ("roar", "in the grasslands", "meat", "cub", 4),
    "bee": ("buzz", "in a hive", "nectar from flowers", "larva", 6),
    "bear": ("growl", "in the forest", "berries, fish and honey", "cub", 4),
    "wolf": ("howl", "in the forest", "meat", "cub", 4),
    "snake": ("hiss", "in warm places", "mice and eggs", "snakelet", 0),
    "mouse": ("squeak", "in fields and houses", "seeds and cheese", "pup", 4),
    "goose": ("honk", "near a lake", "grass", "gosling", 2),
    "fox": ("yelp", "in a den in the forest", "mice, birds and berries", "cub", 4),
}
OPPOSITE_PAIRS = [
    tuple(pair.split("/"))
    for pair in _words(
        """
        big/small tall/short long/short old/young happy/sad quiet/loud quick/slow warm/cold bright/dark
        soft/hard heavy/light strong/weak clean/dirty sweet/sour dry/wet deep/shallow high/low
        thin/thick rich/poor empty/full early/late hot/cold open/closed day/night up/down left/right
        good/bad fast/slow first/last inside/outside always/never begin/end love/hate give/take buy/sell
        push/pull win/lose black/white near/far above/below
        """
    )
]
THING_COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "the sun": "yellow",
    "a lemon": "yellow",
    "a tomato": "red",
    "a carrot": "orange",
    "milk": "white",
    "blood": "red",
    "a leaf": "green",
    "chocolate": "brown",
    "a banana": "yellow",
    "an elephant": "grey",
    "a cherry": "red",
    "the sea": "blue",
    "a cloud": "white",
}
USES = {
    "spoon": "eating soup",
    "knife": "cutting bread",
    "cup": "drinking tea",
    "lamp": "making light",
    "key": "opening a door",
    "clock": "telling the time",
    "pen": "writing",
    "brush": "painting",
    "bed": "sleeping",
    "umbrella": "keeping dry in the rain",
    "ladder": "climbing up high",
    "hammer": "driving nails into wood",
    "map": "finding the way",
    "boat": "travelling on water",
    "bucket": "carrying water",
    "bell": "making a sound",
    "mirror": "seeing your own face",
    "blanket": "keeping warm",
    "basket": "carrying fruit",
    "coat": "keeping warm outside",
    "chair": "sitting",
    "rope": "tying things together",
    "book": "reading",
    "drum": "making music",
    "pot": "cooking",
    "candle": "making light",
    "bike": "riding on the road",
}
DEFINITIONS = {
    "a river": "a long stream of water that flows to the sea",
    "a mountain": "a very high hill, often made of rock",
    "an island": "a piece of land with water all around it",
    "a forest": "a large place full of trees",
    "a lake": "a large area of water with land around it",
    "a village": "a small group of houses in the country",
    "a city": "a very large town where many people live",
    "a castle": "a big, strong house with thick walls and towers",
    "a bridge": "a road that goes over a river or a valley",
    "a farm": "a place where people grow food and keep animals",
    "a library": "a place full of books that people may borrow",
    "a market": "a place where people buy and sell things",
    "a cave": "a dark hole in a hill or a rock",
    "rain": "water that falls from the clouds",
    "snow": "frozen water that falls from the clouds in soft, white flakes",
    "wind": "air that moves",
    "the sun": "a star that gives us light and warmth",
    "the moon": "a round rock that travels around the earth",
    "a star": "a very hot ball of gas, far away in the sky",
    "a tree": "a tall plant with a trunk, branches and leaves",
    "a seed": "a small part of a plant from which a new plant grows",
    "honey": "a sweet food that bees make from nectar",
    "bread": "a food made from flour, water and salt",
    "a friend": "a person you like and trust",
    "a dream": "a story your mind tells you while you sleep",
    "a song": "music with words that people sing",
    "a computer": "a machine that works with numbers and words",
    "winter": "the coldest season of the year",
    "summer": "the warmest season of the year",
    "spring": "the season when flowers begin to grow",
    "autumn": "the season when leaves turn red and fall",
    "music": "sounds put together so that they please the ear",
    "a map": "a drawing that shows where places are",
    "a poem": "a short text with a rhythm, and often with rhymes",
}


def plural(noun: str) -> str:
    """Returns the plural of a noun of this lexicon."""
    if noun in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[noun]
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def a(noun: str) -> str:
    """Returns the noun, or noun phrase, with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" and not noun.startswith("one") else f"a {noun}"


def cap(text: str) -> str:
    """Returns the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]
