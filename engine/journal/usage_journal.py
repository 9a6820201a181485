"""The usage journal: every event reaches Redis, or the local disk until Redis is back.

Owns one thread that writes what it is given in order: to the Redis stream, in one packet a batch; while Redis
is away to the spool (fsync'ed), which is replayed in order once Redis answers. An entry is reported written
when either has it. Delivery is at least once: an event may appear twice, and readers let the largest counts
of a request win. When neither takes an event the journal fails and the engine must stop: tokens are not given
away unbilled.

Redis answers before it has written: killed, it may come back without what it acknowledged in its last
seconds. So what it has just taken is kept here until it has shown to be alive after that time; when the
connection is another by then, it is written again.

Refuses to know clients, requests and sockets: it carries an entry's `completion` without looking inside.
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
"""Seconds. Short: while Redis hangs, the last words of requests wait for it, though no token does."""
REPLY_TIMEOUT = 1.0
RETRY_MIN, RETRY_MAX = 0.25, 4.0
UNCONFIRMED_SECONDS = 3.0
"""For which Redis may forget what it took, if killed: it syncs its file every second, and while a sync is
slow it puts off writing to it for two.
"""
REPLAY_BATCH = 500
SPOOLED_PAGE = 250
"""Events in one answer to who asks what waits on the disk: some half a millisecond of the step loop's."""
MAX_QUEUED = 10_000
"""Batches (one per step at most). Past it the step loop waits: memory is bounded and nothing is skipped."""
QUEUE_FULL_WAIT, QUEUE_FULL_WARNING = 0.005, 0.5
"""Seconds between two looks then, and between two lines of the log."""

_encoder = msgspec.msgpack.Encoder()


class JournalError(Exception):
    """An event could be kept nowhere. The engine must not go on."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An event; with a request's last, what is given back once it is written: its row and a receipt."""

    event: UsageEvent
    completion: tuple[int, object] | None = None
    row: int | None = None
    """Of a request that goes on."""
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
        """Both callbacks run on the journal's thread; after `on_failed` nothing more is written. Without a
        `numbering` events go as they come.
        """
        # One connection, and no client around it: a client's pipeline takes three times as long, and
        # every request's last word waits for it.
        self._redis = redis.ConnectionPool.from_url(
            redis_url,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            retry=Retry(NoBackoff(), 0),  # the spool is the second try
            health_check_interval=0,
            redis_connect_func=self._connected,
        ).make_connection()
        self._num_connections = 0
        self._last_connection = 0
        self._unconfirmed: deque[tuple[float, bytes]] = deque()
        """When Redis took it over the last connection, and what."""
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
        """What waits on the disk, a page of it; for any thread."""
        events, onward = self._spool.page(position, SPOOLED_PAGE)
        return Spooled(events, onward)

    def write_now(self, events: Sequence[UsageEvent]) -> None:
        """Write on the caller's thread, before `start` or after `close`. Raises JournalError."""
        assert not self._thread.is_alive()
        self._write([_encoder.encode(event) for event in events])

    def announce(self, issued: Sequence[IssuedEvents]) -> None:
        """Tell how many events incarnations have numbered, on the caller's thread as `write_now`.

        Only Redis is told: on the engine's disk it is anyway (`engine.journal.counters`).
        """
        assert not self._thread.is_alive()
        self._send([_encoder.encode(one) for one in issued], ISSUED_STREAM)

    def start(self) -> None:
        self._thread.start()

    def put(self, entries: Sequence[JournalEntry]) -> None:
        """Hand over a step's entries.

        Waits only when MAX_QUEUED batches do. Raises JournalError once failed.
        """
        if self._queue.qsize() >= MAX_QUEUED:
            self._wait_for_room()
        if self._failure is not None:
            raise self._failure
        self._queue.put(entries)

    def close(self, timeout: float) -> bool:
        """Write what is queued, then end the thread.

        False when that took longer than `timeout` seconds, or failed.
        """
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        return self._failure is None

    def release(self) -> None:
        """After `close`: let go of the connection and the file."""
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
        """Write what is queued, or replay some of the spool when nothing is. False at the end."""
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
        # While older events wait on disk newer ones queue behind them, so that the stream keeps its order.
        if len(self._spool) or not self._send(payloads):
            self._spool_payloads(payloads)

    def _spool_payloads(self, payloads: list[bytes]) -> None:
        try:
            self._spool.append(payloads)
        except OSError as error:
            raise JournalError(f"usage can be written neither to Redis nor to the spool: {error}") from error

    def _replay(self) -> None:
        payloads = self._spool.peek(REPLAY_BATCH)
        if payloads and not self._send(payloads):
            return
        try:
            self._spool.consume(len(payloads))
        except OSError as error:
            raise JournalError(f"the spool cannot be emptied: {error}") from error
        if not len(self._spool):
            log.info("usage spool replayed; the journal goes to Redis again")

    def _send(self, payloads: list[bytes], stream: str = JOURNAL_STREAM) -> bool:
        """Append to the stream.

        False, and the time of the next try set, when Redis did not take all of them.
        """
        try:
            self._append(payloads, stream)
            self._on_reply()
            if stream == JOURNAL_STREAM:
                now = time.monotonic()
                self._unconfirmed.extend((now, payload) for payload in payloads)
        except (redis.RedisError, OSError) as error:
            # Whatever Redis has against it (gone, loading, read-only, out of memory), the disk takes over.
            if not self._is_redis_down:
                log.error("Redis does not take the usage journal; spooling to disk", reason=str(error))
            self._on_failure(error)
            return False
        self._is_redis_down = False
        self._retry_after = RETRY_MIN
        return True

    def _append(self, payloads: list[bytes], stream: str) -> None:
        """Raises redis.RedisError: some of them may be there all the same."""
        connection = self._redis
        if connection.is_connected and self._is_closed_by_redis():
            connection.disconnect()
        commands = [("XADD", stream, "*", b"e", payload) for payload in payloads]
        connection.send_packed_command(connection.pack_commands(commands))
        refusal = None
        for _ in commands:
            try:
                connection.read_response()
            except redis.ResponseError as error:  # the other answers are to be read nevertheless
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _is_closed_by_redis(self) -> bool:
        """Whether the other end has closed the connection: nothing else is to be read before asking."""
        try:
            return self._redis.can_read()
        except (redis.RedisError, OSError):
            return True

    # What Redis may forget ----------------------------------------------------------------------------------

    def _connected(self, connection: redis.Connection) -> None:
        connection.on_connect()
        self._num_connections += 1

    def _ping_redis(self) -> None:
        """Nothing is to be written, and what was is in doubt no longer if Redis lives."""
        try:
            self._redis.send_command("PING")
            self._redis.read_response()
            self._on_reply()
        except (redis.RedisError, OSError) as error:
            self._on_failure(error)

    def _on_reply(self) -> None:
        """Redis has answered: what it took long enough before that, it has on disk. Over a new connection the
        answer may be that of another life.
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
        if not isinstance(error, redis.ResponseError):  # who refuses lives
            self._rewrite_unconfirmed()

    def _rewrite_unconfirmed(self) -> None:
        """By way of the disk: an event that is there twice counts once."""
        if self._unconfirmed:
            payloads = [payload for _, payload in self._unconfirmed]
            self._unconfirmed.clear()
            self._spool_payloads(payloads)
