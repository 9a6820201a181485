"""Tells the pool's children that the worker is about to end, so that they give up what would take long.

A pipe that the parent holds open and says nothing through: it closes when the worker is told to end, or is
killed, and either way the children read its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os


class ShutdownPipe:
    """Made by the parent before its children."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def announce(self) -> None:
        """In the parent, any number of times."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def inherit(self) -> None:
        """In a child, first of all: as long as it held the other end itself, it would read nothing."""
        with contextlib.suppress(OSError):
            self.announce()

    def watch(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        """In a child: have `stopping` set when the worker ends."""

        def ended() -> None:
            loop.remove_reader(self._read_end)
            stopping.set()

        loop.add_reader(self._read_end, ended)
