"""The view of an engine that operators get: it is true, bounded, and says nothing of what requests say."""

from __future__ import annotations

import msgspec

from engine.gauges import EngineView
from engine.inspection import MAX_SHARES, MAX_SLOTS
from engine.protocol import PriorityClass
from tests.engine.plain.harness import Engine, adapter, submission


def look(engine: Engine) -> EngineView:
    """As it comes over the wire."""
    view = engine.core.view(engine.core.stats)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=EngineView)


def test_an_idle_engine_has_an_empty_view() -> None:
    view = look(Engine())
    assert (view.slots, view.shares, view.num_shares, view.seconds) == ([], [], 0, [])
    assert view.prefill_tokens == view.decode_rows == [0, 0, 0]
    assert view.oldest_wait == [0.0, 0.0, 0.0]
    assert view.blocks_cached == 0


def test_rows_belong_to_a_tenant_on_an_adapter_in_a_class() -> None:
    engine = Engine(max_rows=6, max_batch_tokens=16)
    pirate = adapter("pirate", 4)
    for number in range(2):
        engine.submit(submission(f"p{number}", [1, 2, 3], 8, tenant="acme", adapter=pirate))
    engine.submit(submission("base", [4, 5, 6], 8, tenant="globex", priority=PriorityClass.PRIORITY))
    for _ in range(4):
        engine.step()
    engine.submit(submission("long", list(range(40)), 4, tenant="globex"))
    engine.step()
    view = look(engine)
    found = {(share.tenant, share.digest, share.priority): share for share in view.shares}
    mine = found["acme", pirate.digest, "default"]
    assert (mine.rows, mine.prefill_rows, mine.waiting) == (2, 0, 0)
    assert mine.tokens == sum(len(request.token_ids) for request in engine.scheduler.running[1:3])
    assert found["globex", None, "priority"].rows == 1
    assert found["globex", None, "default"].prefill_rows == 1
    assert view.num_shares == len(view.shares) == 3
    assert view.decode_rows == [1, 2, 0]
    assert view.prefill_tokens == [0, 13, 0]
    assert sum(view.decode_rows) + 1 == view.stats.running == sum(share.rows for share in view.shares)


def test_slots_tell_who_uses_them_who_loads_and_who_is_to_go() -> None:
    engine = Engine(num_slots=3, auto_load=False, max_rows=4)
    kept, loading, claimed = adapter("kept", 4), adapter("loading", 8), adapter("claimed", 16)
    engine.core.prefetch(kept, pinned=True)
    engine.submit(submission("a", [1, 2, 3], 30, adapter=claimed))
    while engine.loads:
        engine.finish_load()
    engine.step()
    engine.submit(submission("b", [1, 2, 3], 30, adapter=loading))
    engine.submit(submission("c", [1, 2, 3], 30, adapter=adapter("waits")))
    for _ in range(3):
        engine.now += 6
        engine.step()
    by_digest = {slot.digest: slot for slot in look(engine).slots}
    assert set(by_digest) == {kept.digest, loading.digest, claimed.digest}
    assert by_digest[kept.digest].pinned
    assert by_digest[loading.digest].loading
    assert by_digest[loading.digest].waiting == 1
    assert (by_digest[claimed.digest].rows, by_digest[claimed.digest].rank) == (1, 16)
    assert by_digest[claimed.digest].closing


def test_a_wait_is_told_by_class_and_by_who_waits() -> None:
    engine = Engine(max_rows=1)
    engine.submit(submission("a", [1, 2, 3], 40))
    engine.step()
    engine.submit(submission("b", [1, 2, 3], 4, tenant="globex"))
    engine.now += 3
    engine.submit(submission("c", [1, 2, 3], 4, tenant="globex"))
    engine.submit(submission("d", [1, 2, 3], 4, tenant="globex", priority=PriorityClass.FLEX))
    engine.now += 2
    engine.step()
    view = look(engine)
    assert view.oldest_wait == [0.0, 5.0, 2.0]
    waits = {(share.tenant, share.priority): (share.waiting, share.oldest_wait) for share in view.shares}
    assert waits["globex", "default"] == (2, 5.0)
    assert waits["globex", "flex"] == (1, 2.0)
    assert view.stats.waiting == {"priority": 0, "default": 2, "flex": 1}


def test_what_stays_in_the_prefix_cache_is_counted() -> None:
    engine = Engine(block_size=4)
    engine.submit(submission("a", list(range(10)), 2))
    engine.run()
    assert look(engine).blocks_cached == 2
    engine.submit(submission("b", list(range(10)), 2))
    engine.step()
    assert look(engine).blocks_cached == 0, "they are held again"
    engine.run()
    engine.core.check_integrity()


def test_a_view_is_bounded_and_carries_no_word_of_a_request() -> None:
    engine = Engine(
        num_blocks=2000, num_slots=MAX_SLOTS + 20, max_rows=200, max_batch_tokens=4096, max_waiting=4096
    )
    for number in range(600):
        engine.submit(
            submission(
                f"secret-id-{number}",
                [number % 60] * 8,
                40,
                tenant=f"tenant-{number}",
                adapter=adapter(f"a{number}"),
                labels={"key_id": "secret-label"},
            )
        )
    for _ in range(3):
        engine.step()
    view = look(engine)
    assert len(view.slots) == MAX_SLOTS
    assert len(view.shares) == MAX_SHARES
    assert view.num_shares == 600
    wire = msgspec.msgpack.encode(view)
    assert len(wire) < 100_000
    assert b"secret" not in wire
