"""Defines the table of jobs. A job inspects, packs and calibrates one version of an adapter."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Double, ForeignKey, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from db.base import Base
from db.repository import TenantOwned

PENDING_UPLOADS = "uploads"
"""Name of the job parameter, while its version waits for files, that holds the upload ids by file name."""

IMPORT = "import"
"""Name of the job parameter, while its version waits for files to be imported, that holds their source."""
IMPORTING = "importing"
"""Phase of a job that imports its version's files."""
CREDENTIALS = "credentials"
"""Name of the field of an import that holds its sealed credentials until the job ends."""


class JobStatus(StrEnum):
    """The statuses of OpenAI's fine-tuning jobs."""

    VALIDATING_FILES = "validating_files"
    """The version's files are still being uploaded: no worker takes the job."""
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Job(TenantOwned, Base):
    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(
            "status IN ('validating_files', 'queued', 'running', 'paused',"
            " 'succeeded', 'failed', 'cancelled')",
            name="status_known",
        ),
        CheckConstraint("wanted IN ('pause', 'cancel')", name="wanted_known"),
        CheckConstraint("progress BETWEEN 0 AND 1", name="progress_share"),
        Index(None, "tenant_id", "id"),
        Index(None, "adapter_id", "version"),
        Index(
            "ix_jobs_unfinished",
            "lease_until",
            postgresql_where=text("status IN ('validating_files', 'queued', 'running')"),
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    adapter_id: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    status: Mapped[str]
    wanted: Mapped[str | None]
    """What the tenant requested and the worker has not done yet."""
    parameters: Mapped[dict[str, Any]] = mapped_column(JSONB, server_default=text("'{}'"))
    """How to calibrate: the data set's object, a requested dtype, thresholds."""
    phase: Mapped[str | None]
    progress: Mapped[float] = mapped_column(Double, server_default=text("0"))
    """Share of the work that is done."""
    estimated_finish_at: Mapped[datetime | None]
    error: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """`code`, `message`, `param`."""
    result: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    fence: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Counts leases: the fencing token. The holder of an older one can no longer change anything."""
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    created_by: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
