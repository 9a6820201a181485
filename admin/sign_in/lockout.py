"""Slows down password guessing: after a few failures an account and an IP address have to wait.

Counters lie in Redis. Unknown accounts are counted like known ones, so that a lock reveals nothing.
"""

from __future__ import annotations

import hashlib

from redis.asyncio import Redis

WINDOW_S = 15 * 60
MAX_PER_ACCOUNT = 5
MAX_PER_ADDRESS = 50
"""Higher: an office shares one address."""


class Lockout:
    """Counts attempts that did not succeed, within a window that starts with the first one."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def attempt(self, email: str, address: str) -> int:
        """Count an attempt before it is judged; seconds to wait when it may not be judged at all, else 0.

        Counting first makes guesses sent all at once as dear as guesses sent in turn. `succeeded` takes it
        back.
        """
        async with self._redis.pipeline(transaction=True) as pipe:
            for key, _ in self._counters(email, address):
                pipe.set(key, 0, ex=WINDOW_S, nx=True)  # EXPIRE learned NX in Redis 7, and 6.2 must do
                pipe.incr(key)
                pipe.ttl(key)
            answers = await pipe.execute()
        waits = [0]
        for at, (_, limit) in enumerate(self._counters(email, address)):
            count, left = int(answers[3 * at + 1]), int(answers[3 * at + 2])
            if count > limit:
                waits.append(max(1, left))
        return max(waits)

    async def succeeded(self, email: str, address: str) -> None:
        """Forget the account's failures, and this attempt's own count on the address."""
        (account, _), (source, _) = self._counters(email, address)
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(account)
            pipe.decr(source)
            await pipe.execute()

    @staticmethod
    def _counters(email: str, address: str) -> tuple[tuple[str, int], tuple[str, int]]:
        account = hashlib.sha256(email.strip().casefold().encode()).hexdigest()
        return (
            (f"rootstock:console:failures:account:{account}", MAX_PER_ACCOUNT),
            (f"rootstock:console:failures:address:{address}", MAX_PER_ADDRESS),
        )


def waiting_words(wait_s: int) -> str:
    """Returns the message about a wait."""
    minutes = -(-wait_s // 60)
    return f"Too many attempts. Try again in {minutes} minute{'s' if minutes > 1 else ''}."
