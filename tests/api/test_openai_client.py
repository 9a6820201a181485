"""The stock `openai` client, sync and async, against a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import openai
import pytest

from engine.protocol import PriorityClass, Submit
from tests.api.conftest import Served, wait_until
from tests.api.fakes import ADAPTER, ADMIN_KEY, CONTEXT, KEY, OTHER_KEY, RESTRICTED_KEY, Script
from tests.support.text_base import SPECIAL

HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def sdk(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1",
        api_key=KEY,
        admin_api_key=ADMIN_KEY,
        max_retries=0,
        organization="ten_one",
    ) as opened:
        yield opened


def test_chat(sdk: openai.OpenAI, served: Served) -> None:
    served.world.engine.script = lambda submit: served.world.engine.says(
        submit, "Hello world", cached_tokens=2
    )
    answer = sdk.chat.completions.create(model="sapling:pirate", messages=HELLO, seed=7, user="u1")
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "sapling:pirate@3"
    assert answer.service_tier == "default"
    assert answer.system_fingerprint.endswith("_" + "a" * 10)
    assert answer.id.startswith("chatcmpl-")
    submit = served.world.engine.submitted[0]
    assert submit.request_id == answer.id
    assert submit.tenant == "ten_one"
    assert submit.adapter == ADAPTER
    assert submit.sampling.seed == 7
    assert submit.labels == {
        "key_id": "key_one",
        "model": "sapling:pirate@3",
        "adapter_id": "adp_1",
        "adapter_version": "3",
        "endpoint": "chat.completions",
        "service_tier": "default",
        "rate": "prc_one:1000000:500000:2000000:100",
    }
    assert abs(submit.submitted_at - time.time()) < 5
    assert answer.usage.prompt_tokens == len(submit.prompt_ids)
    assert answer.usage.completion_tokens == len(served.world.engine.tokens("Hello world")) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert submit.sampling.max_tokens == CONTEXT - len(submit.prompt_ids)


def test_chat_stream(sdk: openai.OpenAI, served: Served) -> None:
    served.world.engine.script = lambda submit: served.world.engine.says(submit, "Hello world", delay=0.002)
    chunks = list(sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello world"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[0].system_fingerprint.startswith("fp_")
    assert chunks[0].service_tier == "default"
    assert all(chunk.usage is None for chunk in chunks)
    assert len(chunks) > 2


def test_include_usage(sdk: openai.OpenAI, served: Served) -> None:
    with sdk.chat.completions.with_raw_response.create(
        model="sapling", messages=HELLO, stream=True, stream_options={"include_usage": True}
    ).parse() as stream:
        chunks = list(stream)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len(served.world.engine.tokens("Hello world")) + 1
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks[:-1])
    # "usage": null is there, not merely absent.
    assert all("usage" in chunk.model_fields_set for chunk in chunks)


def test_several_choices_interleave(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine

    def uneven(submit: Submit) -> Script:
        script = engine.says(submit, "one two three", delay=0.002)
        for step in script.steps:
            step.chunks.reverse()
        return script

    engine.script = uneven
    texts = ["", "", ""]
    roles = [0, 0, 0]
    for chunk in sdk.chat.completions.create(model="sapling", messages=HELLO, n=3, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index] += choice.delta.role == "assistant"
    assert texts == ["one two three"] * 3
    assert roles == [1, 1, 1]
    whole = sdk.chat.completions.create(model="sapling", messages=HELLO, n=3)
    assert [choice.message.content for choice in whole.choices] == ["one two three"] * 3
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert engine.submitted[0].n == 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_over_token_borders(sdk: openai.OpenAI, served: Served, stream: bool) -> None:
    engine = served.world.engine
    text = "one two STOP"
    token_ids = [token for character in text for token in engine.tokens(character)]
    assert len(token_ids) == len(text)  # a token per character: the stop string ends in the last of four
    engine.script = lambda submit: engine.emits(submit, token_ids, "stop", "STOP", delay=0.001)
    answer = sdk.chat.completions.create(
        model="sapling", messages=HELLO, stop=["STOP", "OPUS"], stream=stream
    )
    if stream:
        content = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        content = answer.choices[0].message.content
    assert content == "one two "
    assert engine.submitted[0].sampling.stop == ("STOP", "OPUS")


@pytest.mark.parametrize("text", ["emoji 🙂🚀!", "日本語のテキスト", "naïve café ünïcödé"])
def test_characters_are_never_split(sdk: openai.OpenAI, served: Served, text: str) -> None:
    engine = served.world.engine
    # Byte by byte: every border inside a character occurs.
    byte_tokens = {
        data: number for number, data in enumerate(engine.text.vocabulary.token_bytes) if len(data) == 1
    }
    token_ids = [byte_tokens[bytes([byte])] for byte in text.encode()]
    engine.script = lambda submit: engine.emits(submit, token_ids, "length", delay=0.001)
    contents = [
        chunk.choices[0].delta.content or ""
        for chunk in sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True)
    ]
    assert "".join(contents) == text
    assert not any("�" in content for content in contents)
    assert max(len(content.encode()) for content in contents) <= 4


def test_chat_logprobs(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello 🙂", delay=0.001)
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "Hello 🙂"
    assert [entry.logprob for entry in entries] == [-0.5] * len(entries)
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(entries)
    assert entries[0].top_logprobs[1].logprob == -1.5
    streamed = []
    for chunk in sdk.chat.completions.create(
        model="sapling", messages=HELLO, logprobs=True, top_logprobs=2, stream=True
    ):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content
    assert streamed == entries
    assert engine.submitted[0].sampling.logprobs == 2
    bare = sdk.chat.completions.create(model="sapling", messages=HELLO, logprobs=True)
    assert bare.choices[0].logprobs.content[0].top_logprobs == []


def test_logprobs_end_where_the_stop_string_cuts(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    token_ids = [token for character in "ab STOP" for token in engine.tokens(character)]
    engine.script = lambda submit: engine.emits(submit, token_ids, "stop", "STOP")
    answer = sdk.chat.completions.create(model="sapling", messages=HELLO, logprobs=True, stop="STOP")
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content == "ab "


def test_completion(sdk: openai.OpenAI, served: Served) -> None:
    answer = sdk.completions.create(model="sapling", prompt="The quick", logprobs=1, max_tokens=9)
    choice = answer.choices[0]
    assert choice.text == "Hello world"
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert "".join(choice.logprobs.tokens) == "Hello world"
    assert choice.logprobs.text_offset[0] == 0
    assert choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
    assert len(choice.logprobs.top_logprobs[0]) == 1
    submit = served.world.engine.submitted[0]
    assert submit.sampling.max_tokens == 9
    assert submit.prompt_ids[0] == SPECIAL.index("<|bos|>")
    assert submit.labels["endpoint"] == "completions"
    assert "adapter_id" not in submit.labels


def test_completion_stream_echo_and_lists(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, f" {len(submit.prompt_ids)}", delay=0.001)
    texts: dict[int, str] = {}
    prompts = ["one", "one two three four"]
    for chunk in sdk.completions.create(model="sapling", prompt=prompts, n=2, echo=True, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    lengths = [len(submit.prompt_ids) for submit in engine.submitted]
    assert texts == {
        0: f"one {lengths[0]}",
        1: f"one {lengths[0]}",
        2: f"one two three four {lengths[1]}",
        3: f"one two three four {lengths[1]}",
    }
    first, second = (submit.request_id for submit in engine.submitted)
    assert first.endswith("-0")
    assert second.endswith("-1")
    assert first[:-2] == second[:-2]
    whole = sdk.completions.create(model="sapling", prompt=[[7, 8, 9], [10]], echo=True)
    assert [choice.text.endswith((" 3", " 1")) for choice in whole.choices] == [True, True]
    assert whole.usage.prompt_tokens == 4
    ids = sdk.completions.create(model="sapling", prompt=[7, 8, 9])
    assert ids.choices[0].text == " 3"
    assert engine.submitted[-1].prompt_ids == [7, 8, 9]


def test_own_sampling_fields(sdk: openai.OpenAI, served: Served) -> None:
    sdk.chat.completions.create(
        model="sapling",
        messages=HELLO,
        temperature=0,
        top_p=0.5,
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias={"11": -100},
        max_completion_tokens=20,
        service_tier="flex",
        extra_body={
            "top_k": 40,
            "min_p": 0.1,
            "repetition_penalty": 1.2,
            "min_tokens": 3,
            "ignore_eos": True,
            "stop_token_ids": [5],
        },
    )
    submit = served.world.engine.submitted[0]
    sampling = submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        1,
        -1,
        1.2,
    )
    assert (sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (3, True, (5,))
    assert (sampling.logit_bias, sampling.max_tokens) == ({11: -100.0}, 20)
    assert submit.priority is PriorityClass.FLEX
    assert submit.labels["service_tier"] == "flex"


def test_raw_response_headers(sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(model="sapling", messages=HELLO)
    assert raw.headers["x-request-id"].startswith("req_")
    assert raw.request_id == raw.headers["x-request-id"]
    assert raw.parse()._request_id == raw.headers["x-request-id"]
    mine = sdk.chat.completions.with_raw_response.create(
        model="sapling", messages=HELLO, extra_headers={"x-request-id": "trace-12345678"}
    )
    assert mine.headers["x-request-id"] == "trace-12345678"


def test_models(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["sapling", "sapling:pirate"]
    assert sdk.models.retrieve("sapling:pirate@3").id == "sapling:pirate@3"
    assert sdk.models.retrieve("sapling").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("sapling/other")
    assert caught.value.code == "model_not_found"


def test_usage_report(sdk: openai.OpenAI, served: Served) -> None:
    page = sdk.admin.organization.usage.completions(
        start_time=1_700_000_000,
        bucket_width="1d",
        group_by=["model", "api_key_id"],
        models=["sapling"],
        limit=3,
    )
    assert page.data[0].results[0].input_tokens == 10
    tenant_id, query = served.world.usage.asked[0]
    assert tenant_id == "ten_one"
    assert query["group_by"] == ["model", "api_key_id"]
    assert query["models"] == ["sapling"]
    assert (query["limit"], query["start_time"], query["bucket_width"]) == (3, 1_700_000_000, "1d")


def test_error_classes(sdk: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(model="sapling", messages=HELLO, n=1_000_000)
    assert (refused.value.param, refused.value.code) == ("n", "invalid_value")
    with pytest.raises(openai.NotFoundError) as unknown:
        sdk.chat.completions.create(model="sapling:nobody", messages=HELLO)
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError):
        sdk.with_options(api_key=OTHER_KEY, organization="ten_two").chat.completions.create(
            model="sapling:pirate", messages=HELLO
        )
    with pytest.raises(openai.ConflictError) as baking:
        sdk.chat.completions.create(model="sapling:baking", messages=HELLO)
    assert baking.value.code == "not_ready"
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key="sk-wrong").models.list()
    with pytest.raises(openai.PermissionDeniedError) as restricted:
        sdk.with_options(api_key=RESTRICTED_KEY).chat.completions.create(model="sapling", messages=HELLO)
    assert restricted.value.code == "insufficient_permissions"
    served.world.engine.script = lambda submit: Script(reject=("overloaded", "the queue is full"))
    with pytest.raises(openai.InternalServerError) as busy:
        sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True)
    assert (busy.value.status_code, busy.value.code) == (503, "server_is_overloaded")


def test_the_client_retries_what_may_be_retried(served: Served) -> None:
    engine = served.world.engine
    verdicts = iter([("overloaded", "full"), None])

    def script(submit: Submit) -> Script:
        verdict = next(verdicts)
        return Script(reject=verdict) if verdict else engine.says(submit, "Hello")

    engine.script = script
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=1) as sdk:
        assert (
            sdk.chat.completions.create(model="sapling", messages=HELLO).choices[0].message.content == "Hello"
        )
    assert len(engine.submitted) == 2


def test_an_error_in_mid_stream_is_raised(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", delay=0.01, gone_after=2)
    texts = []
    stream = sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError) as broken:
        texts.extend(chunk.choices[0].delta.content for chunk in stream)
    assert broken.value.code == "engine_unavailable"
    assert "secret" not in str(broken.value)
    assert texts


def test_closing_a_stream_aborts_the_request(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", hang_after=2)
    stream = sdk.chat.completions.create(model="sapling", messages=HELLO, stream=True)
    next(iter(stream))
    stream.close()
    assert wait_until(lambda: engine.aborted) < 0.5
    assert set(engine.aborted) == {engine.submitted[0].request_id}


def test_giving_up_on_a_whole_answer_aborts_the_request(sdk: openai.OpenAI, served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three", hang_after=1)
    with pytest.raises(openai.APITimeoutError):
        sdk.chat.completions.create(model="sapling", messages=HELLO, timeout=0.2)
    wait_until(lambda: engine.aborted)


async def test_async_client(served: Served) -> None:
    engine = served.world.engine
    engine.script = lambda submit: engine.says(submit, f"answer to {len(submit.prompt_ids)}", delay=0.002)
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as sdk:

        async def ask(words: int) -> str:
            messages = [{"role": "user", "content": "one " * words}]
            stream = await sdk.chat.completions.create(model="sapling", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        answers = await asyncio.gather(*(ask(words) for words in range(1, 33)))
    by_length = sorted(len(submit.prompt_ids) for submit in engine.submitted)
    assert sorted(answers, key=lambda answer: int(answer.split()[-1])) == [
        f"answer to {n}" for n in by_length
    ]
    assert len(set(answers)) == 32
