"""What is wrong with a batch or its file, found before any line runs."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from api.batches import checking
from tests.batches.conftest import Batches, as_jsonl, chat_line, lines, response_line

GOOD = chat_line("good")


def raw(*rows: bytes) -> bytes:
    return b"\n".join(rows)


GOOD_LINE = json.dumps(GOOD).encode()
FAULTS: dict[str, tuple[bytes, str, int | None, str | None]] = {
    "not JSON": (raw(GOOD_LINE, b"{nonsense"), "invalid_value", 2, None),
    "not an object": (raw(GOOD_LINE, b"[1]"), "invalid_value", 2, None),
    "not UTF-8": (raw(GOOD_LINE, b'{"custom_id": "\xff"}'), "invalid_value", 2, None),
    "a repeated key": (
        raw(GOOD_LINE, GOOD_LINE[:-1].replace(b"good", b"x") + b', "custom_id": "y"}'),
        "invalid_value",
        2,
        "custom_id",
    ),
    "a repeated custom_id": (raw(GOOD_LINE, GOOD_LINE), "duplicate_custom_id", 2, "custom_id"),
    "no custom_id": (
        as_jsonl([{name: value for name, value in GOOD.items() if name != "custom_id"}]),
        "invalid_value",
        1,
        "custom_id",
    ),
    "an empty custom_id": (as_jsonl([GOOD | {"custom_id": ""}]), "invalid_value", 1, "custom_id"),
    "a long custom_id": (as_jsonl([GOOD | {"custom_id": "x" * 513}]), "invalid_value", 1, "custom_id"),
    "a number as custom_id": (as_jsonl([GOOD | {"custom_id": 1}]), "invalid_value", 1, "custom_id"),
    "another method": (as_jsonl([GOOD | {"method": "GET"}]), "invalid_value", 1, "method"),
    "another url": (as_jsonl([GOOD | {"url": "/v1/completions"}]), "invalid_value", 1, "url"),
    "an unknown field": (as_jsonl([GOOD | {"urgent": True}]), "unsupported_parameter", 1, "urgent"),
    "no body": (
        as_jsonl([{name: value for name, value in GOOD.items() if name != "body"}]),
        "invalid_value",
        1,
        "body",
    ),
    "a body without messages": (
        as_jsonl([GOOD | {"body": {"model": "sapling"}}]),
        "invalid_value",
        1,
        "body.messages",
    ),
    "an unknown field of a body": (
        as_jsonl([chat_line("a", colour="red")]),
        "unsupported_parameter",
        1,
        "body.colour",
    ),
    "a stream": (as_jsonl([chat_line("a", stream=True)]), "unsupported_parameter", 1, "body.stream"),
    "a service tier": (
        as_jsonl([chat_line("a", service_tier="priority")]),
        "unsupported_parameter",
        1,
        "body.service_tier",
    ),
    "an unknown model": (as_jsonl([chat_line("a", model="nobody")]), "model_not_found", 1, "body.model"),
    "a model that is not ready": (
        as_jsonl([GOOD, chat_line("a", model="sapling:baking")]),
        "not_ready",
        2,
        "body.model",
    ),
    "only blank lines": (b"\n \n\n", "empty_file", None, None),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_faulty_file_fails_the_batch_with_the_line_and_the_field(place: Batches, fault: str) -> None:
    content, code, line, param = FAULTS[fault]
    await place.start()
    batch = await place.create(content)

    done = await place.ended(batch.id)

    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.output_file_id is None
    assert done.errors is not None
    (error,) = done.errors.data or ()
    assert (error.code, error.line, error.param) == (code, line, param)
    assert error.message
    assert place.world.engine.submitted == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True}, "body.stream"),
        ({"background": True}, "body.background"),
        ({"conversation": "conv_1"}, "body.conversation"),
        ({"conversation": {"id": "conv_1"}, "store": True}, "body.conversation"),
        ({"service_tier": "priority"}, "body.service_tier"),
        ({"input": None}, "body.input"),
        ({"input": [{"type": "wizard"}]}, "body.input[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "body.input"),
        ({"tool_choice": "required"}, "body.tool_choice"),
        ({"messages": []}, "body.messages"),
    ],
    ids=str,
)
async def test_a_faulty_line_of_responses(place: Batches, body: dict[str, Any], param: str) -> None:
    row = response_line("a", **body)
    await place.start()
    batch = await place.create(as_jsonl([response_line("good"), row]), endpoint="/v1/responses")

    done = await place.ended(batch.id)

    assert done.status == "failed"
    assert done.errors is not None
    (error,) = done.errors.data or ()
    assert (error.line, error.param) == (2, param)
    assert error.message
    assert place.world.engine.submitted == []


async def test_all_faulty_lines_are_listed_up_to_a_bound(place: Batches) -> None:
    await place.start()
    batch = await place.create(b"{}\n" * (checking.MAX_ERRORS + 50))

    done = await place.ended(batch.id)

    assert done.errors is not None
    assert len(done.errors.data or ()) == checking.MAX_ERRORS


async def test_too_many_lines_and_too_long_lines(place: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "MAX_LINES", 3)
    monkeypatch.setattr("api.batches.execution.MAX_LINE_BYTES", 200)
    await place.start()
    batch = await place.create(as_jsonl([chat_line("a"), chat_line("b", "x" * 500), *lines(3)]))

    done = await place.ended(batch.id)

    assert done.errors is not None
    found = [(error.code, error.line) for error in done.errors.data or ()]
    assert found == [("line_too_long", 2), ("too_many_lines", 4)]


async def test_blank_lines_and_windows_line_ends_are_accepted(place: Batches) -> None:
    await place.start()
    rows = [json.dumps(row).encode() for row in lines(2)]
    batch = await place.create(rows[0] + b"\r\n\r\n" + rows[1])

    done = await place.ended(batch.id)

    assert done.status == "completed"
    assert len(await place.rows(done.output_file_id)) == 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": "a\x00b"}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"extra_body": {"priority": 1}}, "priority"),
    ],
)
async def test_an_invalid_field_is_named(place: Batches, change: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await place.create(as_jsonl(lines(1)), **change)

    assert refused.value.param == param


async def test_a_file_of_another_purpose_is_refused(place: Batches) -> None:
    client = place.client()
    file = await client.files.create(file=("a.jsonl", b"{}"), purpose="calibration")  # type: ignore[arg-type]

    with pytest.raises(openai.BadRequestError) as refused:
        await client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

    assert refused.value.param == "input_file_id"


async def test_output_files_cannot_be_uploaded(place: Batches) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await place.client().files.create(file=("a.jsonl", b"{}"), purpose="batch_output")  # type: ignore[arg-type]

    assert refused.value.param == "purpose"
