"""Forks a confined child for every inspection, from a process that has everything loaded.

    python -m adapters.inspection.zygote DESCRIPTOR

`DESCRIPTOR` is a Unix packet socket. In: orders with their open files, and orders to kill a child. Out:
readiness, and how each child ended. A child writes its answer to a socket of its own, so that it can lie only
about its own file.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from adapters.inspection import inspector
from adapters.inspection.confinement import Bounds, confine, isolate, seal
from adapters.inspection.errors import InspectionRefused
from adapters.inspection.library import make_shadow
from adapters.inspection.messages import (
    MAX_PACKET,
    Accepted,
    Answer,
    Ended,
    Failed,
    Kill,
    Order,
    Ready,
    Refused,
    Unable,
)
from adapters.inspection.specimen import specimen

_MAX_FILES = 8


@dataclass(frozen=True, slots=True)
class Task:
    """A child's work on its files: `prepare` runs before it is confined, on bytes it does not interpret."""

    run: Callable[[Sequence[int], Any, Order], Any]
    prepare: Callable[[Sequence[int]], Any] = lambda files: None


TASKS: dict[str, Task] = {
    "config": Task(lambda files, _, order: inspector.check_config(files[0])),
    "weights": Task(
        lambda files, shadow, order: inspector.check_weights(files[0], shadow, seal),
        lambda files: make_shadow(files[0]),
    ),
    "inspect": Task(
        lambda files, shadow, order: inspector.inspect(
            files[0], files[1], files[2], shadow, seal, values=order.values
        ),
        lambda files: make_shadow(files[0]),
    ),
}


class Zygote:
    """Forks a child for every order, and reports how it ended."""

    def __init__(self, channel: socket.socket, tasks: Mapping[str, Task]) -> None:
        self._channel = channel
        self._tasks = tasks
        self._children: dict[int, int] = {}
        """Process id -> order number; only of children not waited for, so that no other process is killed."""
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waking, False)

    def serve(self) -> None:
        """Serves until the other side closes the socket."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._channel.fileno() in ready and not self._obey():
                break
        for pid in self._children:
            os.kill(pid, signal.SIGKILL)

    def _obey(self) -> bool:
        packet, files, _, _ = socket.recv_fds(self._channel, MAX_PACKET, _MAX_FILES)
        if not packet:
            return False
        message = msgspec.json.decode(packet, type=Order | Kill)
        if isinstance(message, Order):
            self._fork(message, files)
        else:
            for pid, number in self._children.items():
                if number == message.number:
                    os.kill(pid, signal.SIGKILL)
        return True

    def _fork(self, order: Order, files: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.write(files[0], msgspec.json.encode(Unable(f"no process could be made: {error}")))
            self._tell(Ended(order.number, 0))
        else:
            if pid == 0:
                self._leave()
                _live(order, self._tasks[order.task], files[0], files[1:], parent)
            self._children[pid] = order.number
        for descriptor in files:
            os.close(descriptor)

    def _leave(self) -> None:
        """Closes the parent's descriptors in the child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel.close()
        os.close(self._woken)
        os.close(self._waking)
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # discarded: nothing hostile gets into a log

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._tell(Ended(self._children.pop(pid), os.waitstatus_to_exitcode(status)))

    def _tell(self, message: Ended | Ready) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._channel.send(msgspec.json.encode(message))


def _live(order: Order, task: Task, answers: int, files: Sequence[int], parent: int) -> None:
    """Runs a child from start to exit. Does not return."""
    try:
        prepared = task.prepare(files)
        confine(Bounds(order.memory, order.cpu_s, order.wall_s), parent)
        answer = _answer(lambda: task.run(files, prepared, order))
        view = memoryview(msgspec.json.encode(answer))
        while view:
            view = view[os.write(answers, view) :]
        os._exit(0)
    finally:
        os._exit(1)


def _answer(run: Callable[[], Any]) -> Answer:
    try:
        return Accepted(msgspec.Raw(msgspec.json.encode(run())))
    except InspectionRefused as refused:
        return Refused(refused.field, refused.reason)
    except MemoryError:
        return Failed("ran out of memory")
    except Exception as error:  # noqa: BLE001 - the process ends here: the failure is reported and rejected
        return Failed(f"{type(error).__name__}: {error}")


def warm_up() -> None:
    """Inspects a valid and an invalid adapter, so that children need not load or allocate what all of them
    use.
    """
    with contextlib.ExitStack() as open_files:
        files = [specimen(name) for name in ("weights", "config", "base")]
        for descriptor in files:
            open_files.callback(os.close, descriptor)
        shadow = make_shadow(files[0])
        assert shadow is not None
        open_files.callback(os.close, shadow)
        found = inspector.inspect(files[0], files[1], files[2], shadow, lambda: None, values=True)
        msgspec.json.encode(_answer(lambda: found))
        msgspec.json.encode(_answer(lambda: inspector.check_config(files[0])))


def main(arguments: Sequence[str], tasks: Mapping[str, Task] = TASKS) -> None:
    warnings.simplefilter("ignore")
    warm_up()
    guards = isolate()
    channel = socket.socket(fileno=int(arguments[0]))
    zygote = Zygote(channel, tasks)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages it visits
    channel.send(msgspec.json.encode(Ready(guards)))
    zygote.serve()


if __name__ == "__main__":
    main(sys.argv[1:])
