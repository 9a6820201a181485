"""An engine's /metrics over HTTP."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from engine.metrics_server import MetricsServer
from engine.observation_setup import open_observers
from engine.settings import EngineSettings
from engine.vllm_metrics import VllmMetrics


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", ""])
def test_it_answers_at_its_path_alone(host: str) -> None:
    server = MetricsServer(host, 0, VllmMetrics("base", "engine-0"))
    try:
        named = f"[{host}]" if ":" in host else host or "127.0.0.1"
        with httpx.Client(base_url=f"http://{named}:{server.port}") as client:
            first, again = client.get("/metrics"), client.get("/metrics?name=x")
            elsewhere = client.get("/")
    finally:
        server.close()
    assert first.status_code == again.status_code == 200
    assert first.headers["content-type"].startswith("text/plain")
    assert 'vllm:request_success_total{engine="engine-0"' in first.text
    assert "process_cpu_seconds_total" in first.text
    assert elsewhere.status_code == 404


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    server = MetricsServer("127.0.0.1", 0, VllmMetrics("base", "engine-0"))
    settings = EngineSettings(data_dir=tmp_path, metrics_endpoint=f"127.0.0.1:{server.port}")
    try:
        with ExitStack() as opened, pytest.raises(OSError, match=f":{server.port} .*METRICS_ENDPOINT"):
            open_observers(settings, opened)
    finally:
        server.close()


def test_nothing_observes_an_engine_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with ExitStack() as opened:
        assert open_observers(EngineSettings(data_dir=tmp_path), opened) == []
