"""Models that think, through the stock client: bounded, streamed apart from the answer, counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.protocol import Submit
from tests.api.conftest import Served, build, serving
from tests.api.fakes import KEY
from tests.api.test_documentation import PAGE, example
from tests.support.reasoning_templates import DEEPSEEK_R1, DEEPSEEK_V31, QWEN3
from tests.support.text_base import TEMPLATE, write_base
from tokenization.codec import TextCodec
from tokenization.reasoning.efforts import DEFAULT_BUDGETS, OfferedReasoning
from tokenization.reasoning.formats import ReasoningFormat
from tokenization.tools.formats import ToolFormat

HELLO: Any = [{"role": "user", "content": "Hello there"}]
THOUGHT = "<think>\nWhat could\n they want?\n</think>\n\nHello 🙂"
WEATHER: Any = {"type": "function", "function": {"name": "get_weather"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>'


def started(folder: Path, template: str) -> Any:
    codec = TextCodec.load(write_base(folder, template))
    tools = ToolFormat.of(codec)
    format = ReasoningFormat.of(codec, tools=tools)
    reasoning = None if format is None else OfferedReasoning.of(format, {"low": 100})
    return serving(build(codec, tool_format=tools, reasoning=reasoning))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with started(tmp_path, QWEN3) as running:
        yield running


def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0)


def says(served: Served, text: str, **options: Any) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, text, **options)


def ask(served: Served, **fields: Any) -> Any:
    with client(served) as sdk:
        messages = fields.pop("messages", HELLO)
        answer: Any = sdk.chat.completions.create(model="sapling", messages=messages, **fields)
        return list(answer) if fields.get("stream") else answer


def submitted(served: Served) -> Submit:
    return served.world.engine.submitted[-1]


def prompt_of(served: Served) -> str:
    """The last prompt as text, without special tokens."""
    return served.world.services.pools.default.text.vocabulary.decode(submitted(served).prompt_ids).decode()


def test_the_example_of_the_documentation(served: Served) -> None:
    says(served, "<think>52 and a day.</think>52", reasoning_tokens=7)
    with client(served) as sdk:
        names: dict[str, Any] = {"client": sdk}
        exec(example("Reasoning"), names)
    message = names["answer"].choices[0].message
    assert (message.reasoning, message.content) == ("52 and a day.", "52")
    reasoning = submitted(served).reasoning
    assert reasoning is not None
    assert reasoning.budget == 200


def test_the_documentation_has_the_default_budgets() -> None:
    section = PAGE.read_text().split("\n## Reasoning\n")[1].split("\n## ")[0]
    for effort, budget in DEFAULT_BUDGETS.items():
        said = "no bound" if budget is None else f"{budget:,}".replace(",", " ")
        assert f"`{effort}` {said}" in section


def test_thinking_and_answer_are_apart(served: Served) -> None:
    says(served, THOUGHT, reasoning_tokens=9)
    answer = ask(served, n=2)
    for choice in answer.choices:
        assert choice.message.content == "Hello 🙂"
        assert choice.message.reasoning == "What could\n they want?"
        assert choice.message.reasoning_content == choice.message.reasoning
    assert answer.usage.completion_tokens_details.reasoning_tokens == 9


@pytest.mark.parametrize("per_step", [1, 3, 1000])
def test_they_are_streamed_apart(served: Served, per_step: int) -> None:
    says(served, THOUGHT, per_step=per_step, reasoning_tokens=9)
    chunks = list(ask(served, stream=True, stream_options={"include_usage": True}))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    thinking = [getattr(delta, "reasoning", None) for delta in deltas]
    assert thinking == [getattr(delta, "reasoning_content", None) for delta in deltas]
    assert "".join(part or "" for part in thinking) == "What could\n they want?"
    assert "".join(delta.content or "" for delta in deltas) == "Hello 🙂"
    last_thought = max(place for place, part in enumerate(thinking) if part)
    first_text = min(place for place, delta in enumerate(deltas) if delta.content)
    assert last_thought < first_text
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 9
    if per_step == 1:
        assert sum(bool(part) for part in thinking) > 4, "thinking comes in pieces"


def test_the_stock_helper_accumulates_a_stream(served: Served) -> None:
    says(served, THOUGHT)
    with client(served) as sdk, sdk.chat.completions.stream(model="sapling", messages=HELLO) as stream:
        message: Any = stream.get_final_completion().choices[0].message
    assert (message.content, message.reasoning) == ("Hello 🙂", "What could\n they want?")


def test_an_answer_without_thinking_is_the_answer(served: Served) -> None:
    says(served, " Hello there")
    assert ask(served).choices[0].message.content == " Hello there"
    assert ask(served).choices[0].message.reasoning is None
    deltas = [chunk.choices[0].delta for chunk in ask(served, stream=True)]
    assert "".join(delta.content or "" for delta in deltas) == " Hello there"


def test_an_answer_cut_off_within_thinking_has_no_content(served: Served) -> None:
    says(served, "<think>\nWell", finish="length")
    (choice,) = ask(served).choices
    assert (choice.finish_reason, choice.message.content, choice.message.reasoning) == ("length", "", "Well")


def test_log_probabilities_are_the_answers(served: Served) -> None:
    says(served, THOUGHT)
    (whole,) = ask(served, logprobs=True, top_logprobs=1).choices
    assert "".join(entry.token for entry in whole.logprobs.content if entry.bytes) != ""
    assert b"".join(bytes(entry.bytes) for entry in whole.logprobs.content).decode().strip() == "Hello 🙂"
    chunks = list(ask(served, logprobs=True, stream=True))
    entries = [e for c in chunks for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
    assert [entry.token for entry in entries] == [entry.token for entry in whole.logprobs.content]
    assert not any(
        getattr(chunk.choices[0].delta, "reasoning", None)
        for chunk in chunks
        if chunk.choices[0].logprobs and chunk.choices[0].logprobs.content
    )


def test_a_stop_string_ends_the_answer_and_not_the_thinking(served: Served) -> None:
    says(served, "<think>they</think>Hi they", stop="they")
    (choice,) = ask(served, stop=["they"]).choices
    assert (choice.message.reasoning, choice.message.content) == ("they", "Hi ")


def test_calls_follow_thinking(tmp_path: Path) -> None:
    template = QWEN3.replace("<|{{ message.role }}|>", "{{ tools }}<tool_call><|{{ message.role }}|>", 1)
    with started(tmp_path, template) as served:
        says(served, f"<think>a <tool_call> is due</think>\n\n{CALL}")
        (choice,) = ask(served, tools=[WEATHER]).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.reasoning == "a <tool_call> is due"
        assert choice.message.content is None
        assert choice.message.tool_calls[0].function.name == "get_weather"
        deltas = [chunk.choices[0].delta for chunk in ask(served, tools=[WEATHER], stream=True)]
        assert "".join(getattr(delta, "reasoning", None) or "" for delta in deltas) == "a <tool_call> is due"
        assert not any(delta.content for delta in deltas)
        names = [call.function.name for delta in deltas for call in delta.tool_calls or ()]
        assert names[0] == "get_weather"


@pytest.mark.parametrize(
    ("fields", "budget"),
    [
        ({}, None),
        ({"reasoning_effort": "minimal"}, 256),
        ({"reasoning_effort": "low"}, 100),
        ({"reasoning_effort": "medium"}, 4096),
        ({"reasoning_effort": "high"}, 16384),
        ({"reasoning_effort": "xhigh"}, None),
        ({"extra_body": {"thinking_budget": 5}}, 5),
        ({"extra_body": {"thinking_token_budget": 5}}, 5),
        ({"reasoning_effort": "high", "extra_body": {"thinking_budget": 5}}, 5),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}, None),
    ],
)
def test_efforts_are_budgets(served: Served, fields: dict[str, Any], budget: int | None) -> None:
    ask(served, **fields)
    reasoning = submitted(served).reasoning
    assert reasoning is not None
    assert (reasoning.budget, reasoning.is_open) == (budget, False)
    assert "</think>" not in prompt_of(served)


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"extra_body": {"thinking_budget": 0}},
        {"extra_body": {"thinking_token_budget": 0}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"chat_template_kwargs": {"thinking": False}}},
    ],
)
@pytest.mark.parametrize("template", [QWEN3, DEEPSEEK_R1, DEEPSEEK_V31])
def test_thinking_is_turned_off(tmp_path: Path, template: str, fields: dict[str, Any]) -> None:
    with started(tmp_path, template) as served:
        says(served, "Hello <think>")
        answer = ask(served, **fields)
        assert submitted(served).reasoning is None
        assert prompt_of(served).rstrip().endswith("</think>")
        assert prompt_of(served).count("</think>") == 1
        assert answer.choices[0].message.content == "Hello <think>"
        assert "reasoning" not in answer.choices[0].message.model_dump()


def test_a_template_may_open_thinking_in_the_prompt(tmp_path: Path) -> None:
    with started(tmp_path, DEEPSEEK_R1) as served:
        says(served, "So.\n</think>\n\nHello")
        (choice,) = ask(served, reasoning_effort="low").choices
        assert (choice.message.reasoning, choice.message.content) == ("So.", "Hello")
        reasoning = submitted(served).reasoning
        assert reasoning is not None
        assert (reasoning.is_open, reasoning.budget) == (True, 100)


def test_a_template_may_think_only_if_asked(tmp_path: Path) -> None:
    with started(tmp_path, DEEPSEEK_V31) as served:
        ask(served)
        assert submitted(served).reasoning is None
        ask(served, reasoning_effort="high")
        assert submitted(served).reasoning is not None
        assert prompt_of(served).endswith("<think>")


def test_the_template_is_given_the_thinking_of_earlier_turns(served: Served) -> None:
    for field in ("reasoning", "reasoning_content"):
        earlier: Any = {"role": "assistant", "content": "Hi", field: "I thought"}
        ask(served, messages=[*HELLO, earlier])
        assert "<think>\nI thought\n</think>\n\nHi" in prompt_of(served)
        ask(served, messages=[*HELLO, earlier, *HELLO])
        assert "I thought" not in prompt_of(served), "as the template wants it"


def test_an_answer_can_be_sent_back(served: Served) -> None:
    says(served, THOUGHT)
    message = ask(served).choices[0].message
    ask(served, messages=[*HELLO, message, *HELLO])
    assert "Hello 🙂" in prompt_of(served)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "none", "thinking_budget": 5}, "reasoning_effort"),
        ({"reasoning_effort": "low", "thinking_budget": 0}, "thinking_budget"),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
            "chat_template_kwargs.enable_thinking",
        ),
        ({"thinking_budget": 5, "thinking_token_budget": 6}, "thinking_token_budget"),
        ({"thinking_budget": -1}, "thinking_budget"),
        ({"reasoning_effort": "most"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"other": 1}}, "chat_template_kwargs.other"),
        ({"messages": [{**HELLO[0], "reasoning": "x"}]}, "messages[0].reasoning"),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": "y", "reasoning": "a", "reasoning_content": "b"},
                ]
            },
            "messages[1].reasoning_content",
        ),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(served: Served, fields: dict[str, Any], param: str) -> None:
    messages = fields.pop("messages", HELLO)
    with client(served) as sdk, pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="sapling", messages=messages, extra_body=fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"thinking_budget": 5}, "thinking_budget"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs.enable_thinking"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "y", "reasoning": "a"}]},
            "messages[1].reasoning",
        ),
    ],
    ids=str,
)
def test_a_model_that_does_not_think_refuses_by_name(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    messages = fields.pop("messages", HELLO)
    with started(tmp_path, TEMPLATE) as served, client(served) as sdk:
        with pytest.raises(openai.BadRequestError) as caught:
            sdk.chat.completions.create(model="sapling", messages=messages, extra_body=fields)
        assert (caught.value.param, caught.value.code) == (param, "unsupported_parameter")
        for neutral in ({"reasoning_effort": "none"}, {"thinking_budget": 0}):
            sdk.chat.completions.create(model="sapling", messages=HELLO, extra_body=neutral)
        assert submitted(served).reasoning is None


@pytest.mark.parametrize(("template", "thinks"), [(QWEN3, True), (TEMPLATE, False)])
def test_models_say_whether_they_think(tmp_path: Path, template: str, thinks: bool) -> None:
    with started(tmp_path, template) as served, client(served) as sdk:
        model: Any = sdk.models.retrieve("sapling")
        assert model.capabilities["reasoning"] is thinks


def test_completions_are_the_callers_own_template(served: Served) -> None:
    says(served, THOUGHT)
    with client(served) as sdk:
        answer = sdk.completions.create(model="sapling", prompt="Hello")
    assert answer.choices[0].text == THOUGHT
    assert submitted(served).reasoning is None
