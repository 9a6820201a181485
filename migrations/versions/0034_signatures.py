"""Signatures of adapter versions, and the keys with which organizations sign their uploads.

Leaves the running release's queries as they are: versions without a signature are what they were, and their
signatures go with their rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT = sa.Text(), sa.DateTime(timezone=True)
NOW = sa.text("now()")


def upgrade() -> None:
    op.create_table(
        "adapter_signatures",
        sa.Column("adapter_id", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("bundle", TEXT, nullable=False),
        sa.Column("report_key", TEXT),
        sa.Column("checked_at", INSTANT),
        sa.PrimaryKeyConstraint("adapter_id", "version", name="pk_adapter_signatures"),
        sa.ForeignKeyConstraint(
            ["adapter_id", "version"],
            ["adapter_versions.adapter_id", "adapter_versions.version"],
            name="fk_adapter_signatures_adapter_id_version_adapter_versions",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["adapter_id", "tenant_id"],
            ["adapters.id", "adapters.tenant_id"],
            name="fk_adapter_signatures_adapter_id_tenant_id_adapters",
        ),
    )
    op.create_index("ix_adapter_signatures_checked_at", "adapter_signatures", ["checked_at"])
    op.create_table(
        "signing_keys",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("pem", TEXT, nullable=False),
        sa.Column("created_by", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_signing_keys"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_signing_keys_tenant_id_tenants"),
    )
    op.create_index(
        "uq_signing_keys_live",
        "signing_keys",
        ["tenant_id", "key_id"],
        unique=True,
        postgresql_where=sa.text("revoked_at IS NULL"),
    )
    op.add_column("adapter_versions", sa.Column("signed_at", INSTANT))
    op.add_column("adapter_versions", sa.Column("signature_problem", TEXT))
    op.add_column("adapter_versions", sa.Column("uploader_key", JSONB()))
    signed = sa.Column("signed_adapters_only", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    op.add_column("tenants", signed)
    for table in ("adapter_signatures", "signing_keys"):
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def downgrade() -> None:
    op.drop_column("tenants", "signed_adapters_only")
    for column in ("uploader_key", "signature_problem", "signed_at"):
        op.drop_column("adapter_versions", column)
    for table in ("signing_keys", "adapter_signatures"):
        op.drop_table(table)
