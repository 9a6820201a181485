"""A stack of rows and workers, told what to do by the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from db.outbox import Outbox
from db.session import Database
from db.tasks import TaskSender
from tests.worker.jobs_stack import JobsStack


@pytest.fixture
async def jobs(
    database: Database, database_url: str, redis_url: str, tmp_path: Path
) -> AsyncIterator[JobsStack]:
    sender = TaskSender(redis_url)
    outbox = Outbox(database, sender)
    stack = JobsStack(database, database_url, redis_url, tmp_path, outbox, sender)
    await stack.make_tenant()
    yield stack
    stack.stop_all()
    await outbox.close()
    sender.close()
