"""Builds and starts the part of an API process that runs batches."""

from __future__ import annotations

from adapters.files.ingestion import FileIngestion
from adapters.inspection.sandbox import Sandbox
from adapters.storage import ObjectStore
from api.batches.execution import BatchSite
from api.batches.fair_slots import FairSlots
from api.batches.runner import BatchRunner, RunnerPace
from api.batches.settings import BatchSettings
from api.metrics.batches import BatchMetrics
from api.services import Services
from db.session import Database
from tenants.caller_contexts import CallerContexts


def batch_runner(
    services: Services,
    database: Database,
    store: ObjectStore,
    sandbox: Sandbox,
    settings: BatchSettings,
    owner: str,
) -> BatchRunner:
    """Returns the runner of batches, to be started. `owner`: a name that no other process has."""
    site = BatchSite(
        services=services,
        database=database,
        store=store,
        ingestion=FileIngestion(store, sandbox),
        callers=CallerContexts(database).of,
        slots=FairSlots(settings.concurrency),
        metrics=BatchMetrics(services.metrics.registry),
        lines_per_batch=min(settings.concurrency_per_batch, settings.concurrency),
    )
    return BatchRunner(site, owner, RunnerPace(settings.lease_seconds, settings.poll_seconds))
