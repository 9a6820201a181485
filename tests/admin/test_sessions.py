"""Console sessions in Redis: whose id opens what, and for how long."""

from __future__ import annotations

import time

import pytest
import redis.asyncio

from admin.web import sessions
from admin.web.sessions import Impersonation, OpenSession, PendingSignIn, SessionStore, handle_of

USER, TENANT = "usr_1", "tnt_1"


@pytest.fixture
def store(redis_client: redis.asyncio.Redis) -> SessionStore:
    return SessionStore(redis_client)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_800_000_000.0
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def signed_in(store: SessionStore, old: str | None = None, **terms: float) -> OpenSession:
    return await store.sign_in(old, USER, TENANT, role="owner", **terms)  # type: ignore[arg-type]


# Signing in -----------------------------------------------------------------------------------------------


async def test_a_sign_in_ends_the_session_the_browser_came_with(store: SessionStore) -> None:
    """Whoever planted or read its id has nothing: also where it was somebody's already."""
    for old in (await store.begin(), await store.sign_in(None, "usr_2", TENANT)):
        entered = await signed_in(store, old.id)
        assert entered.id != old.id
        assert await store.find(old.id) is None
        found = await store.find(entered.id)
        assert found is not None
        assert (found.session.user_id, found.fresh) == (USER, False)


async def test_half_way_ends_the_session_the_browser_came_with_and_is_nobodys(store: SessionStore) -> None:
    old = await signed_in(store)
    waiting = await store.begin_second_factor(old.id, PendingSignIn(USER, TENANT, "password", 1.0))
    assert await store.find(old.id) is None
    found = await store.find(waiting.id)
    assert found is not None
    assert found.session.user_id is None
    assert found.session.pending is not None


async def test_ids_and_tokens_are_never_the_same(store: SessionStore) -> None:
    opened = [await store.begin(), await store.begin(), await signed_in(store), await signed_in(store)]
    assert len({one.id for one in opened} | {one.session.csrf_token for one in opened}) == 8
    assert opened[0].session.accepts(opened[0].session.csrf_token)
    assert not opened[0].session.accepts(opened[1].session.csrf_token)


async def test_reading_redis_signs_nobody_in(store: SessionStore, redis_client: redis.asyncio.Redis) -> None:
    opened = await signed_in(store)
    keys = [key.decode() for key in await redis_client.keys("*")]
    assert all(opened.id not in key for key in keys)
    for key in keys:
        assert await store.find(key.rpartition(":")[2]) is None


@pytest.mark.parametrize("session_id", [None, "", "x" * 65, "unknown"])
async def test_what_is_no_id_opens_nothing(store: SessionStore, session_id: str | None) -> None:
    assert await store.find(session_id) is None
    assert await store.peek(session_id) is None


# Time -----------------------------------------------------------------------------------------------------


async def test_lives_are_as_long_as_what_they_are_for(
    store: SessionStore, redis_client: redis.asyncio.Redis
) -> None:
    async def life(opened: OpenSession) -> int:
        return int(await redis_client.ttl(sessions._key(opened.id)))

    pending = PendingSignIn(USER, TENANT, "password", 1.0)
    assert await life(await store.begin()) == pytest.approx(sessions.ANONYMOUS_S, abs=5)
    assert await life(await store.begin_second_factor(None, pending)) == pytest.approx(
        sessions.PENDING_S, abs=5
    )
    entered = await signed_in(store)
    assert await life(entered) == pytest.approx(sessions.IDLE_S, abs=5)
    await redis_client.expire(sessions._key(entered.id), 100)
    assert await store.peek(entered.id) is not None
    assert await life(entered) <= 100, "looking changes nothing"
    await store.find(entered.id)
    assert await life(entered) == pytest.approx(sessions.IDLE_S, abs=5), "a request starts its idle time over"


async def test_a_session_ends_a_day_after_the_sign_in_however_busy_it_is(
    store: SessionStore, clock: Clock
) -> None:
    opened = await signed_in(store)
    began = clock.now
    while clock.now < began + sessions.ABSOLUTE_S - 3600:
        clock.now += 3600
        found = await store.find(opened.id)
        assert found is not None
        opened = found
    clock.now = began + sessions.ABSOLUTE_S
    assert await store.peek(opened.id) is None
    assert await store.find(opened.id) is None
    clock.now = began
    assert await store.find(opened.id) is None, "it is forgotten"


async def test_an_id_is_rotated_when_it_is_due_and_the_old_one_serves_what_was_on_its_way(
    store: SessionStore, clock: Clock, redis_client: redis.asyncio.Redis
) -> None:
    opened = await signed_in(store)
    clock.now += sessions.ROTATE_S - 1
    found = await store.find(opened.id)
    assert found is not None
    assert (found.id, found.fresh) == (opened.id, False)
    clock.now += 1
    rotated = await store.find(opened.id)
    assert rotated is not None
    assert rotated.fresh
    assert rotated.id != opened.id
    assert rotated.session.csrf_token == opened.session.csrf_token, "forms that are open go on"
    assert rotated.session.started_at == opened.session.started_at
    late = await store.find(opened.id)
    assert late is not None
    assert (late.id, late.fresh, late.session.superseded) == (opened.id, False, True)
    assert 0 < await redis_client.ttl(sessions._key(opened.id)) <= sessions.GRACE_S


async def test_a_changed_role_rotates_the_id_once(store: SessionStore) -> None:
    opened = await signed_in(store)
    assert await store.with_role(opened, "owner") is opened
    changed = await store.with_role(opened, "reader")
    assert changed.id != opened.id
    assert changed.session.role == "reader"
    late = await store.find(opened.id)
    assert late is not None
    for role in ("reader", "owner"):
        assert await store.with_role(late, role) is late, "what was rotated away is not rotated again"


async def test_a_sign_in_counts_from_when_the_proving_began(store: SessionStore, clock: Clock) -> None:
    assert (await signed_in(store, proved_at=clock.now - 50)).session.started_at == clock.now - 50
    assert (await signed_in(store)).session.started_at == clock.now


async def test_renewing_counts_from_now_and_ends_the_old_id_and_its_forms(
    store: SessionStore, clock: Clock
) -> None:
    opened = await signed_in(store)
    clock.now += 100
    renewed = await store.renew(opened)
    assert await store.find(opened.id) is None
    assert renewed.session.started_at == clock.now
    assert not renewed.session.accepts(opened.session.csrf_token)
    assert renewed.session.user_id == USER


async def test_impersonating_ends_the_old_id_and_its_forms_both_ways(store: SessionStore) -> None:
    opened = await signed_in(store)
    place = Impersonation("tnt_2", "usr_9", False, 2e9, "asked for help")
    inside = await store.impersonate(opened, place)
    assert await store.find(opened.id) is None
    assert not inside.session.accepts(opened.session.csrf_token)
    assert (inside.session.impersonation, inside.session.user_id) == (place, USER)
    outside = await store.impersonate(inside, None)
    assert await store.find(inside.id) is None
    assert outside.session.impersonation is None
    assert outside.session.started_at == opened.session.started_at


async def test_what_is_said_lasts_no_longer_than_the_session(
    store: SessionStore, redis_client: redis.asyncio.Redis
) -> None:
    opened = await signed_in(store)
    await redis_client.expire(sessions._key(opened.id), 100)
    await store.set_flash(opened, "Done.")
    assert 0 < await redis_client.ttl(sessions._key(opened.id)) <= 100
    found = await store.find(opened.id)
    assert found is not None
    assert found.session.flash == "Done."
    await store.end(opened.id)
    await store.set_flash(opened, "Too late.")
    assert await store.find(opened.id) is None, "a session that has ended is not brought back"


# All of a user's ------------------------------------------------------------------------------------------


async def test_a_user_has_their_own_sessions_and_no_others(
    store: SessionStore, redis_client: redis.asyncio.Redis
) -> None:
    opened = [await signed_in(store), await signed_in(store)]
    first, second = sorted(opened, key=handle_of)  # by handle the other way round
    other = await store.sign_in(None, "usr_2", TENANT)
    await redis_client.sadd(sessions._index(USER), handle_of(other))
    await redis_client.expire(sessions._key(first.id), sessions.IDLE_S - 500)
    known = await store.of_user(USER)
    assert [one.handle for one in known] == [handle_of(second), handle_of(first)], "the last used first"
    assert [one.idle_s for one in known] == pytest.approx([0, 500], abs=5)
    await store.end(second.id)
    assert [one.handle for one in await store.of_user(USER)] == [handle_of(first)]


async def test_rotated_ids_are_no_sessions_of_their_own(store: SessionStore) -> None:
    opened = await store.with_role(await signed_in(store), "reader")
    assert [one.handle for one in await store.of_user(USER)] == [handle_of(opened)]


async def test_one_session_is_ended_or_all_but_one(store: SessionStore) -> None:
    opened = [await signed_in(store) for _ in range(4)]
    other = await store.sign_in(None, "usr_2", TENANT)
    assert await store.end_of_user(USER, handle=handle_of(opened[0])) == 1
    assert await store.end_of_user(USER, handle=handle_of(opened[0])) == 0
    assert await store.end_of_user(USER, handle=handle_of(other)) == 0, "of somebody else"
    assert [await store.find(one.id) is not None for one in opened] == [False, True, True, True]
    assert await store.end_of_user(USER, but=opened[2].id) == 2
    assert [await store.find(one.id) is not None for one in opened] == [False, False, True, False]
    assert await store.end_of_user(USER) == 1
    assert await store.find(other.id) is not None
