"""Attempts at a password, counted in Redis."""

from __future__ import annotations

import pytest
import redis.asyncio

from admin.sign_in.lockout import MAX_PER_ACCOUNT, MAX_PER_ADDRESS, WINDOW_S, Lockout, waiting_words

EMAIL, ADDRESS = "ann@acme.example", "192.0.2.7"


@pytest.fixture
def lockout(redis_client: redis.asyncio.Redis) -> Lockout:
    return Lockout(redis_client)


async def test_so_many_attempts_on_an_account_are_judged_and_no_more(lockout: Lockout) -> None:
    waits = [await lockout.attempt(EMAIL, f"192.0.2.{number}") for number in range(MAX_PER_ACCOUNT + 1)]
    assert waits[:-1] == [0] * MAX_PER_ACCOUNT
    assert WINDOW_S - 5 <= waits[-1] <= WINDOW_S
    assert await lockout.attempt("bob@acme.example", ADDRESS) == 0, "another account"


async def test_an_account_is_one_however_its_address_is_written(lockout: Lockout) -> None:
    for number in range(MAX_PER_ACCOUNT):
        await lockout.attempt((" Ann@Acme.example", EMAIL)[number % 2], ADDRESS)
    assert await lockout.attempt(EMAIL.upper(), ADDRESS) > 0


async def test_an_address_has_more_attempts_over_all_accounts(lockout: Lockout) -> None:
    waits = [
        await lockout.attempt(f"u{number}@acme.example", ADDRESS) for number in range(MAX_PER_ADDRESS + 1)
    ]
    assert waits[:-1] == [0] * MAX_PER_ADDRESS
    assert waits[-1] > 0


async def test_the_window_begins_with_the_first_attempt(
    lockout: Lockout, redis_client: redis.asyncio.Redis
) -> None:
    await lockout.attempt(EMAIL, ADDRESS)
    for key in await redis_client.keys("*"):
        await redis_client.expire(key, 100)
    for _ in range(MAX_PER_ACCOUNT):
        wait = await lockout.attempt(EMAIL, ADDRESS)
    assert 0 < wait <= 100


async def test_success_forgets_the_accounts_failures_and_its_own_attempt_on_the_address(
    lockout: Lockout, redis_client: redis.asyncio.Redis
) -> None:
    for _ in range(MAX_PER_ACCOUNT):
        await lockout.attempt(EMAIL, ADDRESS)
    await lockout.succeeded(EMAIL, ADDRESS)
    counts = {
        key.decode().split(":")[3]: int(await redis_client.get(key)) for key in await redis_client.keys("*")
    }
    assert counts == {"address": MAX_PER_ACCOUNT - 1}, "what others tried from there counts on"
    assert [await lockout.attempt(EMAIL, ADDRESS) for _ in range(MAX_PER_ACCOUNT)] == [0] * MAX_PER_ACCOUNT


@pytest.mark.parametrize(("seconds", "minutes"), [(1, "1 minute."), (60, "1 minute."), (61, "2 minutes.")])
def test_a_wait_is_told_in_whole_minutes_that_suffice(seconds: int, minutes: str) -> None:
    assert waiting_words(seconds).endswith(minutes)
