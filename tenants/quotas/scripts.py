"""The Lua scripts of quotas: their text with their times, and commands that call them as Redis reads them.

Owns the wire form, so that a call costs the request path a few concatenations. What the scripts do is said in
`lua/*.lua`; which calls are made when, elsewhere.
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
"""Of every process the same, whatever their own clocks say."""

PREFIX = "rootstock:quota:"
PROCESSES = f"{PREFIX}processes"
"""Sorted set of the processes that reserve, by when each was last heard of (Unix seconds)."""
TENANTS = f"{PREFIX}tenants"
"""Sorted set of tenants that may have open reservations, by when one was last made or renewed."""

RESERVE_REPLY = struct.Struct("<12d")
"""After it come the levels of the plan's rates and contracts, a double each."""
MISSING_REPLY = struct.Struct("<6d")
_RESERVE = struct.Struct("<9d")
_SETTLE = struct.Struct("<6d")

TAKEN, LIMITED, EXHAUSTED, TOO_LARGE, MISSING, KNOWN = range(6)
"""Verdicts of `reserve`."""
MISSING_BYTES = struct.pack("<d", MISSING)
ALL_PARTS = -1
UNKNOWN = -1
"""What `settle` answers of a reservation that Redis does not have."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds."""

    lifetime: float = 60.0
    """Of a reservation that nobody renews."""
    renew_every: float = 15.0
    silence: float = 40.0
    """Without any renewal or sweep, after which no reservation is held to have expired: Redis may have been
    away. Less than a lifetime without the last renewal.
    """
    grace: float = 20.0
    """That those who would have renewed then have to come back."""
    away_after: float = 0.5
    """Without an answer after which Redis counts as away."""

    def __post_init__(self) -> None:
        if self.silence >= self.lifetime - self.renew_every:
            raise ValueError("silence must be less than lifetime - renew_every")

    def lua(self) -> str:
        silence, grace = round(self.silence * 1000), round(self.grace * 1000)
        return f"local LONGEST_SILENCE, GRACE = {silence}, {grace}\n"


class Scripts:
    """The scripts' texts, and commands that call them. `clock` is Lua: tests travel in time with another."""

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
        """Commands that make the scripts known to a server."""
        return [command(b"SCRIPT", b"LOAD", text) for text in self._texts.values()]

    def reserve_head(self, tag: bytes) -> bytes:
        """Of `reserve`, what is the same for all of a tenant's calls, up to its second key."""
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
        """`head` from `reserve_head`, `tail` from `reserve_tail`. `amounts`: requests, input, output and
        spend at most, input and output likely.
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
        """The numbers that `reserve` is called with."""
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
        """For the general client."""
        return self._texts[name].decode()

    def renew(self, tag: bytes, request_ids: list[bytes]) -> bytes:
        return self._call("renew", tag, b"%d" % self._lifetime, *request_ids)

    def sweep(self, tag: bytes, most: int) -> bytes:
        return self._call("sweep", tag, b"%d" % most)

    def state(self, tag: bytes, plan: bytes) -> bytes:
        return self._call("state", tag, plan)

    def raise_levels(self, tag: bytes, levels: list[tuple[str, int, int]]) -> bytes:
        """`levels`: name, limit and level of each bucket."""
        return self._call("raise", tag, msgspec.msgpack.encode([each for one in levels for each in one]))

    def _call(self, name: str, tag: bytes, *arguments: bytes) -> bytes:
        pieces = b"".join(map(bulk, (b"1", tag + b"open", tag, *arguments)))
        return b"*%d\r\n%b%b" % (5 + len(arguments), self._heads[name], pieces)


def settle_arguments(
    tag: bytes, request_id: bytes, used: tuple[int, int, int, int], part: int, memory_ms: int
) -> tuple[list[bytes], list[bytes]]:
    """Keys and arguments of the script that settles, for the general client."""
    packed = _SETTLE.pack(*used, part, memory_ms)
    return [tag + b"open", tag + b"r:" + request_id], [tag, request_id, packed]


def reserve_tail(tag: bytes, plan: bytes) -> bytes:
    """Of `reserve`, what is the same for all calls with one plan, after its keys."""
    return bulk(tag) + bulk(plan)


def tag_of(tenant_id: str) -> bytes:
    """What all keys of a tenant begin with; the braces keep them on one node of a cluster."""
    return f"{PREFIX}{{{tenant_id}}}:".encode()


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def command(*arguments: bytes) -> bytes:
    """As Redis reads it."""
    return b"*%d\r\n%b" % (len(arguments), b"".join(map(bulk, arguments)))
