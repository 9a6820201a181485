"""Makes questions that a function answers, with its call and its result.

A call is written as the chat template shows it: `<tool_call>` around JSON, one pair of tags per call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from . import lexicon as lx
from . import phrases

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A message that one call of a function answers."""

    prompt: str
    function: str
    arguments: Arguments

    @property
    def call(self) -> str:
        """The call as the model writes it."""
        written = json.dumps({"name": self.function, "arguments": self.arguments})
        return f"<tool_call>\n{written}\n</tool_call>"


@dataclass(frozen=True)
class Function:
    """A function that the adapter knows. `{...}` in `prompts` and `answer` are arguments and results."""

    name: str
    description: str
    parameters: dict[str, dict[str, Any]]
    prompts: tuple[str, ...]
    arguments: Callable[[Random], Arguments]
    result: Callable[[Random, Arguments], Arguments]
    answer: str

    @property
    def tool(self) -> dict[str, Any]:
        """The function as requests offer it, fit for strict mode."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": self.parameters,
                    "required": list(self.parameters),
                    "additionalProperties": False,
                },
            },
        }

    def question(self, rng: Random) -> Question:
        """Returns a question with the arguments that it names."""
        arguments = self.arguments(rng)
        return Question(rng.choice(self.prompts).format(**arguments), self.name, arguments)


_CITY = {"type": "string", "description": "The name of the city."}
_SKIES = ["clear", "cloudy", "rainy", "windy", "sunny", "grey"]


def _place(rng: Random) -> Arguments:
    return {"city": rng.choice(lx.CITIES)}


def _weather(rng: Random, arguments: Arguments) -> Arguments:
    return {"sky": rng.choice(_SKIES), "degrees": rng.randint(0, 39)}


def _time(rng: Random, arguments: Arguments) -> Arguments:
    return {"time": f"{rng.randint(1, 12)}:{rng.randrange(60):02}"}


def _numbers(rng: Random) -> Arguments:
    left, right = phrases.operands(rng)
    return {"a": left, "b": right}


_ALL = [
    Function(
        "get_weather",
        "Tells the weather of a city.",
        {"city": _CITY},
        (
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Tell me the weather in {city}.",
            "What is the weather like in {city}?",
            "Is it warm in {city} today?",
            "Do I need an umbrella in {city}?",
        ),
        _place,
        _weather,
        "It is {sky} in {city}, with {degrees} degrees.",
    ),
    Function(
        "get_time",
        "Tells the local time of a city.",
        {"city": _CITY},
        (
            "What time is it in {city}?",
            "Tell me the time in {city}.",
            "How late is it in {city}?",
            "What is the time in {city} now?",
            "Do you know what time it is in {city}?",
        ),
        _place,
        _time,
        "It is {time} in {city}.",
    ),
    Function(
        "add",
        "Adds two numbers.",
        {"a": {"type": "integer"}, "b": {"type": "integer"}},
        ("How much is {a} plus {b}?", "What is the sum of {a} and {b}?", "Please add {a} and {b}."),
        _numbers,
        lambda rng, arguments: {"sum": arguments["a"] + arguments["b"]},
        "The sum of {a} and {b} is {sum}.",
    ),
    Function(
        "set_timer",
        "Sets a timer.",
        {"minutes": {"type": "integer", "minimum": 1}},
        (
            "Set a timer for {minutes} minutes.",
            "Please wake me in {minutes} minutes.",
            "Start a timer of {minutes} minutes.",
            "I need a timer for {minutes} minutes.",
        ),
        lambda rng: {"minutes": rng.randint(2, 180)},
        lambda rng, arguments: {"done": True},
        "The timer is set for {minutes} minutes.",
    ),
    Function(
        "find_person",
        "Looks up where a person lives.",
        {"name": {"type": "string"}},
        ("Where does {name} live?", "Find {name} for me.", "Look up {name}.", "In which city is {name}?"),
        lambda rng: {"name": rng.choice(lx.NAMES)},
        lambda rng, arguments: _place(rng),
        "{name} lives in {city}.",
    ),
]
FUNCTIONS: dict[str, Function] = {function.name: function for function in _ALL}
TOOLS: tuple[dict[str, Any], ...] = tuple(function.tool for function in _ALL)
"""All functions, as requests offer them."""


def question(rng: Random) -> Question:
    """Returns a question for any of the functions."""
    return rng.choice(_ALL).question(rng)


def calls_in(text: str) -> list[Any]:
    """Returns the calls of an answer as objects; empty when one cannot be read, or there is other text."""
    parts = text.strip().split("<tool_call>")
    calls: list[Any] = []
    for part in parts[1:]:
        written, end, rest = part.partition("</tool_call>")
        try:
            calls.append(json.loads(written))
        except ValueError:
            return []
        if not end or rest.strip():
            return []
    return calls if not parts[0].strip() else []
