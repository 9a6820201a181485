"""What routers read from heartbeats, of this release's engines and of the last one's."""

from __future__ import annotations

import msgspec
import pytest

from engine.gauges import EngineStats, adapter_key
from engine.protocol import EngineMessage
from routing.endpoints import parse_endpoints
from routing.reports import report_of

ADAPTERS = [f"{number:016x}{'0' * 48}" for number in range(3)]


def test_a_heartbeat_names_the_adapters_that_are_loaded() -> None:
    stats = EngineStats(
        "engine-0",
        "i1",
        running=3,
        waiting={"default": 4, "flex": 1},
        rows_total=64,
        adapter_loads=4,
        adapter_load_seconds=1.0,
        prompt_rate=9000.0,
        predicted_wait={"default": 0.5},
        resident=b"".join(map(adapter_key, ADAPTERS[:2])),
    )
    report = report_of(msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=EngineMessage))
    assert report.resident is not None
    assert [adapter in report.resident for adapter in ADAPTERS] == [True, True, False]
    assert (report.rows_taken, report.rows_total, report.load_seconds) == (8, 64, 0.25)
    assert (report.prompt_rate, report.predicted_wait) == (9000.0, {"default": 0.5})


def test_an_engine_of_the_last_release_names_none() -> None:
    sent = {"type": "stats", "engine_id": "engine-0", "incarnation": "i1", "running": 2, "rows_total": 8}
    report = report_of(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=EngineMessage))
    assert report.resident is None
    assert (report.rows_taken, report.prompt_rate, report.load_seconds) == (2, 0.0, 0.0)


def test_endpoints_are_separated_by_commas_and_named_once() -> None:
    assert parse_endpoints(" ipc:///a ,tcp://b:1,") == ("ipc:///a", "tcp://b:1")
    assert parse_endpoints("") == ()
    with pytest.raises(ValueError, match="'ipc:///a' is named twice"):
        parse_endpoints("ipc:///a,ipc:///b,ipc:///a")
