"""Builds the services of stored responses and conversations, and starts the runner of background ones."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex

from api.metrics.background_work import BackgroundResponseMetrics
from api.responses.runner import BackgroundRunner
from api.services import Services, StoredState
from conversations.background.service import BackgroundQueue
from conversations.responses.service import ResponseService
from conversations.sealing import ContentSealer
from conversations.service import ConversationService
from db.session import Database
from tenants.key_contexts import KeyContexts
from tenants.key_secrets import KeySecrets


def stored_state(database: Database, secret: str | KeySecrets) -> StoredState:
    """`secret`: the server's, from which the key of stored content is derived."""
    sealer = ContentSealer(secret)
    responses = ResponseService(database, sealer)
    return StoredState(
        responses, ConversationService(database, sealer), BackgroundQueue(database, sealer, responses)
    )


@asynccontextmanager
async def running_background(services: Services, database: Database, name: str) -> AsyncIterator[Services]:
    """Yields the services with a started runner of background responses."""
    metrics = BackgroundResponseMetrics(services.metrics.registry)
    runner = BackgroundRunner(services, KeyContexts(database), f"{name}-{token_hex(4)}", metrics=metrics)
    runner.start()
    try:
        yield dataclasses.replace(services, background=runner)
    finally:
        await runner.close()
