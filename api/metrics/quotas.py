"""Shows on /metrics whether Redis or this process's share enforces limits, and open reservations."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tenants.quotas import Quotas


class QuotaCollector(Collector):
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        quotas = self._quotas
        yield GaugeMetricFamily(
            "rootstock_quotas_away",
            "1 while Redis is away, so that limits are judged by this process's share.",
            float(quotas.away),
        )
        yield GaugeMetricFamily(
            "rootstock_quota_reservations", "Reservations that this process holds.", quotas.num_open
        )
        judged = CounterMetricFamily(
            "rootstock_quotas_judged_locally",
            "Requests let in, and refused, by this process's share of the limits.",
            labels=["outcome"],
        )
        judged.add_metric(["let_in"], quotas.num_judged_locally)
        judged.add_metric(["refused"], quotas.num_refused_locally)
        yield judged
