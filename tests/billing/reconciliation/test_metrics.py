"""The last reconciliation's counts, as a scrape sees them."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from api import health
from api.deferred_work import DeferredWork
from api.metrics import polled
from api.metrics.reconciliation import BooksCollector
from telemetry.metrics import ServingMetrics
from tests.billing.reconciliation.conftest import NOW, Books


async def test_a_scrape_shows_the_last_comparison(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled, "ASK_EVERY", 0.0)
    collector = BooksCollector(books.service)
    services = SimpleNamespace(
        metrics=ServingMetrics(),
        polled=(collector,),
        deferred_work=DeferredWork(),
    )
    services.metrics.registry.register(collector)
    app = FastAPI()
    app.include_router(health.router)
    app.state.services = services
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:

        async def scraped() -> dict[str, float]:
            lines = (await client.get("/metrics")).text.splitlines()
            shown = [line.rsplit(" ", 1) for line in lines if line.startswith("rootstock_reconciliation")]
            return {name: float(value) for name, value in shown}

        assert not await scraped(), "there was none"
        await books.reconcile()
        first = await scraped()
        assert first['rootstock_reconciliation_differences{check="rollups"}'] == 0
        assert first["rootstock_reconciliation_timestamp_seconds"] == NOW.timestamp()
        assert not any("stripe" in name for name in first)
        await books.damage("DELETE FROM usage_rollup_hours WHERE tenant_id = 'tnt_a'")
        await books.reconcile()
        second = await scraped()
        assert second['rootstock_reconciliation_differences{check="rollups"}'] > 0
        assert second['rootstock_reconciliation_not_compared{check="journal"}'] == 0
