"""`echo` with `logprobs`: the stock client reads what a prompt's own tokens are worth."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from api.app import create_app
from api.openai.logprobs import LogprobTrail
from api.pools import BasePool, Pools
from engine.protocol import TokenLogprob, TopLogprob
from engine.vocabulary import Vocabulary
from examples.sapling import BASE
from routing.replica_set import ReplicaSet
from tests.api.conftest import Served, build
from tests.api.fakes import KEY, Script
from tests.engine.process.engines import EngineProcess, billed, engine_process, journal_events
from tests.support.documented import Documented
from tests.support.text_base import SPECIAL
from tokenization.codec import TextCodec

PROMPT = "The quick 🙂 fox"


@pytest.fixture
def sdk(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0) as opened:
        yield opened


def scored(choice: Any) -> dict[str, list[Any]]:
    return {
        name: list(getattr(choice.logprobs, name) or [])
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }


def check_prompt(found: dict[str, list[Any]], prompt_ids: list[int], num_tops: int) -> None:
    """As the stand-in scores: -0.5 each, and its likeliest, one less each."""
    num = len(prompt_ids)
    assert found["token_logprobs"][:num] == [None] + [-0.5] * (num - 1)
    assert found["top_logprobs"][0] is None
    for tops in found["top_logprobs"][1:num]:
        assert sorted(tops.values(), reverse=True)[:1] == ([-0.5] if num_tops else [])
        assert len(tops) <= num_tops


def test_the_prompt_alone(sdk: openai.OpenAI, served: Served) -> None:
    answer = sdk.completions.create(model="sapling", prompt=PROMPT, echo=True, logprobs=2, max_tokens=0)
    (submit,) = served.world.engine.submitted
    assert (submit.sampling.max_tokens, submit.sampling.prompt_logprobs) == (0, 2)
    assert submit.sampling.score_from == 1
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(submit.prompt_ids), 0)
    found = scored(choice)
    check_prompt(found, submit.prompt_ids, 2)
    assert {len(column) for column in found.values()} == {len(submit.prompt_ids)}
    assert found["tokens"][0] == SPECIAL[0]
    # Each token stands in the text where its offset says; a special one takes no room.
    assert found["text_offset"][:2] == [0, 0]
    ends = [*found["text_offset"][1:], len(PROMPT)]
    spelled = list(zip(found["tokens"][1:], found["text_offset"][1:], ends[1:], strict=True))
    assert [PROMPT[begin:end] for token, begin, end in spelled if "�" not in token] == [
        token for token, _, _ in spelled if "�" not in token
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_and_answer_in_one_list(sdk: openai.OpenAI, served: Served, stream: bool) -> None:
    served.world.engine.script = lambda submit: served.world.engine.says(submit, "Hello world", delay=0.001)
    answer = sdk.completions.create(
        model="sapling", prompt=PROMPT, echo=True, logprobs=1, max_tokens=5, n=2, stream=stream
    )
    texts: dict[int, str] = {}
    columns: dict[int, dict[str, list[Any]]] = {}
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.logprobs is not None:
                mine = columns.setdefault(choice.index, {})
                for name, values in scored(choice).items():
                    mine[name] = mine.get(name, []) + values
    (submit,) = served.world.engine.submitted
    assert texts == {0: PROMPT + "Hello world", 1: PROMPT + "Hello world"}
    for index in range(2):
        check_prompt(columns[index], submit.prompt_ids, 1)
        generated = columns[index]["tokens"][len(submit.prompt_ids) :]
        assert "".join(generated) == "Hello world"
        offsets = columns[index]["text_offset"][len(submit.prompt_ids) :]
        assert [texts[index][at : at + len(token)] for token, at in zip(generated, offsets, strict=True)] == (
            generated
        )
        assert None not in columns[index]["token_logprobs"][1:]


def test_each_prompt_of_a_list_has_its_own(sdk: openai.OpenAI, served: Served) -> None:
    """Token ids, as evaluation harnesses send them; what is echoed is what they decode to."""
    prompts = [[7, 8, 9, 10, 11], [40]]
    answer = sdk.completions.create(model="sapling", prompt=prompts, echo=True, logprobs=0, max_tokens=0)
    vocabulary = served.world.engine.text.vocabulary
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        check_prompt(scored(choice), prompt, 0)
        assert len(scored(choice)["tokens"]) == len(prompt)
        assert choice.text == vocabulary.decode(prompt).decode("utf-8", "replace")
    assert answer.usage.prompt_tokens == 6


def test_an_engine_that_scores_less_than_was_asked_is_an_error(sdk: openai.OpenAI, served: Served) -> None:
    ends = lambda submit: served.world.engine.says(submit, "Hello").steps  # noqa: E731
    served.world.engine.script = lambda submit: Script(ends(submit), scores=[])
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.completions.create(model="sapling", prompt="one two", echo=True, logprobs=0, max_tokens=0)
    assert caught.value.code == "generation_failed"


def test_without_echo_no_prompt_is_scored(sdk: openai.OpenAI, served: Served) -> None:
    sdk.completions.create(model="sapling", prompt="one two", logprobs=1)
    sdk.completions.create(model="sapling", prompt="one two", echo=True)
    assert [submit.sampling.prompt_logprobs for submit in served.world.engine.submitted] == [None, None]


def test_a_space_that_encoding_puts_before_a_text_moves_no_offset() -> None:
    class Text:
        vocabulary = Vocabulary([b"", b" The", b" red", b"\xc3", b"\xa9"], frozenset({0}), True)

        def special_token(self, token_id: int) -> str | None:
            return "<s>" if token_id == 0 else None

    trail = LogprobTrail(Text())  # type: ignore[arg-type]
    scores = [TokenLogprob(token_id, -1.0, [TopLogprob(2, -1.0)]) for token_id in (1, 2, 3, 4)]
    told = trail.prompt([0, 1, 2, 3, 4], scores, "The redé")
    assert told["text_offset"] == [0, 0, 3, 7, 8]
    assert told["tokens"][:3] == ["<s>", " The", " red"]
    assert trail.prompt([1, 2], scores[:1], " The red")["text_offset"] == [0, 4]


@pytest.fixture
def sapling(redis_url: str) -> Iterator[EngineProcess]:
    folder = Path(tempfile.mkdtemp(prefix="rs-scores-"))
    for process in engine_process(
        folder, redis_url, null=False, base=BASE, base_name="sapling", device="cpu"
    ):
        process.start()
        yield process
    shutil.rmtree(folder)


async def test_a_served_model_scores_prompts_as_its_own_forward_does(
    sapling: EngineProcess, redis_url: str
) -> None:
    """From HTTP to the model and back: in one list, the prompt's tokens and the answer's."""
    text = TextCodec.load(BASE)
    world = build(text)
    engine = ReplicaSet([sapling.endpoint], "test")
    await engine.start()
    async with asyncio.timeout(90):
        await engine.wait_ready()
    pools = Pools(BasePool("sapling", engine, text))
    app = Documented(create_app(dataclasses.replace(world.services, pools=pools)))
    headers = {"authorization": f"Bearer {KEY}"}
    body = {
        "model": "sapling",
        "prompt": "the red fox runs home",
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [
            (await client.post("/v1/completions", json={**body, "max_tokens": num}, headers=headers)).json()
            for num in (0, 6)
        ]
        # What was generated, scored as a prompt: the same numbers.
        ids = await text.encode_prompt(body["prompt"])
        generated = answers[1]["choices"][0]["logprobs"]["tokens"][len(ids) :]
        whole = {**body, "prompt": answers[1]["choices"][0]["text"], "max_tokens": 0}
        again = (await client.post("/v1/completions", json=whole, headers=headers)).json()
    await engine.close()
    scored, longer, once_more = (a["choices"][0]["logprobs"] for a in (*answers, again))
    assert answers[0]["usage"] | {"completion_tokens": 0} == answers[0]["usage"]
    assert answers[0]["usage"]["prompt_tokens"] == len(ids) == len(scored["tokens"])
    for name, column in scored.items():
        assert longer[name][: len(ids)] == column
    assert generated
    assert once_more["tokens"] == longer["tokens"], "the tokenizer cuts the answer as the model made it"
    assert once_more["text_offset"] == longer["text_offset"]
    assert once_more["token_logprobs"][1:] == pytest.approx(longer["token_logprobs"][1:], abs=1e-3)
    # Greedy: each token of the answer is the likeliest, and says so.
    for value, tops in list(zip(once_more["token_logprobs"], once_more["top_logprobs"], strict=True))[
        len(ids) :
    ]:
        assert value == max(tops.values())
    events = billed(journal_events(redis_url))
    assert sorted(event.usage.completion_tokens for event in events.values()) == [0, 0, 6]
