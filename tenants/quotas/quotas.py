"""Reserves limits before a request runs and settles them afterwards, for all requests of one process.

One Lua script reserves; settlements are sent at once and resent until acknowledged; open reservations are
renewed. While Redis is unreachable, `local_share` enforces rate limits, and requests that count towards
budgets are refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import structlog

from db.errors import DatabaseUnavailable
from tenants.context import TenantContext
from tenants.errors import BalanceExhausted, QuotaExhausted, QuotaUnavailable, RateLimited
from tenants.limits.kinds import NOTHING, Amounts, Limit, RateView
from tenants.quotas import scripts as lua
from tenants.quotas.lease_renewal import LeaseRenewal
from tenants.quotas.local_share import LocalShare, RaisedLevel
from tenants.quotas.plan import CompiledPlan, Contract, Plans, compile_plan
from tenants.quotas.redis_connection import RedisConnection, RedisDown, ReplyError
from tenants.quotas.reservation import LimitState, Reservation, UsageReader
from tenants.quotas.scripts import Scripts, Timing
from tenants.quotas.settlement import Settlements
from tenants.quotas.unreserved_spend import window_start

log = structlog.get_logger(__name__)

UNAVAILABLE_RETRY = 2.0
"""Seconds after which clients should retry what needs Redis or the ledger."""


class Quotas:
    """Enforces the limits of one process's requests. `name`: unique name of the process.

    `read_usage` looks up a budget's usage in the ledger when Redis has no count of it; without it, such a
    budget starts at zero.
    """

    def __init__(
        self,
        redis_url: str,
        name: str,
        *,
        read_usage: UsageReader | None = None,
        timing: Timing | None = None,
        scripts: Scripts | None = None,
    ) -> None:
        self._scripts = scripts or Scripts(timing)
        self._read_usage = read_usage
        self._seeding: dict[tuple[bytes, str], asyncio.Future[int]] = {}
        self._plans = Plans(self._scripts)
        self._local = LocalShare()
        self.num_judged_locally = 0
        """Requests admitted by this process's share of the limits, because Redis was unreachable."""
        self.num_refused_locally = 0
        """Requests refused meanwhile: above that share, or counting towards a budget."""
        self._connection = RedisConnection(
            redis_url,
            self._scripts.load(),
            timeout=self._scripts.timing.away_after,
            on_connected=self._on_connected,
        )
        self._settlements = Settlements(self._connection, self._scripts, self._reserve_again)
        self._renewal = LeaseRenewal(self._connection, self._scripts, name, self._local, self._reserve_again)

    async def start(self) -> None:
        """Starts connecting, without waiting for Redis."""
        self._connection.start()
        self._renewal.start()

    async def close(self, patience: float = 5.0) -> None:
        """Waits at most `patience` seconds until all settlements are acknowledged; the usage journal settles
        the rest.
        """
        await self._settlements.drain(patience)
        await self._renewal.close()
        for task in self._seeding.values():
            task.cancel()
        await self._connection.close()

    @property
    def away(self) -> bool:
        """Whether Redis is unreachable, so that this process's share of the limits applies."""
        return not self._connection.is_up

    @property
    def num_open(self) -> int:
        """Reservations that this process holds."""
        return self._renewal.num_open

    # Reserving ----------------------------------------------------------------------------------------------

    async def reserve(
        self,
        request_id: str,
        caller: TenantContext,
        model: str,
        worst: Amounts,
        expected: Amounts | None = None,
        contract: Contract | None = None,
        parts: int = 1,
    ) -> Reservation:
        """Reserves what a request can use of every limit that it counts towards, or nothing.

        Budgets are reserved for the `worst` case, rates and the contract for the `expected` one (default:
        `worst`). `parts`: number of engine requests, with the ids `<request_id>-<k>` if more than one.

        Raises:
            RateLimited: a rate limit is exceeded for now.
            QuotaExhausted: a budget is exhausted until it resets, or the request exceeds it alone.
            QuotaUnavailable: a budget applies, and Redis or the ledger is unreachable.
        """
        expected = expected or worst
        plan = self._plans.of(caller, model, contract)
        reservation = Reservation(request_id, worst, expected, parts, plan)
        if plan is None:
            reservation.ended = True
            return reservation
        if not self._connection.is_up:
            return self._reserve_locally(reservation, plan)
        if self._local.has_unreported:
            self._report_shares()
        try:
            verdict = await self._ask(reservation, plan)
        except (RedisDown, ReplyError) as error:
            log.warning("redis did not reserve: this process's share of the limits applies", error=str(error))
            self._settlements.withdraw(reservation)  # Redis may have made it
            return self._reserve_locally(reservation, plan)
        except BaseException:  # the request was cancelled
            self._settlements.withdraw(reservation)
            raise
        self._judge(reservation, plan, verdict)
        return reservation

    async def _ask(
        self, reservation: Reservation, plan: CompiledPlan, force: bool = False
    ) -> tuple[float, ...]:
        """Returns the verdict of Redis. Looks up missing budget counts in the ledger and asks again."""
        worst, expected = reservation.worst, reservation.expected
        request_id = reservation.request_id.encode()
        amounts = (
            *(worst.requests, worst.input_tokens, worst.output_tokens, worst.spend),
            *(expected.input_tokens, expected.output_tokens),
        )
        seeds: dict[int, int] | None = None
        for _ in range(3):
            packed = self._scripts.reserve(
                plan.head,
                plan.tail,
                plan.tag,
                request_id,
                amounts,
                reservation.parts,
                seeds,
                force,
            )
            try:
                answer: bytes = await self._connection.call(packed, urgent=True)
            except ReplyError as error:
                if not str(error).startswith("NOSCRIPT"):
                    raise
                for load in self._scripts.load():
                    await self._connection.call(load)
                continue
            if answer[:8] != lua.MISSING_BYTES:
                self._local.redis_answered(plan, answer[lua.RESERVE_REPLY.size :])
                return lua.RESERVE_REPLY.unpack_from(answer)
            now = lua.MISSING_REPLY.unpack_from(answer)[3]
            missing: list[int] = msgspec.msgpack.decode(answer[lua.MISSING_REPLY.size :])
            seeds = {number: await self._used_since(plan, number, now) for number in missing}
        raise ReplyError("redis keeps losing the loaded scripts or the counts")

    async def _used_since(self, plan: CompiledPlan, number: int, now_ms: float) -> int:
        """Returns a budget's usage in its current window, from the ledger. Raises QuotaUnavailable."""
        bucket = plan.buckets[number - 1]
        assert bucket.limit is not None
        if self._read_usage is None:
            return 0
        key = (plan.tag, bucket.name)
        task = self._seeding.get(key)
        if task is None:
            start = window_start(bucket.limit, datetime.fromtimestamp(now_ms / 1000, UTC))
            task = asyncio.ensure_future(self._read_usage(plan.tenant_id, bucket.limit, start))
            self._seeding[key] = task
            task.add_done_callback(lambda done: self._seeded(key, done))
        try:
            return await asyncio.shield(task)
        except DatabaseUnavailable as error:
            raise QuotaUnavailable(UNAVAILABLE_RETRY) from error

    def _seeded(self, key: tuple[bytes, str], task: asyncio.Future[int]) -> None:
        self._seeding.pop(key, None)
        if not task.cancelled():
            task.exception()  # retrieved here too, in case every waiter was cancelled

    def _judge(self, reservation: Reservation, plan: CompiledPlan, verdict: tuple[float, ...]) -> None:
        outcome, number, wait_ms, now_ms, within, overdue = verdict[:6]
        if verdict[6] >= 0:
            reservation.requests = RateView(int(verdict[6]), int(verdict[7]), verdict[8] / 1000)
        if verdict[9] >= 0:
            reservation.tokens = RateView(int(verdict[9]), int(verdict[10]), verdict[11] / 1000)
        if overdue:
            self._renewal.sweep_soon(plan.tag)
        if outcome == lua.TAKEN:
            reservation.within_contract = bool(within)
            self._renewal.add(reservation, plan)
            return
        reservation.ended = True
        if outcome == lua.KNOWN:
            raise ValueError(f"request_id {reservation.request_id!r} has been used before")
        limit = plan.buckets[int(number) - 1].limit
        assert limit is not None, "a contract refuses nothing"
        views = reservation.requests, reservation.tokens
        if outcome == lua.LIMITED:
            raise RateLimited(limit, wait_ms / 1000, *views)
        if limit.metric.kind == "ever":
            raise BalanceExhausted(limit, *views)
        if outcome == lua.TOO_LARGE:
            raise QuotaExhausted(limit, None, *views)
        raise QuotaExhausted(limit, datetime.fromtimestamp((now_ms + wait_ms) / 1000, UTC), *views)

    def _reserve_locally(self, reservation: Reservation, plan: CompiledPlan) -> Reservation:
        if plan.has_windows:
            reservation.ended = True
            self.num_refused_locally += 1
            raise QuotaUnavailable(UNAVAILABLE_RETRY)
        reservation.local = True
        likely = _rates(reservation.expected)
        refusal = self._local.reserve(plan, likely, partial(self._renewal.num_holding, plan.tag))
        if refusal is None:
            self.num_judged_locally += 1
            reservation.within_contract = self._local.within_contract(plan, likely)
            reservation.ended = False  # `withdraw` sets it
            reservation.began = self._local.now()
            return reservation
        reservation.ended = True
        self.num_refused_locally += 1
        assert refusal.bucket.limit is not None
        if refusal.retry_after == float("inf"):
            raise QuotaExhausted(refusal.bucket.limit, None, local=True)
        raise RateLimited(refusal.bucket.limit, refusal.retry_after, local=True)

    # Settling -----------------------------------------------------------------------------------------------

    def settle(self, reservation: Reservation, used: Amounts) -> None:
        """Charges what was used and returns the rest. Does not wait for Redis; resent until acknowledged.
        Repeating it changes nothing.
        """
        if reservation.ended:
            return
        reservation.ended = True
        plan = reservation.plan
        assert plan is not None
        if reservation.local:
            likely = _rates(reservation.expected)
            self._local.settle(plan, likely, _rates(used), reservation.began, reservation.within_contract)
            return
        self._renewal.remove(reservation, plan)
        self._settlements.settle(reservation, plan, used)

    def cancel(self, reservation: Reservation) -> None:
        """Returns everything: the request was refused before it ran, and does not count as a request."""
        self.settle(reservation, NOTHING)

    def leave(self, reservation: Reservation) -> None:
        """Gives up a reservation whose usage is unknown here: the usage journal settles it, or it expires."""
        if reservation.local:
            self.settle(reservation, reservation.expected)
        elif not reservation.ended:
            reservation.ended = True
            assert reservation.plan is not None
            self._renewal.remove(reservation, reservation.plan)

    async def _reserve_again(self, reservation: Reservation) -> None:
        """Reserves again what Redis has lost, whether or not there is room."""
        assert reservation.plan is not None
        await self._ask(reservation, reservation.plan, force=True)

    def _on_connected(self) -> None:
        # Sent first on each connection: settlements, what was granted locally, and open reservations.
        self._settlements.resend()
        self._report_shares()
        self._renewal.renew_all()

    def _report_shares(self) -> None:
        """Reports what was granted while Redis was unreachable. Later calls on the connection see it."""
        for tag, raised in self._local.take_unreported().items():
            levels = [(one.bucket.name, one.bucket.amount, one.level) for one in raised]
            try:
                answer = self._connection.call(self._scripts.raise_levels(tag, levels))
            except RedisDown:
                self._local.report_again(tag, raised)
                continue
            answer.add_done_callback(partial(self._reported, tag, raised))

    def _reported(self, tag: bytes, raised: list[RaisedLevel], answer: asyncio.Future[Any]) -> None:
        if answer.cancelled() or answer.exception() is not None:
            self._local.report_again(tag, raised)

    # Reading ------------------------------------------------------------------------------------------------

    async def state(self, tenant_id: str, limits: Sequence[Limit]) -> list[LimitState]:
        """Returns the usage of each of a tenant's `limits` that is counted in Redis; limits on stored rows
        are left out.

        Raises QuotaUnavailable.
        """
        counted = [limit for limit in limits if limit.metric.kind != "stored"]
        plan = compile_plan(self._scripts, tenant_id, counted)
        if plan is None:
            return []
        try:
            answer: Any = await self._connection.call(self._scripts.state(plan.tag, plan.packed))
        except (RedisDown, ReplyError) as error:
            raise QuotaUnavailable(UNAVAILABLE_RETRY) from error
        now, *numbers = msgspec.msgpack.decode(answer)
        states = []
        for position, limit in enumerate(counted):
            there, used, held, reset = numbers[4 * position : 4 * position + 4]
            if not there:
                try:
                    used = await self._used_since(plan, position + 1, now)
                except QuotaUnavailable:
                    used = None
            resets_at = None
            if limit.metric.kind not in ("held", "ever"):
                resets_at = datetime.fromtimestamp((now + reset) / 1000, UTC)
            states.append(LimitState(limit, used, held, resets_at))
        return states


def _rates(amounts: Amounts) -> tuple[int, int, int, int]:
    tokens = amounts.input_tokens + amounts.output_tokens
    return amounts.requests, amounts.input_tokens, amounts.output_tokens, tokens
