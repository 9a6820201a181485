"""Builds what observes an engine's requests, as its settings and the environment say: vLLM's metrics over
HTTP, and spans.
"""

from __future__ import annotations

from contextlib import ExitStack

import structlog

from engine.observation import RequestObserver
from engine.settings import EngineSettings
from telemetry.trace_setup import open_tracing

log = structlog.get_logger(__name__)


def open_observers(settings: EngineSettings, opened: ExitStack) -> list[RequestObserver]:
    """Returns the observers, none by default; `opened` closes them, after the server has written its journal.

    Raises OSError when the metrics' address is in use, ValueError for tracing that is not supported.
    """
    observers: list[RequestObserver] = []
    tracing = open_tracing("rootstock-engine", settings.engine_id)
    if tracing is not None:
        from engine.request_spans import RequestSpans

        opened.callback(tracing.close)
        observers.append(RequestSpans(tracing))
    if settings.metrics_endpoint:
        from engine.metrics_server import MetricsServer
        from engine.vllm_metrics import VllmMetrics

        host, _, port = settings.metrics_endpoint.rpartition(":")
        metrics = VllmMetrics(settings.base_name, settings.engine_id)
        try:
            server = MetricsServer(host.strip("[]"), int(port), metrics)
        except OSError as error:
            raise OSError(
                f"cannot serve metrics at {settings.metrics_endpoint} ({error}): set "
                "ROOTSTOCK_ENGINE_METRICS_ENDPOINT to a free address"
            ) from error
        opened.callback(server.close)
        log.info("metrics are served", address=f"http://{host}:{server.port}/metrics")
        observers.append(metrics)
    return observers
