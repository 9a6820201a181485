"""A caller's limits as buckets: which plan is used again, what buckets are called, when windows begin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from tenants.limits.kinds import Metric
from tenants.quotas import Contract
from tenants.quotas.plan import Plans, bucket_key
from tenants.quotas.scripts import Scripts
from tenants.quotas.unreserved_spend import window_start
from tests.tenants.quotas.conftest import TENANT, caller, limit

RPM, DAILY = limit(Metric.REQUESTS_PER_MINUTE, 5), limit(Metric.TOKENS_PER_DAY, 500)


def test_a_plan_is_made_anew_when_the_keys_limits_or_its_contract_change() -> None:
    plans = Plans(Scripts())
    first = plans.of(caller(RPM, key="k"), "sapling", None)
    assert first is not None
    who = caller(RPM, DAILY, key="k")
    second = plans.of(who, "sapling", None)
    assert second is not None
    assert [bucket.name for bucket in second.buckets] == ["requests_per_minute::", "tokens_per_day::"]
    assert plans.of(who, "sapling", None) is second
    small, large = (plans.of(who, "sapling", Contract("priority", amount)) for amount in (100, 200))
    assert small is not None
    assert large is not None
    assert [plan.buckets[-1].amount for plan in (small, large)] == [100, 200]
    assert (small.rate_names, second.rate_names) == (
        ("requests_per_minute::", "contract:priority"),
        ("requests_per_minute::",),
    )
    assert (first.has_windows, second.has_windows) == (False, True)


def test_a_plan_has_the_limits_of_its_model_alone() -> None:
    plans = Plans(Scripts())
    who = caller(RPM, limit(Metric.TOKENS_PER_MINUTE, 9, model="sapling:pirate"))
    for model, names in (
        ("sapling", ["requests_per_minute::"]),
        ("sapling:pirate@2", ["requests_per_minute::", "tokens_per_minute::sapling:pirate"]),
    ):
        plan = plans.of(who, model, None)
        assert plan is not None
        assert [bucket.name for bucket in plan.buckets] == names
    only_other = caller(limit(Metric.TOKENS_PER_MINUTE, 9, model="oak"))
    assert plans.of(only_other, "sapling", None) is None
    assert plans.of(caller(), "sapling", None) is None
    assert plans.of(caller(), "sapling", Contract("priority", None)) is None, "it has no bound"


def test_each_scope_is_counted_by_itself() -> None:
    limits = [RPM, *(limit(Metric.REQUESTS_PER_MINUTE, 5, scope="key", of=key) for key in ("key_1", "key_2"))]
    names = {bucket_key(TENANT, each) for each in limits}
    assert names == {
        b"rootstock:quota:{tnt_1}:requests_per_minute:%b:" % whose for whose in (b"", b"key_1", b"key_2")
    }


def test_windows_begin_with_the_day_or_month_in_utc() -> None:
    moment = datetime(2026, 12, 16, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert window_start(DAILY, moment) == datetime(2026, 12, 15, tzinfo=UTC)
    assert window_start(limit(Metric.SPEND_PER_MONTH, 1), moment) == datetime(2026, 12, 1, tzinfo=UTC)
    assert window_start(limit(Metric.PREPAID_BALANCE, 1), moment) == datetime(1970, 1, 1, tzinfo=UTC)
