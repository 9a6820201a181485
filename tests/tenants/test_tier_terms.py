from __future__ import annotations

from typing import Any

import pytest
import redis.asyncio

from db.session import Database
from engine.protocol import PriorityClass
from tenants.errors import PlanNotFound
from tenants.plans import PlanChanges, PlanService
from tenants.tier_terms import DEFAULTS, merged, read

PRIORITY, DEFAULT, FLEX = PriorityClass.PRIORITY, PriorityClass.DEFAULT, PriorityClass.FLEX


def test_without_a_word_of_the_plan_priority_is_not_allowed_and_the_others_are() -> None:
    terms = read({})
    assert {tier: terms[tier].allowed for tier in PriorityClass} == {
        PRIORITY: False,
        DEFAULT: True,
        FLEX: True,
    }
    assert terms[FLEX].price_percent < terms[DEFAULT].price_percent == 100 < terms[PRIORITY].price_percent


def test_a_plan_says_only_what_differs() -> None:
    stored: dict[str, dict[str, Any]] = {}
    stored = merged(stored, {"priority": {"allowed": True, "contracted_tokens_per_minute": 6000}})
    stored = merged(stored, {"priority": {"credits": [[999_000, 10], [990_000, 50]]}})
    terms = read(stored)
    assert terms[PRIORITY].allowed
    assert terms[PRIORITY].contracted_tokens_per_minute == 6000
    assert terms[PRIORITY].credits == ((999_000, 10), (990_000, 50))
    assert terms[PRIORITY].price_percent == DEFAULTS[PRIORITY].price_percent
    assert terms[DEFAULT] == DEFAULTS[DEFAULT]
    assert set(stored) == {"priority"}
    unbounded = merged(stored, {"priority": {"contracted_tokens_per_minute": None}})
    assert read(unbounded)[PRIORITY].contracted_tokens_per_minute is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": {"allowed": True}}, "'scale' is not a service tier"),
        ({"flex": {"colour": 1}}, "flex.colour is not a term"),
        ({"flex": {"allowed": 1}}, "flex.allowed must be true or false"),
        ({"flex": {"price_percent": -1}}, "flex.price_percent must be from 0"),
        ({"flex": {"price_percent": None}}, "flex.price_percent must be from 0"),
        ({"flex": {"price_percent": True}}, "flex.price_percent must be from 0"),
        ({"flex": {"availability_ppm": 1_000_001}}, "flex.availability_ppm must be from 0 to 1000000"),
        ({"flex": {"credits": 5}}, "flex.credits must be a list of pairs"),
        ({"flex": {"credits": [[1, 2, 3]]}}, "flex.credits must be a list of pairs"),
        ({"flex": {"credits": [[990_000, 101]]}}, "flex.credits: 990000 ppm and 101 %"),
        ({"flex": {"credits": [[990_000, 10], [995_000, 20]]}}, "flex.credits must have falling shares"),
        ({"default": {"allowed": False}}, "default.allowed cannot be changed"),
        ({"default": {"contracted_tokens_per_minute": 5}}, "cannot be changed"),
    ],
)
def test_what_is_wrong_with_terms_is_named(changes: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        merged({}, changes)


async def test_terms_are_kept_with_the_plan(database: Database, redis_client: redis.asyncio.Redis) -> None:
    plans = PlanService(database, redis_client)
    made = await plans.create("gold", PlanChanges(terms={"priority": {"allowed": True}}))
    assert made.terms[PRIORITY].allowed
    await plans.set("gold", PlanChanges(terms={"priority": {"price_percent": 200}}))
    found = await plans.find("gold")
    assert (found.terms[PRIORITY].allowed, found.terms[PRIORITY].price_percent) == (True, 200)
    assert not (await plans.find("standard")).terms[PRIORITY].allowed
    with pytest.raises(ValueError, match=r"priority\.price_percent"):
        await plans.set("gold", PlanChanges(terms={"priority": {"price_percent": -5}}))
    with pytest.raises(PlanNotFound):
        await plans.find("absent")
