"""Conversations through the stock client: their items, and responses that read from and add to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.conversations import Conversation, ConversationItemList

from conversations.limits import MAX_ITEMS
from tests.api.conftest import wait_until
from tests.api.responses.conftest import CALL, PROJECT_KEY, WEATHER, Site, client_of


def said(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


def texts(client: openai.OpenAI, conversation_id: str) -> list[str]:
    items = client.conversations.items.list(conversation_id, order="asc", limit=100)
    return [item.content[0].text if item.type == "message" else item.type for item in items]


def test_a_conversation_and_its_items(sdk: openai.OpenAI, site: Site) -> None:
    made = sdk.conversations.create(items=[said("user", "one")], metadata={"topic": "numbers"})
    assert Conversation.model_validate(made.model_dump(), strict=True)
    assert made.id.startswith("conv_")
    added = sdk.conversations.items.create(made.id, items=[said("assistant", "two"), said("user", "three")])
    assert ConversationItemList.model_validate(added.model_dump())
    assert texts(sdk, made.id) == ["one", "two", "three"]
    first, second = sdk.conversations.items.list(made.id, limit=2).data
    assert (first.content[0].text, second.content[0].text) == ("three", "two")
    beyond = sdk.conversations.items.list(made.id, limit=2, after=second.id)
    assert [item.content[0].text for item in beyond.data] == ["one"]
    assert beyond.has_more is False
    assert sdk.conversations.items.retrieve(second.id, conversation_id=made.id) == second
    assert sdk.conversations.items.delete(second.id, conversation_id=made.id).id == made.id
    assert texts(sdk, made.id) == ["one", "three"]
    assert sdk.conversations.update(made.id, metadata={"topic": "letters"}).metadata == {"topic": "letters"}
    assert sdk.conversations.retrieve(made.id).metadata == {"topic": "letters"}
    assert sdk.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(made.id)
    assert site.sql("SELECT id FROM conversation_items") == []


def test_responses_read_and_extend_it(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create(items=[said("developer", "Be brief.")])
    site.says(CALL)
    first = sdk.responses.create(
        model="sapling", input="Weather?", conversation=conversation.id, tools=[WEATHER]
    )
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    call: Any = first.output[0]
    site.says("Sunny")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
    events = list(
        sdk.responses.create(
            model="sapling",
            input=[result],
            conversation={"id": conversation.id},
            tools=[WEATHER],
            stream=True,
        )
    )
    assert events[-1].type == "response.completed"
    assert site.prompt.index("Be brief.") < site.prompt.index("Weather?") < site.prompt.index("sun of")
    assert texts(sdk, conversation.id) == [
        "Be brief.",
        "Weather?",
        "function_call",
        "function_call_output",
        "Sunny",
    ]
    sdk.responses.delete(first.id)
    assert len(texts(sdk, conversation.id)) == 5, "items outlive the response that added them"
    with pytest.raises(openai.BadRequestError, match="belongs to a conversation"):
        sdk.responses.create(model="sapling", input="x", previous_response_id=events[-1].response.id)


def test_one_response_at_a_time(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create()
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", delay=0.5)
    done: list[Any] = []

    def first() -> None:
        done.append(sdk.responses.create(model="sapling", input="One", conversation=conversation.id))

    thread = threading.Thread(target=first)
    thread.start()
    wait_until(lambda: engine.submitted)
    for change in (
        lambda: sdk.responses.create(model="sapling", input="Two", conversation=conversation.id),
        lambda: sdk.conversations.items.create(conversation.id, items=[said("user", "Two")]),
    ):
        with pytest.raises(openai.ConflictError) as caught:
            change()
        assert caught.value.code == "conversation_locked"
    thread.join()
    assert done[0].status == "completed"
    assert texts(sdk, conversation.id) == ["One", "Hello world"]
    sdk.responses.create(model="sapling", input="Two", conversation=conversation.id)
    assert len(texts(sdk, conversation.id)) == 4


def test_a_failed_request_leaves_it_free(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create()
    with pytest.raises(openai.BadRequestError):
        sdk.responses.create(model="sapling", input="x " * 600, conversation=conversation.id)
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", gone_after=1)
    with pytest.raises(openai.InternalServerError):
        sdk.responses.create(model="sapling", input="One", conversation=conversation.id)
    last = list(
        sdk.responses.create(model="sapling", input="One", conversation=conversation.id, stream=True)
    )[-1]
    assert last.type == "response.failed"
    assert texts(sdk, conversation.id) == []
    site.says("Fine")
    sdk.responses.create(model="sapling", input="One", conversation=conversation.id)
    assert texts(sdk, conversation.id) == ["One", "Fine"]


def test_a_client_that_leaves_frees_it(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create()
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "one two three four", delay=0.3)
    stream = sdk.responses.create(model="sapling", input="One", conversation=conversation.id, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: engine.aborted)
    wait_until(lambda: site.sql("SELECT locked_by FROM conversations") == [None])
    assert texts(sdk, conversation.id) == []


def test_it_is_bounded(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create()
    site.sql("UPDATE conversations SET num_items = :most", most=MAX_ITEMS - 1)
    sdk.conversations.items.create(conversation.id, items=[said("user", "last")])
    with pytest.raises(openai.BadRequestError, match=f"at most {MAX_ITEMS}"):
        sdk.conversations.items.create(conversation.id, items=[said("user", "too much")])
    with pytest.raises(openai.BadRequestError):
        sdk.conversations.items.create(conversation.id, items=[said("user", "x")] * 21)


def test_others_do_not_see_it(sdk: openai.OpenAI, other: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create(items=[said("user", "mine")])
    (item,) = sdk.conversations.items.list(conversation.id)
    with client_of(site, PROJECT_KEY) as second_project:
        for client in (other, second_project):
            for attempt in _attempts(client, conversation.id, item.id):
                with pytest.raises(openai.NotFoundError):
                    attempt()
    assert texts(sdk, conversation.id) == ["mine"]


def _attempts(client: openai.OpenAI, conversation_id: str, item_id: str) -> list[Callable[[], Any]]:
    """Everything that can be asked of a conversation."""
    conversations, items = client.conversations, client.conversations.items
    reference: Any = {"type": "item_reference", "id": item_id}
    return [
        lambda: conversations.retrieve(conversation_id),
        lambda: conversations.update(conversation_id, metadata={}),
        lambda: conversations.delete(conversation_id),
        lambda: items.list(conversation_id),
        lambda: items.create(conversation_id, items=[said("user", "x")]),
        lambda: items.retrieve(item_id, conversation_id=conversation_id),
        lambda: items.delete(item_id, conversation_id=conversation_id),
        lambda: client.responses.create(model="sapling", input="x", conversation=conversation_id),
        lambda: client.responses.create(model="sapling", input=[reference]),
    ]
