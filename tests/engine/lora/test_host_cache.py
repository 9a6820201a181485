"""Images stay while there is room and as long as they are lent; whoever finds no room waits, not for ever."""

from __future__ import annotations

import threading

import pytest
import torch

from engine.lora.host_cache import HostCache
from engine.lora.ranges import ALIGNMENT

UNIT = ALIGNMENT


def make(num_units: int) -> HostCache:
    return HostCache(torch.zeros(num_units * UNIT, dtype=torch.uint8))


def put(cache: HostCache, digest: str, size: int = 1) -> None:
    image = cache.make(digest, size * UNIT)
    image.bytes.fill_(ord(digest))
    cache.keep(image)
    cache.return_image(image)


def holds(cache: HostCache, digest: str) -> bool:
    image = cache.borrow(digest)
    if image is None:
        return False
    assert (image.bytes == ord(digest)).all()
    cache.return_image(image)
    return True


def test_the_longest_unused_gives_way() -> None:
    cache = make(3)
    for digest in "abc":
        put(cache, digest)
    assert holds(cache, "a")
    put(cache, "d")
    assert [holds(cache, digest) for digest in "abcd"] == [True, False, True, True]
    assert (cache.num_hits, cache.num_misses) == (4, 1)
    cache.check_integrity()


def test_as_many_give_way_as_it_takes_for_one_range() -> None:
    cache = make(4)
    for digest in "abcd":
        put(cache, digest)
    put(cache, "e", 3)
    assert holds(cache, "e")
    assert sum(holds(cache, digest) for digest in "abcd") == 1
    cache.check_integrity()


def test_an_image_on_loan_stays_and_is_waited_for() -> None:
    cache = make(2)
    put(cache, "a")
    lent = cache.borrow("a")
    assert lent is not None
    made = []
    waiting = threading.Thread(target=lambda: made.append(cache.make("b", 2 * UNIT)))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert (lent.bytes == ord("a")).all()
    cache.return_image(lent)
    waiting.join(10)
    assert not waiting.is_alive()
    assert not holds(cache, "a")
    cache.return_image(made[0])
    cache.check_integrity()


def test_an_image_never_kept_leaves_nothing() -> None:
    cache = make(2)
    cache.return_image(cache.make("a", 2 * UNIT))
    assert cache.borrow("a") is None
    put(cache, "b", 2)
    cache.check_integrity()


def test_two_makers_of_one_adapter_leave_one_image() -> None:
    cache = make(2)
    first, second = cache.make("a", UNIT), cache.make("a", UNIT)
    for image in (first, second):
        image.bytes.fill_(ord("a"))
        cache.keep(image)
    cache.return_image(second)
    cache.return_image(first)
    assert holds(cache, "a")
    put(cache, "b")
    assert holds(cache, "a")
    cache.check_integrity()


def test_what_can_never_fit_is_not_waited_for() -> None:
    with pytest.raises(MemoryError, match="needs 513 bytes of host memory, the cache has 512"):
        make(2).make("a", 513)


def test_closing_ends_the_wait() -> None:
    cache = make(1)
    lent = cache.make("a", UNIT)
    errors = []

    def wait() -> None:
        try:
            cache.make("b", UNIT)
        except MemoryError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    cache.close()
    waiting.join(10)
    assert not waiting.is_alive()
    assert len(errors) == 1
    cache.return_image(lent)
