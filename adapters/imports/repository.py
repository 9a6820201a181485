"""Finds imports whose credentials are sealed under another key secret than the current one."""

from __future__ import annotations

import base64

from sqlalchemy import select

from adapters.jobs.models import CREDENTIALS, IMPORT, Job
from db.session import EVERY_TENANT, Database
from tenants.identities.sealing import label_of
from tenants.key_secrets import KeySecrets


async def imports_behind(database: Database, secrets: KeySecrets) -> list[str]:
    """Returns the ids of jobs whose credentials only the other accepted secret opens.

    They are not sealed again: a job forgets its credentials when it ends.
    """
    credentials = Job.parameters[IMPORT][CREDENTIALS].astext
    async with database.read(EVERY_TENANT) as session:
        rows = await session.execute(select(Job.id, credentials).where(credentials.is_not(None)))
        label = label_of(secrets.current)
        return [job_id for job_id, sealed in rows if not base64.b64decode(sealed).startswith(label)]
