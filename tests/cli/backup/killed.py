"""A command that kills itself with SIGKILL when a step begins, or ends: for `tests.support.nursery`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cli.backup import archive, sealed_files
from cli.display import PlainDisplay, Step


def run() -> int:
    """Runs `rootstock` with all arguments but the first, which names the step."""
    from cli.main import main

    fatal = sys.argv.pop(1)
    sealed_files._SCRYPT["n"] = 2

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Fatal(PlainDisplay):
        @contextmanager
        def step(self, title: str, done: str = "ready") -> Iterator[Step]:
            with super().step(title, done) as step:
                if title == fatal:
                    step.detail = lambda text: die()  # type: ignore[method-assign]
                yield step

    def finish(self: archive.BackupWriter, manifest: archive.Manifest) -> None:
        whole(self, manifest)
        if fatal == "the end":
            die()

    whole = archive.BackupWriter.finish
    archive.BackupWriter.finish = finish  # type: ignore[method-assign]
    import cli.display

    cli.display.PlainDisplay = Fatal  # type: ignore[misc]
    main()
    return 0
