"""The scripts as they are called, over a real Redis whose clock the test sets."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import redis

from tenants.quotas import scripts as lua
from tenants.quotas.plan import CONTRACT, KINDS, MEASURES
from tenants.quotas.scripts import Scripts, Timing, reserve_tail, settle_arguments, tag_of
from tests.tenants.quotas.model import Cost, Rule

CLOCK_KEY = "test:now"
CLOCK = f"local function clock() return tonumber(redis.call('GET', '{CLOCK_KEY}')) end\n"
VERDICTS = {
    lua.TAKEN: "taken",
    lua.LIMITED: "limited",
    lua.EXHAUSTED: "exhausted",
    lua.TOO_LARGE: "too large",
    lua.KNOWN: "known",
}
_MEASURES = {"requests": "requests", "input": "input_tokens", "output": "output_tokens"}
TAG = tag_of("tnt_1")


class Scripted:
    """One tenant's quotas by the wire, one call at a time."""

    def __init__(self, client: redis.Redis, rules: Sequence[Rule], seeds: dict[str, int]) -> None:
        self.client = client
        self.rules = rules
        self.seeds = seeds
        self.scripts = Scripts(Timing(), CLOCK)
        for load in self.scripts.load():
            self.send(load)
        self.plan = plan_of(rules)
        self.wait = 0
        self.within = True
        self.views: tuple[float, ...] = ()
        self.levels: tuple[float, ...] = ()
        """Of rates and contracts, in units."""

    def send(self, packed: bytes) -> Any:
        connection = self.client.connection_pool.get_connection()
        try:
            connection.send_packed_command([packed], check_health=False)
            return connection.read_response(disable_decoding=True)
        finally:
            self.client.connection_pool.release(connection)

    def set_clock(self, now: int) -> None:
        self.client.set(CLOCK_KEY, now)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """What is done within, the clock's setting included, is undone at the end."""
        keys = self.client.keys()
        before = [(key, self.client.dump(key), max(0, self.client.pttl(key))) for key in keys]
        yield
        with self.client.pipeline() as batch:
            batch.flushdb()
            for key, value, lives_for in before:
                batch.restore(key, lives_for, value)
            batch.execute()

    def reserve(self, name: str, worst: Cost, likely: Cost, parts: int = 1) -> str:
        amounts = (worst.requests, worst.input, worst.output, worst.spend, likely.input, likely.output)
        seeds: dict[int, int] | None = None
        while True:
            packed = self.scripts.reserve(
                self.scripts.reserve_head(TAG),
                reserve_tail(TAG, self.plan),
                TAG,
                name.encode(),
                amounts,
                parts,
                seeds,
            )
            answer = self.send(packed)
            if answer[:8] != lua.MISSING_BYTES:
                verdict, _, wait, _, within, _, *views = lua.RESERVE_REPLY.unpack_from(answer)
                self.wait, self.within, self.views = int(wait), bool(within), tuple(views)
                self.levels = tuple(
                    level / 60_000 for (level,) in struct.iter_unpack("<d", answer[lua.RESERVE_REPLY.size :])
                )
                return VERDICTS[int(verdict)]
            missing = msgspec.msgpack.decode(answer[lua.MISSING_REPLY.size :])
            seeds = {number: self.seeds.get(self.rules[number - 1].name, 0) for number in missing}

    def settle(self, name: str, used: Cost) -> int:
        amounts = (used.requests, used.input, used.output, used.spend)
        return int(self.send(self.scripts.settle(TAG, name.encode(), amounts, 300_000)))

    def settle_part(self, name: str, part: int, used: Cost) -> int:
        amounts = (used.requests, used.input, used.output, used.spend)
        keys, arguments = settle_arguments(TAG, name.encode(), amounts, part, 300_000)
        return int(self.client.eval(self.scripts.text("settle"), len(keys), *keys, *arguments))  # type: ignore[arg-type]

    def renew(self, names: Sequence[str]) -> list[str]:
        answer = self.send(self.scripts.renew(TAG, [name.encode() for name in names]))
        return msgspec.msgpack.decode(answer, type=list[str])

    def sweep(self) -> int:
        return int(self.send(self.scripts.sweep(TAG, 100)))

    def state(self) -> list[tuple[int, int]]:
        """(used, held) of each bucket; (0, 0) of a budget that is not counted yet."""
        answer = msgspec.msgpack.decode(self.send(self.scripts.state(TAG, self.plan)))
        numbers = answer[1:]
        return [(numbers[4 * i + 1], numbers[4 * i + 2]) for i in range(len(self.rules))]


def plan_of(rules: Sequence[Rule]) -> bytes:
    flat: list[str | int] = []
    for rule in rules:
        kind = CONTRACT if rule.kind == "contract" else KINDS[rule.kind]
        flat += (rule.name, kind, MEASURES[_MEASURES.get(rule.measure, rule.measure)], rule.amount)  # type: ignore[index]
    return msgspec.msgpack.encode(flat)
