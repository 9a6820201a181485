"""A thread that waits awake lets others run."""

from __future__ import annotations

import threading
import time

from engine.device.waiting import stay_awake_until


def test_a_wait_that_stays_awake_lets_other_threads_run() -> None:
    """They hold the interpreter's lock in turns of milliseconds else."""

    class Event:
        def query(self) -> bool:
            return over.is_set()

    over, began = threading.Event(), time.monotonic()
    waiting = threading.Thread(target=stay_awake_until, args=(Event(),))
    waiting.start()
    turns = 0
    while time.monotonic() - began < 0.2:
        time.sleep(0)
        turns += 1
    assert waiting.is_alive()
    over.set()
    waiting.join(timeout=10)
    assert not waiting.is_alive()
    assert turns > 200, "less than once a millisecond"
