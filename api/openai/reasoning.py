"""Maps a request's reasoning fields to variables of the chat template and to the engine's `Reasoning`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from api.errors import InvalidValue, UnsupportedParameter
from api.openai.decoding import output_constraints
from api.openai.prompts import refuse_too_long
from api.openai.reasoning_turns import refuse_reasoning_turns
from api.openai.schemas import ChatCompletionRequest
from engine.protocol import EngineInfo, Reasoning
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import OfferedReasoning
from tokenization.reasoning.formats import ReasoningFormat


class Thinking(NamedTuple):
    """The thinking that may precede an answer: its format, and the engine's parameters."""

    format: ReasoningFormat
    reasoning: Reasoning


@dataclass(frozen=True, slots=True)
class RequestedReasoning:
    """What a request wants of the model's thinking."""

    format: ReasoningFormat | None
    """None: the model does not think."""
    is_on: bool | None = None
    """None: as the chat template has it."""
    budget: int | None = None
    """Tokens of thinking; None: no bound."""
    keeps_space: bool = False
    """The answer has a format that counts white space before it. The grammar of tools does not: a message
    may call none of them, and is text."""

    @property
    def template_options(self) -> dict[str, bool]:
        """Variables for the chat template."""
        if self.format is None or self.format.switch is None or self.is_on is None:
            return {}
        return {self.format.switch: self.is_on}

    def begin(
        self, prompt_ids: list[int], text: TextCodec, info: EngineInfo
    ) -> tuple[list[int], Thinking | None]:
        """Returns (the prompt as the engine gets it, the thinking that may follow).

        If the chat template cannot turn thinking off, the end of it is appended to the prompt. Raises
        ContextLengthExceeded if that does not fit.
        """
        format = self.format
        if format is None:
            return prompt_ids, None
        opening = format.opening(prompt_ids)
        if self.is_on is False:
            closed_ids = prompt_ids + text.encode_part(format.closing(opening))
            refuse_too_long(len(closed_ids), info, "messages", exact=True)
            return closed_ids, None
        reasoning = format.reasoning(opening, self.budget, self.keeps_space)
        return prompt_ids, None if reasoning is None else Thinking(format, reasoning)


def requested_reasoning(body: ChatCompletionRequest, offered: OfferedReasoning | None) -> RequestedReasoning:
    """Returns what the request wants of the model's thinking.

    Raises:
        InvalidValue: fields contradict each other.
        UnsupportedParameter: the request wants reasoning of a model that has none.
    """
    switches = _switches(body)
    on, off = ([field for field, is_on in switches.items() if is_on is state] for state in (True, False))
    if offered is None:
        if on:
            raise UnsupportedParameter(
                f"This model does not reason: leave '{on[0]}' out, or turn reasoning off with it.", on[0]
            )
        refuse_reasoning_turns(body.messages)
        return RequestedReasoning(None)
    if on and off:
        raise InvalidValue(f"'{on[0]}' asks for reasoning, and '{off[0]}' turns it off.", off[0])
    budget = body.thinking_budget if body.thinking_budget is not None else body.thinking_token_budget
    if budget is None and body.reasoning_effort is not None:
        budget = offered.budgets.get(body.reasoning_effort)
    is_on = True if on else False if off else None
    return RequestedReasoning(offered.format, is_on, budget, bool(output_constraints(body)))


def _switches(body: ChatCompletionRequest) -> dict[str, bool]:
    """Returns the fields that say whether the model is to think, and what they say."""
    found: dict[str, bool] = {}
    if body.reasoning_effort is not None:
        found["reasoning_effort"] = body.reasoning_effort != "none"
    budgets = {name: getattr(body, name) for name in ("thinking_budget", "thinking_token_budget")}
    if None not in budgets.values() and len(set(budgets.values())) > 1:
        raise InvalidValue(
            "'thinking_budget' and 'thinking_token_budget' are two names of one number, and differ.",
            "thinking_token_budget",
        )
    found |= {name: budget > 0 for name, budget in budgets.items() if budget is not None}
    options = body.chat_template_kwargs
    for name in () if options is None else ("enable_thinking", "thinking"):
        is_on = getattr(options, name)
        if is_on is not None:
            found[f"chat_template_kwargs.{name}"] = is_on
    return found
