"""Forks a limited process for every grammar to check, from one that has the base's tokenizer loaded.

    python -m tokenization.grammars.fork_server DESCRIPTOR BASE_DIRECTORY

`DESCRIPTOR` is a Unix packet socket. In: packets with one stream socket each. On that socket comes the check;
the child writes its answer there, and the fork server, after that, how the child ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from llguidance import LLTokenizer

from engine.grammar.tokenizer import load_tokenizer
from engine.protocol import Grammar
from engine.vocabulary import Vocabulary
from tokenization.grammars.checking import check
from tokenization.grammars.confinement import WALL_S, confine, start_clock
from tokenization.grammars.end_tokens import read_eos_ids
from tokenization.grammars.messages import LENGTH_BYTES, Answer, Check, Ended, Ready, Refused

_ARRIVAL_S = 10.0
"""Seconds for a check to arrive."""


class ForkServer:
    """Forks a child for every socket that it receives, and reports how it ended."""

    def __init__(self, channel: socket.socket, tokenizer: LLTokenizer) -> None:
        self._channel = channel
        self._tokenizer = tokenizer
        self._answers: dict[int, socket.socket] = {}
        """By process id of the child that answers on it."""
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waking, False)

    def serve(self) -> None:
        """Serves until the other side closes the socket. The children end with this process."""
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
            if self._channel.fileno() in ready:
                packet, files, _, _ = socket.recv_fds(self._channel, 16, 1)
                if not packet:
                    return
                self._fork(socket.socket(fileno=files[0]))

    def _fork(self, answers: socket.socket) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            answers.close()  # without an end: the check is tried again
            return
        if pid == 0:
            self._leave()
            _live(answers, self._tokenizer, parent)
        self._answers[pid] = answers

    def _leave(self) -> None:
        """Closes the parent's descriptors in the child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel.close()
        for answers in self._answers.values():
            answers.close()
        os.close(self._woken)
        os.close(self._waking)
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())  # discarded: nothing hostile gets into a log

    def _reap(self) -> None:
        while self._answers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with self._answers.pop(pid) as answers, contextlib.suppress(OSError):
                answers.setblocking(False)
                answers.send(msgspec.json.encode(Ended(os.waitstatus_to_exitcode(status))) + b"\n")


def _live(answers: socket.socket, tokenizer: LLTokenizer, parent: int) -> None:
    """Runs a child from start to exit. Does not return."""
    try:
        start_clock(_ARRIVAL_S)
        length = int.from_bytes(_read(answers, LENGTH_BYTES), "big")
        body = _read(answers, length)
        confine(parent)
        start_clock(WALL_S)
        order = msgspec.json.decode(body, type=Check)
        answers.sendall(msgspec.json.encode(_answer(order, tokenizer)) + b"\n")
        os._exit(0)
    finally:
        os._exit(1)


def _read(answers: socket.socket, length: int) -> bytes:
    found = bytearray()
    while len(found) < length:
        piece = answers.recv(length - len(found))
        if not piece:
            os._exit(0)  # given up
        found += piece
    return bytes(found)


def _answer(order: Check, tokenizer: LLTokenizer) -> Answer:
    try:
        return check(order, tokenizer)
    except MemoryError:
        return Refused((), "checking it takes too much memory")
    except RecursionError:
        return Refused((), "it is nested too deeply")


def load(base_dir: Path) -> LLTokenizer:
    """Loads the base's tokenizer, and checks something with it: children need not load what all of them use.

    Raises ValueError when grammars cannot be followed with it.
    """
    vocab_size = len(Vocabulary.load(base_dir).token_bytes)
    tokenizer = load_tokenizer(base_dir, read_eos_ids(base_dir), vocab_size)
    schema = Grammar("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}}')
    for grammar in (schema, Grammar("regex", "[a-z]+"), Grammar("choice", '["a"]')):
        check(Check(grammar, False), tokenizer)
    return tokenizer


def main(arguments: Sequence[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    try:
        tokenizer = load(Path(arguments[1]))
    except (ValueError, OSError) as error:
        channel.send(msgspec.json.encode(Ready(str(error)[:1000])))
        return
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages it visits
    channel.send(msgspec.json.encode(Ready()))
    ForkServer(channel, tokenizer).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
