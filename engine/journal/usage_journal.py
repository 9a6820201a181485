"""Writes every usage event to Redis, or to local disk until Redis is back.

One thread writes entries in order: to the Redis stream, in one packet per batch; while Redis is unreachable
to the spool (with fsync), which is replayed in order once Redis answers. An entry is reported as written when
either has it. Delivery is at least once: an event may appear twice, and readers let a request's largest
counts win. When neither accepts an event the journal fails and the engine must stop: tokens are not given
away unbilled.

Redis answers before it has written: if killed, it may come back without what it acknowledged in its last
seconds. So recent payloads are kept until Redis answers again after that time; if the connection is a new one
by then, they are written again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine.journal.event_numbering import EventNumbering
from engine.journal.spool import Spool
from engine.protocol import ISSUED_STREAM, JOURNAL_STREAM, IssuedEvents, Spooled, UsageEvent

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT = 0.5
"""Seconds. Short: while Redis hangs, `Finished` messages wait for it, though tokens do not."""
REPLY_TIMEOUT = 1.0
RETRY_MIN, RETRY_MAX = 0.25, 4.0
UNCONFIRMED_SECONDS = 3.0
"""Period in which Redis may lose what it accepted, if killed: it syncs its file every second, and while a
sync is slow it delays writing to it for two."""
REPLAY_BATCH = 500
SPOOLED_PAGE = 250
"""Events in one page of spooled events: takes about half a millisecond of the step loop."""
MAX_QUEUED = 10_000
"""Batches (at most one per step). Beyond it the step loop waits: memory is bounded and nothing is dropped."""
QUEUE_FULL_WAIT, QUEUE_FULL_WARNING = 0.005, 0.5
"""Seconds between two checks of a full queue, and between two log lines about it."""

_encoder = msgspec.msgpack.Encoder()


class JournalError(Exception):
    """An event cannot be stored anywhere. The engine must stop."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event to write; a request's last one returns its row and a receipt once written."""

    event: UsageEvent
    completion: tuple[int, object] | None = None
    row: int | None = None
    """Of a request that is still open."""
    tokens: int = 0
    """Completion tokens that no earlier event of the request has."""


class UsageJournal:
    """Writes usage events in the order given, in a thread of its own."""

    def __init__(
        self,
        redis_url: str,
        spool: Spool,
        on_written: Callable[[list[JournalEntry]], None],
        on_failed: Callable[[JournalError], None],
        numbering: EventNumbering | None = None,
    ) -> None:
        """Both callbacks run on the journal's thread; after `on_failed` nothing more is written. Without
        `numbering`, events are written unnumbered.
        """
        # One connection, and no client around it: a client's pipeline takes three times as long, and
        # every `Finished` message waits for it.
        self._redis = redis.ConnectionPool.from_url(
            redis_url,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            retry=Retry(NoBackoff(), 0),  # the spool is the retry
            health_check_interval=0,
            redis_connect_func=self._connected,
        ).make_connection()
        self._num_connections = 0
        self._last_connection = 0
        self._unconfirmed: deque[tuple[float, bytes]] = deque()
        """Payloads that Redis accepted over the last connection, and when."""
        self._spool = spool
        self._on_written = on_written
        self._on_failed = on_failed
        self._numbering = numbering
        self._queue: queue.SimpleQueue[Sequence[JournalEntry] | None] = queue.SimpleQueue()
        self._failure: JournalError | None = None
        self._is_redis_down = False
        self._retry_after = RETRY_MIN
        self._retry_at = 0.0
        self._thread = threading.Thread(target=self._run, name="usage-journal", daemon=True)

    @property
    def num_spooled(self) -> int:
        """Events on local disk, waiting for Redis."""
        return len(self._spool)

    def spooled(self, position: int) -> Spooled:
        """Returns a page of the spooled events; for any thread."""
        events, onward = self._spool.page(position, SPOOLED_PAGE)
        return Spooled(events, onward)

    def write_now(self, events: Sequence[UsageEvent]) -> None:
        """Writes on the caller's thread, before `start` or after `close`. Raises JournalError."""
        assert not self._thread.is_alive()
        self._write([_encoder.encode(event) for event in events])

    def announce(self, issued: Sequence[IssuedEvents]) -> None:
        """Tells Redis how many events incarnations have numbered, on the caller's thread like `write_now`.

        The engine's disk has the numbers anyway (`engine.journal.counters`).
        """
        assert not self._thread.is_alive()
        self._send([_encoder.encode(one) for one in issued], ISSUED_STREAM)

    def start(self) -> None:
        self._thread.start()

    def put(self, entries: Sequence[JournalEntry]) -> None:
        """Queues a step's entries.

        Waits only when MAX_QUEUED batches are queued. Raises JournalError once the journal has failed.
        """
        if self._queue.qsize() >= MAX_QUEUED:
            self._wait_for_room()
        if self._failure is not None:
            raise self._failure
        self._queue.put(entries)

    def close(self, timeout: float) -> bool:
        """Writes what is queued, then ends the thread.

        Returns False when that took longer than `timeout` seconds, or failed.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        return self._failure is None

    def release(self) -> None:
        """Closes the connection and the file, after `close`."""
        self._redis.disconnect()
        self._spool.close()

    def _wait_for_room(self) -> None:
        warned_at = time.monotonic()
        while self._queue.qsize() >= MAX_QUEUED and self._failure is None:
            time.sleep(QUEUE_FULL_WAIT)
            if time.monotonic() - warned_at > QUEUE_FULL_WARNING:
                warned_at = time.monotonic()
                log.warning("the usage journal is behind; steps wait for it", queued=self._queue.qsize())

    def _run(self) -> None:
        try:
            while self._process_next():
                pass
        except JournalError as error:
            self._failure = error
            log.critical("the usage journal failed; the engine stops", reason=str(error))
            self._on_failed(error)

    def _process_next(self) -> bool:
        """Writes what is queued, or replays part of the spool when nothing is. Returns False at the end."""
        try:
            entries = list(self._next_batch() or ())
        except queue.Empty:
            if len(self._spool):
                self._replay()
            else:
                self._ping_redis()
            return True
        if not entries:
            return False
        last = False
        while len(entries) < REPLAY_BATCH and not self._queue.empty():
            more = self._queue.get_nowait()
            if more is None:
                last = True
                break
            entries.extend(more)
        self._write([_encoder.encode(event) for event in self._numbered(entries)])
        if self._numbering is not None:
            self._numbering.written()
        self._on_written(entries)
        if len(self._spool) and time.monotonic() >= self._retry_at:
            self._replay()
        return not last

    def _numbered(self, entries: Sequence[JournalEntry]) -> list[UsageEvent]:
        if self._numbering is None:
            return [entry.event for entry in entries]
        return [self._numbering.stamp(entry.event, entry.tokens) for entry in entries]

    def _next_batch(self) -> Sequence[JournalEntry] | None:
        if len(self._spool):
            wait = self._retry_at - time.monotonic()
        elif self._unconfirmed:
            wait = self._unconfirmed[-1][0] + UNCONFIRMED_SECONDS - time.monotonic()
        else:
            return self._queue.get()
        return self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()

    def _write(self, payloads: list[bytes]) -> None:
        # While older events wait on disk, newer ones go behind them, so that the stream keeps its order.
        if len(self._spool) or not self._send(payloads):
            self._spool_payloads(payloads)

    def _spool_payloads(self, payloads: list[bytes]) -> None:
        try:
            self._spool.append(payloads)
        except OSError as error:
            raise JournalError(f"cannot write usage to Redis or to the spool: {error}") from error

    def _replay(self) -> None:
        payloads = self._spool.peek(REPLAY_BATCH)
        if payloads and not self._send(payloads):
            return
        try:
            self._spool.consume(len(payloads))
        except OSError as error:
            raise JournalError(f"cannot empty the spool: {error}") from error
        if not len(self._spool):
            log.info("usage spool replayed; the journal writes to Redis again")

    def _send(self, payloads: list[bytes], stream: str = JOURNAL_STREAM) -> bool:
        """Appends to the stream.

        Returns False, and sets the time of the next try, when Redis did not accept all of them.
        """
        try:
            self._append(payloads, stream)
            self._on_reply()
            if stream == JOURNAL_STREAM:
                now = time.monotonic()
                self._unconfirmed.extend((now, payload) for payload in payloads)
        except (redis.RedisError, OSError) as error:
            # Whatever the reason (gone, loading, read-only, out of memory), the disk takes over.
            if not self._is_redis_down:
                log.error("Redis does not accept usage events; spooling to disk", reason=str(error))
            self._on_failure(error)
            return False
        self._is_redis_down = False
        self._retry_after = RETRY_MIN
        return True

    def _append(self, payloads: list[bytes], stream: str) -> None:
        """Raises redis.RedisError: some of the payloads may have been written nevertheless."""
        connection = self._redis
        if connection.is_connected and self._is_closed_by_redis():
            connection.disconnect()
        commands = [("XADD", stream, "*", b"e", payload) for payload in payloads]
        connection.send_packed_command(connection.pack_commands(commands))
        refusal = None
        for _ in commands:
            try:
                connection.read_response()
            except redis.ResponseError as error:  # the other replies must be read nevertheless
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _is_closed_by_redis(self) -> bool:
        """Returns whether the other end closed the connection: nothing else can be readable
        before a command.
        """
        try:
            return self._redis.can_read()
        except (redis.RedisError, OSError):
            return True

    # Payloads that Redis may lose ---------------------------------------------------------------------------

    def _connected(self, connection: redis.Connection) -> None:
        connection.on_connect()
        self._num_connections += 1

    def _ping_redis(self) -> None:
        """Confirms, while nothing is to be written, that Redis still has what it accepted."""
        try:
            self._redis.send_command("PING")
            self._redis.read_response()
            self._on_reply()
        except (redis.RedisError, OSError) as error:
            self._on_failure(error)

    def _on_reply(self) -> None:
        """Drops payloads that Redis accepted long enough ago to have on disk. A reply over a new connection
        may come from a restarted Redis: then they are written again.
        """
        if self._num_connections != self._last_connection:
            self._last_connection = self._num_connections
            self._rewrite_unconfirmed()
        long_ago = time.monotonic() - UNCONFIRMED_SECONDS
        while self._unconfirmed and self._unconfirmed[0][0] <= long_ago:
            self._unconfirmed.popleft()

    def _on_failure(self, error: Exception) -> None:
        self._is_redis_down = True
        self._retry_at = time.monotonic() + self._retry_after
        self._retry_after = min(2 * self._retry_after, RETRY_MAX)
        if not isinstance(error, redis.ResponseError):  # an error reply shows that Redis is alive
            self._rewrite_unconfirmed()

    def _rewrite_unconfirmed(self) -> None:
        """Writes unconfirmed payloads again, by way of the disk: an event that is there twice counts once."""
        if self._unconfirmed:
            payloads = [payload for _, payload in self._unconfirmed]
            self._unconfirmed.clear()
            self._spool_payloads(payloads)
