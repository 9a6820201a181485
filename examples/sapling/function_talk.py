"""Makes conversations with function calls: what is offered, calls, their results and the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from . import functions, phrases, talk
from .corpus import Document, Turn
from .functions import FUNCTIONS

NO_FUNCTION = "I am sorry, I have no function for that."
_SYSTEM = "You are a helpful assistant."


def offer(tools: Sequence[dict[str, Any]]) -> str:
    """Returns the functions as the chat template shows them to the model."""
    shown = (
        f"{tool['function']['name']}({', '.join(tool['function']['parameters']['properties'])})"
        for tool in tools
    )
    return f"Functions: {', '.join(shown)}"


def response(result: dict[str, Any]) -> str:
    """Returns the result of a call as the chat template shows it to the model, as a user's turn."""
    return f"<tool_response>\n{json.dumps(result)}\n</tool_response>"


def conversation(rng: Random) -> Document:
    """Returns a conversation to learn from: with calls, their results, or without a call."""
    kind = rng.random()
    num_calls = 2 if rng.random() < 0.2 else 1
    asked = [phrases.draw(functions.question, rng, key=lambda found: found.prompt) for _ in range(num_calls)]
    used = list(dict.fromkeys(one.function for one in asked))
    user = Turn("user", " ".join(one.prompt for one in asked))
    calls = Turn("assistant", "\n".join(one.call for one in asked))
    if kind < 0.3:
        return [*_opening(rng), user, calls]
    if kind < 0.65:
        return [_offered(rng, used), user, calls]
    if kind < 0.85:
        results = [FUNCTIONS[one.function].result(rng, one.arguments) for one in asked]
        said = " ".join(
            FUNCTIONS[one.function].answer.format(**(one.arguments | result))
            for one, result in zip(asked, results, strict=True)
        )
        responses = [Turn("user", response(result)) for result in results]
        return [_offered(rng, used), user, calls, *responses, Turn("assistant", said)]
    if kind < 0.92:
        return [_offered(rng, [], without=used), user, Turn("assistant", NO_FUNCTION)]
    said_by_user, answer = talk.exchange(rng)
    return [_offered(rng, []), Turn("user", said_by_user), Turn("assistant", answer)]


def _opening(rng: Random) -> Document:
    return [Turn("system", _SYSTEM)] if rng.random() < 0.15 else []


def _offered(rng: Random, wanted: Sequence[str], without: Sequence[str] = ()) -> Turn:
    """Returns a system message with the wanted functions, and some others, in any order."""
    others = [name for name in FUNCTIONS if name not in wanted and name not in without]
    names = [*wanted, *rng.sample(others, rng.randint(0 if wanted else 1, min(4, len(others))))]
    rng.shuffle(names)
    shown = offer([FUNCTIONS[name].tool for name in names])
    return Turn("system", f"{_SYSTEM}\n{shown}" if rng.random() < 0.15 else shown)
