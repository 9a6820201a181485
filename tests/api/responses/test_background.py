"""Background responses: run after their request, cancelled, streamed again, retried and fenced."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine.protocol import Submit
from tenants.errors import RateLimited
from tenants.limits.kinds import Limit, Metric
from tests.api.conftest import wait_until
from tests.api.fakes import KEY, Script
from tests.api.responses.conftest import Site
from tests.support.spans import tracing_to


def ended(client: openai.OpenAI, response_id: str) -> Any:
    """The response once it has ended."""
    wait_until(lambda: client.responses.retrieve(response_id).status not in ("queued", "in_progress"))
    return client.responses.retrieve(response_id)


def test_it_runs_after_its_request(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello world")
    exporter = InMemorySpanExporter()
    object.__setattr__(site.served.world.services, "tracing", tracing_to(exporter))
    queued = sdk.responses.create(model="sapling", input="Hello", background=True, metadata={"a": "b"})
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    done = ended(sdk, queued.id)
    assert (done.status, done.output_text, done.metadata) == ("completed", "Hello world", {"a": "b"})
    (submit,) = site.served.world.engine.submitted
    assert (submit.request_id, submit.labels["endpoint"]) == (queued.id, "responses")
    assert done.usage.output_tokens == site.served.world.engine.billed[queued.id].completion_tokens
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.parent) == ("chat sapling", None), "no request waits for it"
    assert submit.traceparent.split("-")[1] == f"{span.context.trace_id:032x}"
    assert span.attributes["gen_ai.usage.output_tokens"] == done.usage.output_tokens
    assert site.sql("SELECT sealed_request FROM stored_responses") == [None]
    follow = sdk.responses.create(model="sapling", input="More", previous_response_id=queued.id)
    assert follow.status == "completed"


def test_what_is_invalid_is_refused_at_once(sdk: openai.OpenAI, site: Site) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.responses.create(model="sapling:absent", input="Hello", background=True)
    with pytest.raises(openai.BadRequestError):
        sdk.responses.create(model="sapling", input="x " * 600, background=True)
    assert site.sql("SELECT id FROM stored_responses") == []


def test_it_is_cancelled(sdk: openai.OpenAI, site: Site) -> None:
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", hang_after=1)
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    wait_until(lambda: engine.submitted)
    assert sdk.responses.retrieve(made.id).status == "in_progress"
    with pytest.raises(openai.ConflictError):
        sdk.responses.create(model="sapling", input="x", previous_response_id=made.id)
    assert sdk.responses.cancel(made.id).status == "cancelled"
    wait_until(lambda: made.id in engine.aborted)
    assert sdk.responses.cancel(made.id).status == "cancelled"
    assert sdk.responses.retrieve(made.id).status == "cancelled"
    site.says("Hello")
    plain = sdk.responses.create(model="sapling", input="Hello")
    with pytest.raises(openai.BadRequestError, match="background"):
        sdk.responses.cancel(plain.id)


def test_it_stops_when_it_is_deleted(sdk: openai.OpenAI, site: Site) -> None:
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", hang_after=1)
    conversation = sdk.conversations.create()
    made = sdk.responses.create(model="sapling", input="Hello", background=True, conversation=conversation.id)
    wait_until(lambda: engine.submitted)
    sdk.responses.delete(made.id)
    wait_until(lambda: made.id in engine.aborted)
    assert site.sql("SELECT locked_by FROM conversations") == [None]


def test_it_extends_its_conversation(sdk: openai.OpenAI, site: Site) -> None:
    conversation = sdk.conversations.create()
    site.says("Hi Bob", delay=0.1)
    made = sdk.responses.create(
        model="sapling", input="I am Bob", background=True, conversation=conversation.id
    )
    with pytest.raises(openai.ConflictError):
        sdk.responses.create(model="sapling", input="x", conversation=conversation.id)
    assert ended(sdk, made.id).status == "completed"
    items = sdk.conversations.items.list(conversation.id, order="asc")
    assert [item.content[0].text for item in items] == ["I am Bob", "Hi Bob"]


def test_its_events_are_streamed_and_streamed_again(sdk: openai.OpenAI, site: Site) -> None:
    site.says("Hello world again", delay=0.02)
    events = list(sdk.responses.create(model="sapling", input="Hello", background=True, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    response_id = events[0].response.id
    again = list(sdk.responses.retrieve(response_id, stream=True))
    assert again == events
    rest = list(sdk.responses.retrieve(response_id, stream=True, starting_after=4))
    assert rest == events[5:]
    plain = sdk.responses.create(model="sapling", input="Hello")
    with pytest.raises(openai.BadRequestError):
        sdk.responses.retrieve(plain.id, stream=True)


def test_a_cancelled_stream_ends(sdk: openai.OpenAI, site: Site) -> None:
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", hang_after=1)
    stream = iter(sdk.responses.create(model="sapling", input="Hello", background=True, stream=True))
    response_id = next(stream).response.id
    wait_until(lambda: engine.submitted)
    sdk.responses.cancel(response_id)
    *_, last = stream
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")


def test_a_rate_limit_is_waited_out(sdk: openai.OpenAI, site: Site) -> None:
    quotas = site.served.world.quotas
    quotas.error = RateLimited(Limit("tenant", "ten_one", "", Metric.REQUESTS_PER_MINUTE, 60), 0.1)
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    wait_until(lambda: sdk.responses.retrieve(made.id).status == "in_progress")
    quotas.error = None
    assert ended(sdk, made.id).status == "completed"


def test_a_revoked_key_fails_what_it_queued(sdk: openai.OpenAI, site: Site) -> None:
    site.callers.revoked.add(site.served.world.keys.callers[KEY].key_id)
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    done = ended(sdk, made.id)
    assert done.status == "failed"
    assert done.error.code == "invalid_prompt"
    assert site.served.world.engine.submitted == []


def test_an_engine_that_dies_is_waited_for(sdk: openai.OpenAI, site: Site) -> None:
    engine, attempts = site.served.world.engine, []

    def dies_once(submit: Submit) -> Script:
        attempts.append(submit)
        return engine.says(submit, "Hello world", gone_after=1 if len(attempts) == 1 else None)

    engine.script = dies_once
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    done = ended(sdk, made.id)
    assert (done.status, done.output_text) == ("completed", "Hello world")
    assert [submit.request_id for submit in attempts] == [made.id, made.id]
    assert len({submit.submitted_at for submit in attempts}) == 1
    ids = [reservation.request_id for reservation in site.served.world.quotas.reserved]
    assert ids == [made.id, f"{made.id}.1.2"], "a reservation's id is used once"


def test_a_process_that_lost_its_lease_changes_nothing(sdk: openai.OpenAI, site: Site) -> None:
    """As if another process had taken over."""
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", delay=0.4)
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    wait_until(lambda: engine.submitted)
    site.sql(
        "UPDATE stored_responses SET fence = fence + 1, lease_owner = 'another', "
        "lease_until = now() + interval '1 hour'"
    )
    wait_until(lambda: made.id in engine.aborted)
    assert sdk.responses.retrieve(made.id).status == "in_progress"
    engine.script = lambda submit: engine.says(submit, "Anew")
    site.sql("UPDATE stored_responses SET lease_until = now() - interval '1 second'")
    assert ended(sdk, made.id).output_text == "Anew"
    registry = site.served.world.services.metrics.registry
    assert registry.get_sample_value("rootstock_background_responses_resumed_total") == 1

    def num_completed() -> float | None:
        outcome = {"outcome": "completed"}
        return registry.get_sample_value("rootstock_background_responses_ended_total", outcome)

    wait_until(lambda: num_completed() == 1)


def test_it_is_given_up_after_some_attempts(sdk: openai.OpenAI, site: Site) -> None:
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", hang_after=1)
    made = sdk.responses.create(model="sapling", input="Hello", background=True)
    wait_until(lambda: engine.submitted)
    site.sql("UPDATE stored_responses SET fence = 5, lease_until = now() - interval '1 second'")
    done = ended(sdk, made.id)
    assert (done.status, done.error.code) == ("failed", "server_error")


def test_the_queue_of_a_project_is_bounded(
    sdk: openai.OpenAI, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conversations.background.service.MAX_UNFINISHED", 2)
    engine = site.served.world.engine
    engine.script = lambda submit: engine.says(submit, "Hello world", hang_after=1)
    for _ in range(2):
        sdk.responses.create(model="sapling", input="Hello", background=True)
    with pytest.raises(openai.RateLimitError, match="have not ended"):
        sdk.responses.create(model="sapling", input="Hello", background=True)
