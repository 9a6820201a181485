"""The wire format is a promise between releases: a change of it must be made knowingly.

`python -m tests.contracts.test_protocol` writes the snapshot anew; the diff is what the review is about.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import gauges, protocol
from engine.prefill import messages

SNAPSHOT = Path(__file__).with_name("protocol.json")


def structs() -> dict[str, type[msgspec.Struct]]:
    found = {
        name: member
        for module in (protocol, gauges, messages)
        for name, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, msgspec.Struct) and member.__module__ == module.__name__
    }
    return dict(sorted(found.items()))


def described() -> dict[str, Any]:
    """Every struct: its tag, and its fields in order, with their types and whether they may be absent."""
    return {
        name: {
            "tag": struct.__struct_config__.tag,
            "array_like": struct.__struct_config__.array_like,
            "fields": [
                {"name": field.encode_name, "type": repr(field.type), "required": field.required}
                for field in msgspec.structs.fields(struct)
            ],
        }
        for name, struct in structs().items()
    }  # fmt: skip


def test_the_wire_format_is_the_one_that_was_agreed() -> None:
    assert described() == json.loads(SNAPSHOT.read_text())


@pytest.mark.parametrize("message", [
    protocol.Submit("r", "t", [1, 2], protocol.SamplingParams(max_tokens=3, stop=("a",), logit_bias={5: 1.0}),
                    adapter=protocol.AdapterRef("0" * 64, 8), labels={"key_id": "k"}),
    protocol.Abort("r"),
    protocol.Prefetch(protocol.AdapterRef("0" * 64, 8)),
    protocol.Hello("api-0"),
    protocol.Goodbye(),
    protocol.Inspect(),
])  # fmt: skip
def test_messages_to_the_engine_survive_the_wire(message: msgspec.Struct) -> None:
    wire = msgspec.msgpack.encode(message)
    assert msgspec.msgpack.decode(wire, type=protocol.ClientMessage) == message


def test_messages_from_the_engine_survive_the_wire() -> None:
    logprob = protocol.TokenLogprob(7, -0.5, [protocol.TopLogprob(7, -0.5)])
    outputs = protocol.Outputs(
        chunks=[protocol.TokenChunk("r", 0, [7], [logprob], "stop", "\n")],
        finished=[protocol.Finished("r", protocol.Usage(3, 0, 1))],
        rejected=[protocol.Rejected("q", "overloaded", "full")],
    )
    wire = msgspec.msgpack.encode(outputs)
    assert msgspec.msgpack.decode(wire, type=protocol.EngineMessage) == outputs


def test_an_older_peer_reads_a_newer_message() -> None:
    """Fields it does not know are skipped, fields it misses have defaults."""
    newer = {
        "type": "submit",
        "request_id": "r",
        "tenant": "t",
        "prompt_ids": [1],
        "sampling": {"max_tokens": 1},
        "field_of_tomorrow": {"a": [1]},
    }
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=protocol.ClientMessage)
    assert message == protocol.Submit("r", "t", [1], protocol.SamplingParams(max_tokens=1))


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(described(), indent=1) + "\n")
