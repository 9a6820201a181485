"""Lists a cluster's engines in Redis: each engine registers where it listens, and with which key.

A registration expires unless its engine renews it. Redis is trusted, as it is with usage: a program that
writes to it can name an engine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_plus

import msgspec
import redis
import redis.asyncio
import structlog

log = structlog.get_logger(__name__)

REGISTRY = "rootstock:registry"
"""The set of ids that were registered; each id's registration has a key of its own, which expires."""
EXPIRES_S = 10
RENEW_S = 2.0
_TIMEOUT_S = 2.0
_PREFIX = "registry+"
_SECRET, _BASE = "secret=", "base="


class Registration(msgspec.Struct, frozen=True):
    """Where one incarnation of an engine listens."""

    engine_id: str
    incarnation: str
    endpoint: str
    """tcp://HOST:PORT, as clients reach it."""
    key: str
    """The engine's public key, in hexadecimal."""
    base: str
    """The name of its base model."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Registration)


def key_of(engine_id: str) -> str:
    """Returns the key of an engine's registration."""
    return f"{REGISTRY}:{engine_id}"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """A registry, as it is named among endpoints, and what clients of its engines need."""

    redis_url: str
    secret: Path
    """The file with the clients' secret key."""
    base: str | None = None
    """The name of the base model whose engines are meant; None: all."""

    @classmethod
    def parse(cls, text: str) -> RegistryAddress | None:
        """Reads `registry+REDIS_URL?secret=FILE[&base=NAME]`. Where the URL has a query of its own, these may
        also be among its options. Returns None for another kind of endpoint; raises ValueError for a registry
        without a secret.
        """
        if not text.startswith(_PREFIX):
            return None
        url, _, query = text.removeprefix(_PREFIX).partition("?")
        options = [option for option in query.replace("?", "&").split("&") if option]
        secret, base = _value_of(_SECRET, options), _value_of(_BASE, options)
        if not secret:
            raise ValueError("a registry of engines needs the clients' key: registry+REDIS_URL?secret=FILE")
        rest = "&".join(option for option in options if not option.startswith((_SECRET, _BASE)))
        return cls(f"{url}?{rest}" if rest else url, Path(secret), base or None)

    def __str__(self) -> str:
        separator = "&" if "?" in self.redis_url else "?"
        text = f"{_PREFIX}{self.redis_url}{separator}{_SECRET}{quote(str(self.secret))}"
        return text if self.base is None else f"{text}&{_BASE}{quote(self.base)}"

    def endpoints_of(self, registered: Iterable[Registration]) -> list[str]:
        """Returns the endpoints that clients connect to, of those of some engines that are meant."""
        secret = quote(str(self.secret))
        meant = (one for one in registered if self.base in (None, one.base))
        return [f"{one.endpoint}?key={one.key}&secret={secret}" for one in meant]


def _value_of(option: str, options: list[str]) -> str:
    found = [one for one in options if one.startswith(option)]
    return unquote_plus(found[0].removeprefix(option)) if found else ""


async def read_registry(client: redis.asyncio.Redis) -> list[Registration]:
    """Returns the engines that are registered now, by id. Raises redis.RedisError."""
    names = sorted(_text(name) for name in await client.smembers(REGISTRY))
    if not names:
        return []
    found = await client.mget([key_of(name) for name in names])
    return [one for one in map(decode_registration, found) if one is not None]


def decode_registration(payload: bytes | str | None) -> Registration | None:
    """Returns the registration in a value of Redis; None for an expired or unreadable one."""
    if payload is None:
        return None
    try:
        return _decoder.decode(payload.encode() if isinstance(payload, str) else payload)
    except msgspec.DecodeError as error:
        log.error("a registration of an engine cannot be read", reason=str(error))
        return None


def _text(name: bytes | str) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


class Registrar:
    """Keeps one engine registered, from a thread of its own, until `close`.

    While Redis is away, clients keep the engines they know; the registration follows once it is back.
    """

    def __init__(self, redis_url: str, registration: Registration) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._registration = registration
        self._closing = threading.Event()
        self._is_down = False
        self._thread = threading.Thread(target=self._run, name="registrar", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Removes the registration, unless a later incarnation has replaced it."""
        self._closing.set()
        self._thread.join()
        name = key_of(self._registration.engine_id)
        try:
            current = decode_registration(self._redis.get(name))
            if current is not None and current.incarnation == self._registration.incarnation:
                self._redis.delete(name)
        except redis.RedisError as error:
            log.warning("the engine's registration stays until it expires", reason=str(error))
        finally:
            self._redis.close()

    def _run(self) -> None:
        while True:
            self._register()
            if self._closing.wait(RENEW_S):
                return

    def _register(self) -> None:
        registration = self._registration
        try:
            with self._redis.pipeline() as pipeline:
                pipeline.set(key_of(registration.engine_id), _encoder.encode(registration), ex=EXPIRES_S)
                pipeline.sadd(REGISTRY, registration.engine_id)
                pipeline.execute()
            self._is_down = False
        except redis.RedisError as error:
            if not self._is_down:
                log.error("Redis does not accept the engine's registration", reason=str(error))
            self._is_down = True
