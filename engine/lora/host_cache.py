"""Caches adapters in page-locked host memory, ready to be copied to the device; evicts the least recently
used.

An image is lent to the thread that fills or copies it, and stays until it is returned. A caller that finds no
room waits for that: each borrower holds one image at a time and returns it without taking another, so that
waits end.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import torch

from engine.lora.artifact import Manifest
from engine.lora.image import ImageLayout
from engine.lora.ranges import Ranges, rounded


class HostImage:
    """One adapter's image in host memory. Only `HostCache` creates them."""

    __slots__ = ("borrowers", "bytes", "digest", "layout", "manifest", "start")

    def __init__(self, digest: str, start: int, memory: torch.Tensor) -> None:
        self.digest = digest
        self.start = start
        self.bytes = memory
        """uint8, page-locked if the cache's memory is."""
        self.borrowers = 1
        self.manifest: Manifest
        """Of the slab in the image."""
        self.layout: ImageLayout


class HostCache:
    """Lends images to any thread."""

    def __init__(self, memory: torch.Tensor) -> None:
        """`memory`: uint8, as many bytes as images may take."""
        self._memory = memory
        self._ranges = Ranges(len(memory))
        self._freed = threading.Condition()
        self._closed = False
        # Complete images, the least recently used first.
        self._images: OrderedDict[str, HostImage] = OrderedDict()
        self.num_hits = 0
        self.num_misses = 0

    @property
    def capacity(self) -> int:
        return self._ranges.capacity

    def borrow(self, digest: str) -> HostImage | None:
        """Returns a complete image, or None. Return it with `return_image`."""
        with self._freed:
            image = self._images.get(digest)
            if image is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._images.move_to_end(digest)
            image.borrowers += 1
            return image

    def make(self, digest: str, size: int) -> HostImage:
        """Returns a new image to be filled, then kept or abandoned. Waits until borrowed images are returned.

        Raises MemoryError when it could never fit, or the cache is closed.
        """
        if rounded(size) > self.capacity:
            raise MemoryError(f"needs {size} bytes of host memory, the cache has {self.capacity}")
        with self._freed:
            while (start := self._take(size)) is None:
                self._freed.wait()
            return HostImage(digest, start, self._memory[start : start + size])

    def keep(self, image: HostImage) -> None:
        """Adds the complete image to the cache. Its creator still borrows it."""
        with self._freed:
            former = self._images.pop(image.digest, None)
            self._images[image.digest] = image
            if former is not None and not former.borrowers:
                self._drop(former)

    def return_image(self, image: HostImage) -> None:
        """Ends a loan; frees the memory of an image that was never kept."""
        with self._freed:
            image.borrowers -= 1
            assert image.borrowers >= 0, "returned twice"
            if not image.borrowers:
                if self._images.get(image.digest) is not image:
                    self._drop(image)
                self._freed.notify_all()

    def close(self) -> None:
        """Raises MemoryError for callers that wait for memory, now or later."""
        with self._freed:
            self._closed = True
            self._freed.notify_all()

    def check_integrity(self) -> None:
        """Asserts that every range belongs to an image, if none is lent. For idle moments and tests."""
        with self._freed:
            self._ranges.check_integrity()
            assert all(not image.borrowers for image in self._images.values())
            held = sum(rounded(len(image.bytes)) for image in self._images.values())
            assert held == self.capacity - self._ranges.num_free

    def _take(self, size: int) -> int | None:
        """Returns a range, after evicting unused images as needed; None if borrowed images leave no room."""
        while True:
            if self._closed:
                raise MemoryError("the engine is closing")
            start = self._ranges.take(size)
            if start is not None:
                return start
            unused = next((image for image in self._images.values() if not image.borrowers), None)
            if unused is None:
                return None
            del self._images[unused.digest]
            self._drop(unused)

    def _drop(self, image: HostImage) -> None:
        self._ranges.give(image.start)
