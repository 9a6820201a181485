"""Tells the pool's children that the worker is about to end, so that they release long jobs.

The parent holds a pipe open and writes nothing: the pipe closes when the worker begins to end or is killed,
and either way the children read its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os


class ShutdownPipe:
    """The pipe, created by the parent before its children."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def announce(self) -> None:
        """Announces the end, in the parent. May be called repeatedly."""
        if self._write_end >= 0:
            os.close(self._write_end)
            self._write_end = -1

    def inherit(self) -> None:
        """Closes the writing end in a child, before all else: the child would hold its own pipe open."""
        with contextlib.suppress(OSError):
            self.announce()

    def watch(self, loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
        """Sets `stopping` in a child when the worker ends."""

        def ended() -> None:
            loop.remove_reader(self._read_end)
            stopping.set()

        loop.add_reader(self._read_end, ended)
