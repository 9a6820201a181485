"""Plans; uploaded files; states, sources and events of adapter versions; jobs; the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
EMPTY = sa.text("'{}'")
JSONB = postgresql.JSONB()
TEXT = sa.Text()


def upgrade() -> None:
    _plans()
    _files()
    _adapters()
    _jobs()
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("task", TEXT, nullable=False),
        sa.Column("arguments", JSONB, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("sent_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_unsent", "outbox", ["id"], postgresql_where=sa.text("sent_at IS NULL"))


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("max_adapters", sa.Integer(), server_default=sa.text("100"), nullable=False),
        sa.Column("max_file_bytes", sa.BigInteger(), server_default=sa.text("2147483648"), nullable=False),
        sa.Column("pinned_adapters", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("gate", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
        sa.UniqueConstraint("name", name="uq_plans_name"),
    )
    op.execute("INSERT INTO plans (id, name) VALUES ('plan_standard', 'standard')")
    op.add_column(
        "tenants",
        sa.Column("plan_id", TEXT, server_default=sa.text("'plan_standard'"), nullable=False),
    )
    op.create_foreign_key("fk_tenants_plan_id_plans", "tenants", "plans", ["plan_id"], ["id"])


def _files() -> None:
    op.create_table(
        "files",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("purpose", TEXT, nullable=False),
        sa.Column("filename", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("object_key", TEXT, nullable=False),
        sa.Column("created_by", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_files_tenant_id_tenants"),
        sa.CheckConstraint("purpose IN ('adapter', 'calibration')", name=op.f("ck_files_purpose_known")),
    )
    op.create_index("ix_files_tenant_id_id", "files", ["tenant_id", "id"])
    op.create_index("ix_files_expires_at", "files", ["expires_at"])
    op.create_table(
        "uploads",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("purpose", TEXT, nullable=False),
        sa.Column("filename", TEXT, nullable=False),
        sa.Column("mime_type", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("file_id", TEXT),
        sa.Column("file_expires_after", sa.Integer()),
        sa.Column("created_by", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_uploads_tenant_id_tenants"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_uploads_id_tenant_id"),
        sa.CheckConstraint("purpose IN ('adapter', 'calibration')", name=op.f("ck_uploads_purpose_known")),
        sa.CheckConstraint(
            "status IN ('pending', 'completed', 'cancelled', 'expired')", name=op.f("ck_uploads_status_known")
        ),
        sa.CheckConstraint(
            "status <> 'completed' OR file_id IS NOT NULL", name=op.f("ck_uploads_completed_is_a_file")
        ),
    )
    op.create_index("ix_uploads_tenant_id_id", "uploads", ["tenant_id", "id"])
    op.create_index("ix_uploads_status_expires_at", "uploads", ["status", "expires_at"])
    op.create_table(
        "upload_parts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("upload_id", TEXT, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("md5", TEXT, nullable=False),
        sa.Column("sha256", TEXT, nullable=False),
        sa.Column("object_key", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_upload_parts"),
        sa.ForeignKeyConstraint(
            ["upload_id", "tenant_id"],
            ["uploads.id", "uploads.tenant_id"],
            name="fk_upload_parts_upload_id_tenant_id_uploads",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_upload_parts_upload_id", "upload_parts", ["upload_id"])


STATES = "state IN ('uploading', 'validating', 'calibrating', 'ready', 'failed', 'disabled', 'deleting')"


def _adapters() -> None:
    for name in ("description", "created_by"):
        op.add_column("adapters", sa.Column(name, TEXT))
    op.add_column("adapters", sa.Column("previous_version", sa.Integer()))
    op.add_column("adapters", sa.Column("deleted_at", INSTANT))
    op.drop_constraint("uq_adapters_tenant_id_base_name", "adapters")
    op.create_index(
        "uq_adapters_live_name",
        "adapters",
        ["tenant_id", "base", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    table = "adapter_versions"
    for name in ("artifacts", "sources"):
        op.add_column(table, sa.Column(name, JSONB, server_default=EMPTY, nullable=False))
    for name in ("inspection", "calibration"):
        op.add_column(table, sa.Column(name, JSONB))
    for name in ("dtype", "error_field", "override_reason", "created_by"):
        op.add_column(table, sa.Column(name, TEXT))
    op.add_column(table, sa.Column("activate", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.add_column(table, sa.Column("ready_at", INSTANT))
    op.drop_constraint("ck_adapter_versions_state_known", table)
    op.execute("UPDATE adapter_versions SET state = 'validating' WHERE state = 'pending'")
    op.create_check_constraint(op.f("ck_adapter_versions_state_known"), table, STATES)
    op.create_index("ix_adapter_versions_digest", table, ["digest"])
    op.create_table(
        "adapter_events",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("adapter_id", TEXT, nullable=False),
        sa.Column("version", sa.Integer()),
        sa.Column("job_id", TEXT),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("level", TEXT, nullable=False),
        sa.Column("message", TEXT, nullable=False),
        sa.Column("data", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_adapter_events"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_adapter_events_tenant_id_tenants"),
        sa.CheckConstraint(
            "level IN ('info', 'warning', 'error')", name=op.f("ck_adapter_events_level_known")
        ),
    )
    op.create_index(
        "ix_adapter_events_tenant_id_adapter_id_id", "adapter_events", ["tenant_id", "adapter_id", "id"]
    )
    op.create_index("ix_adapter_events_tenant_id_job_id_id", "adapter_events", ["tenant_id", "job_id", "id"])


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("adapter_id", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("wanted", TEXT),
        sa.Column("parameters", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("phase", TEXT),
        sa.Column("progress", sa.Double(), server_default=sa.text("0"), nullable=False),
        sa.Column("estimated_finish_at", INSTANT),
        sa.Column("error", JSONB),
        sa.Column("result", JSONB),
        sa.Column("fence", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", INSTANT),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_by", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("started_at", INSTANT),
        sa.Column("finished_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_jobs_tenant_id_tenants"),
        sa.CheckConstraint(
            "status IN ('validating_files', 'queued', 'running', 'paused',"
            " 'succeeded', 'failed', 'cancelled')",
            name=op.f("ck_jobs_status_known"),
        ),
        sa.CheckConstraint("wanted IN ('pause', 'cancel')", name=op.f("ck_jobs_wanted_known")),
        sa.CheckConstraint("progress BETWEEN 0 AND 1", name=op.f("ck_jobs_progress_share")),
    )
    op.create_index("ix_jobs_tenant_id_id", "jobs", ["tenant_id", "id"])
    op.create_index("ix_jobs_adapter_id_version", "jobs", ["adapter_id", "version"])
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["lease_until"],
        postgresql_where=sa.text("status IN ('validating_files', 'queued', 'running')"),
    )


def downgrade() -> None:
    for table in ("outbox", "jobs", "adapter_events", "upload_parts", "uploads", "files"):
        op.drop_table(table)
    table = "adapter_versions"
    op.drop_index("ix_adapter_versions_digest", table)
    op.drop_constraint("ck_adapter_versions_state_known", table)
    op.execute("UPDATE adapter_versions SET state = 'failed' WHERE state IN ('disabled', 'deleting')")
    op.execute("UPDATE adapter_versions SET state = 'pending' WHERE state NOT IN ('ready', 'failed')")
    op.create_check_constraint(
        op.f("ck_adapter_versions_state_known"), table, "state IN ('pending', 'ready', 'failed')"
    )
    for name in (
        *("artifacts", "sources", "inspection", "calibration", "dtype", "error_field", "override_reason"),
        *("created_by", "activate", "ready_at"),
    ):
        op.drop_column(table, name)
    # Deleted adapters would take names again that others may have by now.
    op.execute("DELETE FROM adapter_versions USING adapters WHERE id = adapter_id AND deleted_at IS NOT NULL")
    op.execute("DELETE FROM adapters WHERE deleted_at IS NOT NULL")
    op.drop_index("uq_adapters_live_name", "adapters")
    op.create_unique_constraint("uq_adapters_tenant_id_base_name", "adapters", ["tenant_id", "base", "name"])
    for name in ("description", "created_by", "previous_version", "deleted_at"):
        op.drop_column("adapters", name)
    op.drop_constraint("fk_tenants_plan_id_plans", "tenants")
    op.drop_column("tenants", "plan_id")
    op.drop_table("plans")
