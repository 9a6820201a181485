"""The rates that an engine gets of what others serve its tenants."""

from __future__ import annotations

import math

import pytest

from engine.protocol import TenantService
from routing.served_elsewhere import ServedElsewhere


def service(rate: float) -> list[TenantService]:
    return [TenantService("t", "default", rate)]


@pytest.mark.parametrize("rates", [(1e3, 1e-7), (math.inf, 5.0), (math.nan, 5.0)])
def test_an_engine_that_leaves_takes_nothing_from_what_another_reported(rates: tuple[float, float]) -> None:
    elsewhere = ServedElsewhere()
    for engine, rate in zip("01", rates, strict=True):
        elsewhere.report(engine, service(rate))
    elsewhere.leave("0")
    assert elsewhere.of("1") == [], "no other engine serves the tenant"
    elsewhere.report("0", service(7.0))
    (told,) = elsewhere.of("1")
    assert told.rate == pytest.approx(7.0)
    elsewhere.leave("1")
    elsewhere.leave("0")
    assert elsewhere.of("0") == []
