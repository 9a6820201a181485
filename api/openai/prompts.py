"""Turns a request's messages or prompts into token ids, and refuses those that exceed the context window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from api.errors import ContextLengthExceeded, InvalidValue
from api.openai.reasoning_turns import add_reasoning
from api.openai.schemas import MAX_CHOICES, ChatCompletionRequest, CompletionRequest
from api.openai.tool_calls import OfferedTools, add_call_fields, template_tools
from engine.protocol import EngineInfo
from tokenization.chat_template import TemplateRefusal
from tokenization.codec import TextCodec
from tokenization.tools.formats import ToolFormat


async def encode_chat(
    body: ChatCompletionRequest,
    info: EngineInfo,
    text: TextCodec,
    tools: OfferedTools | None = None,
    format: ToolFormat | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[int]:
    """Returns the token ids of the conversation, rendered by the model's chat template.

    Args:
        tools: None if the model is not to see the request's tools.
        format: of the model's tool calls.
        options: variables of the chat template's own.

    Raises:
        InvalidValue: the chat template refuses the messages.
        ContextLengthExceeded: they do not fit; refused before tokenizing where their size alone tells.
    """
    if text.template is None:
        raise InvalidValue(f"'{info.base}' has no chat template; use /v1/completions.", "messages")
    messages: list[dict[str, Any]] = []
    called: dict[str, str] = {}
    for message in body.messages:
        content = message.content or ""
        rendered = {
            "role": "system" if message.role == "developer" else message.role,
            "content": content if isinstance(content, str) else "\n".join(part.text for part in content),
        }
        if message.name is not None:
            rendered["name"] = message.name
        if message.tool_calls or message.tool_call_id is not None:
            add_call_fields(rendered, message, called, format)
        add_reasoning(rendered, message)
        messages.append(rendered)
    if not text.template.takes_later_systems:
        messages = _with_one_system(messages)
    refuse_too_long(text.fewest_tokens("".join(message["content"] for message in messages)), info, "messages")
    try:
        chat = text.render_chat(messages, None if tools is None else template_tools(body), options)
    except TemplateRefusal as error:
        raise InvalidValue(
            f"The model's chat template refuses these messages: {error}", "messages"
        ) from error
    prompt_ids = await text.encode_chat(chat)
    refuse_too_long(len(prompt_ids), info, "messages", exact=True)
    return prompt_ids


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages with all system messages merged into one at the beginning."""
    systems = [message for message in messages if message["role"] == "system"]
    if len(systems) < 2:
        return messages
    merged = {**systems[0], "content": "\n\n".join(message["content"] for message in systems)}
    return [merged, *(message for message in messages if message["role"] != "system")]


async def encode_prompts(body: CompletionRequest, info: EngineInfo, text: TextCodec) -> list[list[int]]:
    """Returns the token ids of each prompt.

    Raises:
        InvalidValue: prompts of mixed types, too many of them, or a token id outside the vocabulary.
        ContextLengthExceeded: one does not fit; refused before tokenizing where its size alone tells.
    """
    prompts = _prompts(body.prompt)
    if len(prompts) * (body.n or 1) > MAX_CHOICES:
        raise InvalidValue(
            f"{len(prompts)} prompts of {body.n or 1} choices are more than {MAX_CHOICES} choices.", "prompt"
        )
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            encoded.append(await encode_prompt(prompt, info, text))
        else:
            check_token_ids(prompt, info, "prompt")
            refuse_too_long(len(prompt), info, "prompt", exact=True)
            encoded.append(prompt)
    return encoded


async def encode_prompt(
    prompt: str, info: EngineInfo, text: TextCodec, add_special_tokens: bool = True
) -> list[int]:
    """Returns the token ids of a prompt. Raises InvalidValue, ContextLengthExceeded."""
    refuse_too_long(text.fewest_tokens(prompt), info, "prompt")
    prompt_ids = await text.encode_prompt(prompt, add_special_tokens)
    refuse_too_long(len(prompt_ids), info, "prompt", exact=True)
    return prompt_ids


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Returns the prompts of each of OpenAI's four ways of giving them."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if len(kinds) > 1:
        raise InvalidValue("'prompt' mixes texts, token ids and lists of token ids.", "prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    return cast("list[str | list[int]]", prompt)


def refuse_too_long(prompt_len: int, info: EngineInfo, param: str, exact: bool = False) -> None:
    """Raises InvalidValue for an empty prompt, and ContextLengthExceeded unless a token is left for the
    completion.
    """
    if prompt_len == 0 and exact:
        raise InvalidValue("The prompt has no tokens.", param)
    longest = min(info.max_prompt_tokens, info.context_length - 1)
    if prompt_len > longest:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_window(info)}, {longest} of them for the "
            f"prompt. However, your {param} {'have' if param == 'messages' else 'has'} "
            f"{'' if exact else 'at least '}{prompt_len} tokens.",
            param,
        )


def context_window(info: EngineInfo) -> str:
    """Returns the length of the context as error messages say it."""
    return f"{info.context_length} tokens" + (" (its sliding window)" if info.sliding_window else "")


def check_token_ids(token_ids: Iterable[int], info: EngineInfo, param: str) -> None:
    """Raises InvalidValue for a token id outside the vocabulary."""
    for token_id in token_ids:
        if token_id >= info.vocab_size:
            raise InvalidValue(
                f"'{param}' names token {token_id}; this model's tokens end at {info.vocab_size - 1}.", param
            )


def echoed_texts(body: CompletionRequest, prompts: list[list[int]], text: TextCodec) -> list[str]:
    """Returns the text of each prompt, which its choices begin with when `echo` is asked for."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    return [
        prompt if isinstance(prompt, str) else text.vocabulary.decode(prompt_ids).decode("utf-8", "replace")
        for prompt, prompt_ids in zip(_prompts(body.prompt), prompts, strict=True)
    ]
