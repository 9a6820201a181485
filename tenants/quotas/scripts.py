"""Loads the Lua scripts of quotas, and packs the Redis commands that call them.

Commands are packed by hand, so that a call costs the request path a few concatenations. Each script in `lua/`
documents its keys, arguments and reply.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).with_name("lua")
SERVER_CLOCK = """
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
"""
"""Lua function that reads Redis's clock, so that all processes share one time."""

PREFIX = "rootstock:quota:"
PROCESSES = f"{PREFIX}processes"
"""Sorted set of the processes that reserve, by their last renewal (Unix seconds)."""
TENANTS = f"{PREFIX}tenants"
"""Sorted set of tenants that may have open reservations, by when a process last registered them (Unix
seconds).
"""

RESERVE_REPLY = struct.Struct("<12d")
"""Followed by the levels of the plan's rates and contracts, a double each."""
MISSING_REPLY = struct.Struct("<6d")
_RESERVE = struct.Struct("<9d")
_SETTLE = struct.Struct("<6d")

TAKEN, LIMITED, EXHAUSTED, TOO_LARGE, MISSING, KNOWN = range(6)
"""Verdicts of `reserve`."""
MISSING_BYTES = struct.pack("<d", MISSING)
ALL_PARTS = -1
UNKNOWN = -1
"""Reply of `settle` for a reservation that Redis does not have."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Lifetimes and timeouts of reservations, in seconds."""

    lifetime: float = 60.0
    """Lifetime of a reservation without renewal."""
    renew_every: float = 15.0
    silence: float = 40.0
    """Time without any renewal or sweep after which reservations are not expired at once, because Redis may
    have been unreachable. Must be less than `lifetime - renew_every`.
    """
    grace: float = 20.0
    """Time that processes then have to reconnect and renew."""
    away_after: float = 0.5
    """Time without a reply after which Redis counts as unreachable."""

    def __post_init__(self) -> None:
        if self.silence >= self.lifetime - self.renew_every:
            raise ValueError(
                f"silence must be less than lifetime - renew_every = {self.lifetime - self.renew_every} s, "
                f"not {self.silence} s"
            )

    def lua(self) -> str:
        silence, grace = round(self.silence * 1000), round(self.grace * 1000)
        return f"local LONGEST_SILENCE, GRACE = {silence}, {grace}\n"


class Scripts:
    """The scripts' texts, and commands that call them. `clock` is a Lua function; tests replace it."""

    def __init__(self, timing: Timing | None = None, clock: str = SERVER_CLOCK) -> None:
        self.timing = timing or Timing()
        head = clock + self.timing.lua() + (_FOLDER / "shared.lua").read_text()
        self._texts = {
            name: (head + (_FOLDER / f"{name}.lua").read_text()).encode()
            for name in ("reserve", "settle", "renew", "sweep", "state", "raise")
        }
        self._heads = {
            name: bulk(b"EVALSHA") + bulk(sha1(text, usedforsecurity=False).hexdigest().encode())
            for name, text in self._texts.items()
        }
        self._lifetime = round(self.timing.lifetime * 1000)

    def load(self) -> list[bytes]:
        """Returns the commands that load the scripts into a server."""
        return [command(b"SCRIPT", b"LOAD", text) for text in self._texts.values()]

    def reserve_head(self, tag: bytes) -> bytes:
        """Returns the first part of `reserve`, up to its second key: the same for all calls of a tenant."""
        return self._heads["reserve"] + b"$1\r\n2\r\n" + bulk(tag + b"open")

    def reserve(
        self,
        head: bytes,
        tail: bytes,
        tag: bytes,
        request_id: bytes,
        amounts: tuple[int, int, int, int, int, int],
        parts: int = 1,
        seeds: dict[int, int] | None = None,
        force: bool = False,
    ) -> bytes:
        """Packs a call of `reserve`, with `head` from `reserve_head` and `tail` from `reserve_tail`.
        `amounts`: requests, and worst-case input tokens, output tokens and spend, then expected input and
        output tokens.
        """
        packed = self.reserve_arguments(amounts, force, parts)
        key = tag + b"r:" + request_id
        body = b"$%d\r\n%b\r\n%b$72\r\n%b\r\n$%d\r\n%b\r\n" % (
            *(len(key), key, tail, packed),
            *(len(request_id), request_id),
        )
        if not seeds:
            return b"*9\r\n" + head + body
        return b"*10\r\n" + head + body + bulk(msgspec.msgpack.encode(seeds))

    def reserve_arguments(
        self, amounts: tuple[int, int, int, int, int, int], force: bool = False, parts: int = 1
    ) -> bytes:
        """Packs the numeric arguments of `reserve`."""
        return _RESERVE.pack(*amounts, self._lifetime, force, parts)

    def settle(
        self,
        tag: bytes,
        request_id: bytes,
        used: tuple[int, int, int, int],
        memory_ms: int,
    ) -> bytes:
        key = tag + b"r:" + request_id
        open_key = tag + b"open"
        return b"*8\r\n%b$1\r\n2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$48\r\n%b\r\n" % (
            self._heads["settle"],
            *(len(open_key), open_key, len(key), key, len(tag), tag, len(request_id), request_id),
            _SETTLE.pack(*used, ALL_PARTS, memory_ms),
        )

    def text(self, name: str) -> str:
        """Returns a script's text, for redis-py."""
        return self._texts[name].decode()

    def renew(self, tag: bytes, request_ids: list[bytes]) -> bytes:
        return self._call("renew", tag, b"%d" % self._lifetime, *request_ids)

    def sweep(self, tag: bytes, most: int) -> bytes:
        return self._call("sweep", tag, b"%d" % most)

    def state(self, tag: bytes, plan: bytes) -> bytes:
        return self._call("state", tag, plan)

    def raise_levels(self, tag: bytes, levels: list[tuple[str, int, int]]) -> bytes:
        """Packs a call of `raise` with the name, limit and level of each bucket."""
        return self._call("raise", tag, msgspec.msgpack.encode([each for one in levels for each in one]))

    def _call(self, name: str, tag: bytes, *arguments: bytes) -> bytes:
        body = b"".join(map(bulk, (b"1", tag + b"open", tag, *arguments)))
        return b"*%d\r\n%b%b" % (5 + len(arguments), self._heads[name], body)


def settle_arguments(
    tag: bytes, request_id: bytes, used: tuple[int, int, int, int], part: int, memory_ms: int
) -> tuple[list[bytes], list[bytes]]:
    """Returns keys and arguments of the settle script, for redis-py."""
    packed = _SETTLE.pack(*used, part, memory_ms)
    return [tag + b"open", tag + b"r:" + request_id], [tag, request_id, packed]


def reserve_tail(tag: bytes, plan: bytes) -> bytes:
    """Returns the part of `reserve` after its keys: the same for all calls with one plan."""
    return bulk(tag) + bulk(plan)


def tag_of(tenant_id: str) -> bytes:
    """Returns the prefix of a tenant's Redis keys; the braces keep them in one cluster slot."""
    return f"{PREFIX}{{{tenant_id}}}:".encode()


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*arguments: bytes) -> bytes:
    """Packs a command in the Redis protocol."""
    return b"*%d\r\n%b" % (len(arguments), b"".join(map(bulk, arguments)))
