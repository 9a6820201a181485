"""A request waits for its adapter as long as it was promised to, and no longer."""

from __future__ import annotations

import pytest

from tests.engine.plain.harness import Engine, adapter, submission

A, B = adapter("a"), adapter("b")


def test_a_request_whose_adapter_does_not_come_is_turned_away_in_time() -> None:
    engine = Engine(auto_load=False, adapter_wait_s=10.0)
    engine.submit(submission("base", [1, 2]))
    engine.run()
    assert engine.reason("base") == "length"
    engine.submit(submission("slow", [1, 2], adapter=A))
    engine.step()
    assert not engine.core.has_work, "nothing to do but wait"
    engine.now += 9.9
    assert not engine.core.has_work
    engine.submit(submission("later", [3, 4], adapter=A))
    engine.step()
    assert engine.rejected == {}
    assert not engine.core.has_work
    engine.now += 0.2
    assert engine.core.has_work, "the time is up"
    engine.step()
    assert engine.rejected["slow"].code == "adapter_loading"
    assert "within 10 s" in engine.rejected["slow"].message
    assert "later" not in engine.rejected, "its own time is not up"
    engine.finish_load()
    engine.run()
    assert engine.reason("later") == "length"
    engine.check_idle()


def test_a_request_that_waits_for_room_and_not_for_its_adapter_stays() -> None:
    engine = Engine(num_blocks=9, adapter_wait_s=10.0)
    engine.submit(submission("long", [1, 2], 30, adapter=A))
    engine.step()
    engine.submit(submission("next", [3, 4], 28, adapter=A))
    for _ in range(5):
        engine.now += 10
        engine.step()
    assert engine.rejected == {}
    engine.run()
    assert engine.reason("next") == "length"


def test_a_preempted_request_is_never_turned_away() -> None:
    engine = Engine(num_slots=1, auto_load=False, adapter_wait_s=10.0, slot_patience_s=0.0)
    engine.submit(submission("a", [1, 2], 4, adapter=A))
    engine.finish_load()
    engine.step()
    engine.submit(submission("b", [3, 4], 4, adapter=B))
    engine.now += 20
    engine.step()
    assert set(engine.rejected) == {"b"}
    engine.run()
    assert engine.reason("a") == "length"
    engine.check_idle()


def test_a_request_id_may_come_again_while_the_first_ones_wait_runs_out() -> None:
    engine = Engine(auto_load=False, adapter_wait_s=10.0)
    engine.submit(submission("r", [1], adapter=A))
    engine.core.abort("r")
    engine.step()
    engine.now += 6
    assert engine.core.submit(submission("r", [2], adapter=A)) is None
    engine.now += 6
    assert engine.core.step().rejected == []
    engine.now += 6
    assert [rejected.code for rejected in engine.core.step().rejected] == ["adapter_loading"]


@pytest.mark.parametrize("wait", [0.0, -1.0, float("nan")])
def test_the_wait_is_some_time(wait: float) -> None:
    with pytest.raises(ValueError, match="adapter_wait_s"):
        Engine(adapter_wait_s=wait)
