"""Asks engines that compute prompts, chooses among them, and receives what they send, on one thread.

A prompt goes where it waits least. When that is too long everywhere, or no such engine is connected, `ask`
returns None: the prompt is then computed where its request is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from uuid import uuid4

import structlog
import zmq

from engine.prefill.copies import CacheCopies
from engine.prefill.link import Link
from engine.prefill.messages import AskPrompt, CancelPrompt, Greeting
from engine.scheduling.prompt_fetches import ArrivedBlocks, FetchEnded, WantedPrompt
from engine.transport.curve import Address
from engine.transport.wake_pipe import WakePipe

log = structlog.get_logger(__name__)

TICK_MS = 100
"""Between two looks at the connections."""
COPYING_NAP_MS = 1
"""Until pieces that are being copied are looked at again."""


class PromptSources:
    """The engines that compute prompts for this one. Connects at once, and again after every fault."""

    def __init__(
        self,
        addresses: Sequence[Address],
        greeting: Greeting,
        copies: CacheCopies,
        deliver: Callable[[ArrivedBlocks | FetchEnded], None],
        max_wait_s: float,
    ) -> None:
        """`deliver` runs on this object's thread. Beyond an expected wait of `max_wait_s` an engine is not
        asked.
        """
        self._links = [Link(address, greeting, copies, deliver) for address in addresses]
        self._max_wait_s = max_wait_s
        self._ids = uuid4().hex
        self._num_asked = 0
        self._outbox: deque[tuple[Link, AskPrompt | CancelPrompt]] = deque()
        self._taken: deque[ArrivedBlocks] = deque()
        self._closing = False
        self._wakes = WakePipe()
        self._thread = threading.Thread(target=self._run, name="prompt sources", daemon=True)
        self._thread.start()

    # Called from the step loop's thread -------------------------------------------------------------------

    def ask(self, prompt: WantedPrompt) -> str | None:
        waits = []
        for place, link in enumerate(self._links):
            with link.lock:
                wait = link.expected_wait(prompt.priority)
            if wait is not None and wait <= self._max_wait_s:
                waits.append((wait, place))
        if not waits:
            return None
        link = self._links[min(waits)[1]]
        self._num_asked += 1
        fetch_id = f"{self._ids}-{self._num_asked}"
        with link.lock:
            if link.expected_wait(prompt.priority) is None:
                return None  # it has just gone
            link.open[fetch_id] = len(prompt.token_ids)
            is_shared = link.is_shared
        self._outbox.append((link, AskPrompt(fetch_id, *prompt, is_shared)))
        self._wakes.wake()
        return fetch_id

    def cancel(self, fetch_id: str) -> None:
        for link in self._links:
            with link.lock:
                was_open = link.open.pop(fetch_id, None) is not None
            if was_open:
                self._outbox.append((link, CancelPrompt(fetch_id)))
        self._wakes.wake()

    def taken(self, blocks: ArrivedBlocks) -> None:
        self._taken.append(blocks)
        self._wakes.wake()

    @property
    def num_connected(self) -> int:
        """Engines that would compute a prompt."""
        num_connected = 0
        for link in self._links:
            with link.lock:
                num_connected += link.expected_wait("") is not None
        return num_connected

    @property
    def is_shared(self) -> bool:
        """Whether memory of any of these engines is read without copies through a socket."""
        return any(link.is_shared for link in self._links)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why engines give no prompts, of those that do not."""
        return tuple(link.refusal for link in self._links if link.refusal)

    def close(self) -> None:
        """Disconnects; the engines cancel what is open."""
        self._closing = True
        self._wakes.wake()
        self._thread.join()
        self._wakes.close()

    # The thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        context = zmq.Context(io_threads=2)
        is_copying = False
        while not self._closing:
            poller = zmq.Poller()
            poller.register(self._wakes.read_fd, zmq.POLLIN)
            for link in self._links:
                if link.connection is not None:
                    poller.register(link.connection.socket, zmq.POLLIN)
                    poller.register(link.connection.monitor, zmq.POLLIN)
            ready = dict(poller.poll(COPYING_NAP_MS if is_copying else TICK_MS))
            if self._wakes.read_fd in ready:
                self._wakes.clear()
            is_copying = self._turn(context)
        for link in self._links:
            link.close()
        context.destroy(linger=0)

    def _turn(self, context: zmq.Context) -> bool:
        """Sends and receives what there is. Returns whether pieces are being copied."""
        now = time.monotonic()
        is_copying = False
        while self._outbox:
            link, message = self._outbox.popleft()
            if isinstance(message, CancelPrompt) or message.fetch_id in link.open:
                link.send(message)
        while self._taken:
            blocks = self._taken.popleft()
            blocks.origin[0].taken(blocks)
        for link in self._links:
            link.receive(now)
            link.keep_connected(context, now)
            is_copying |= link.return_pieces()
        return is_copying
