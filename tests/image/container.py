"""A working container of the image: runs its entry point with a compose service's settings."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.image.buildah import Buildah

STOP_S = 60


class Container:
    """All processes share its files, as compose's services share their volumes."""

    def __init__(self, buildah: Buildah, image: str, volumes: Mapping[Path, str], log: Path) -> None:
        """`volumes`: folders of the host and where they are seen, read-only."""
        self._buildah = buildah
        self._entrypoint = buildah.config(image)["Entrypoint"]
        self._volumes = [f"--volume={source}:{target}:ro" for source, target in volumes.items()]
        self.log = log
        self.name = buildah("from", "--pull-never", image)

    def remove(self) -> None:
        self._buildah("rm", self.name)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """Run to the end; what was printed."""
        done = subprocess.run(self._command(arguments, environment or {}), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def running(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
        """Run in the background. At the end SIGTERM must stop it with status 0."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(self._command(arguments, environment), stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, self.log.read_text()
        finally:
            _terminate(process.pid, tuple(arguments))
            status = process.wait(STOP_S)
        assert status == 0, self.log.read_text()

    def _command(self, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        settings = [f"--env={name}={value}" for name, value in environment.items()]
        options = ("--isolation", "chroot", *settings, *self._volumes)
        return [*self._buildah.command, "run", *options, self.name, "--", *self._entrypoint, *arguments]


def _terminate(buildah: int, arguments: tuple[str, ...]) -> None:
    """Signal the program itself, which is a process of the host's: buildah, told to stop, would kill it."""
    matching = [pid for pid in _descendants(buildah) if _command_line(pid)[-len(arguments) :] == arguments]
    os.kill(matching[-1], signal.SIGTERM)  # the innermost: buildah's own processes have the same arguments


def _command_line(pid: int) -> tuple[str, ...]:
    return tuple(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0"))


def _descendants(pid: int) -> Iterator[int]:
    """Processes below `pid`: buildah starts them from any of its threads."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            yield child
            yield from _descendants(child)
