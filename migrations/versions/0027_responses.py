"""Stored responses, conversations and their items, and the events of background responses.

Contents are encrypted by the API processes; what is left readable decides who may see a row, and until when.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, BYTES, COUNT = sa.Text(), sa.DateTime(timezone=True), sa.LargeBinary(), sa.BigInteger()
TABLES = ("conversations", "conversation_items", "stored_responses", "response_events")


def upgrade() -> None:
    _create_conversations()
    _create_responses()
    for table in TABLES:
        op.execute(f"SELECT secure_tenant_rows('{table}')")
    op.add_column(
        "tenants", sa.Column("stores_nothing", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column(
        "plans", sa.Column("response_days", sa.Integer(), server_default=sa.text("30"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("plans", "response_days")
    op.drop_column("tenants", "stores_nothing")
    for table in reversed(TABLES):
        op.drop_table(table)


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("sealed_metadata", BYTES, nullable=False),
        sa.Column("num_items", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("num_bytes", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("last_position", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("locked_by", TEXT),
        sa.Column("locked_until", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_conversations"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_conversations_id_tenant_id"),
        sa.ForeignKeyConstraint(
            ["project_id", "tenant_id"],
            ["projects.id", "projects.tenant_id"],
            name="fk_conversations_project_id_tenant_id_projects",
        ),
    )
    op.create_index("ix_conversations_expires_at", "conversations", ["expires_at"])
    op.create_index("ix_conversations_tenant_id", "conversations", ["tenant_id"])
    op.create_table(
        "conversation_items",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("conversation_id", TEXT, nullable=False),
        sa.Column("position", COUNT, nullable=False),
        sa.Column("sealed", BYTES, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "id", name="pk_conversation_items"),
        sa.ForeignKeyConstraint(
            ["conversation_id", "tenant_id"],
            ["conversations.id", "conversations.tenant_id"],
            name="fk_conversation_items_conversation_id_tenant_id_conversations",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "uq_conversation_items_conversation_id_position",
        "conversation_items",
        ["conversation_id", "position"],
        unique=True,
    )
    op.create_index("ix_conversation_items_tenant_id_id", "conversation_items", ["tenant_id", "id"])


def _create_responses() -> None:
    op.create_table(
        "stored_responses",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("key_id", TEXT, nullable=False),
        sa.Column("previous_id", TEXT),
        sa.Column("conversation_id", TEXT),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("is_background", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("submitted_at", INSTANT, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("sealed_body", BYTES, nullable=False),
        sa.Column("sealed_input", BYTES, nullable=False),
        sa.Column("sealed_output", BYTES, nullable=False),
        sa.Column("sealed_request", BYTES),
        sa.Column("num_items", sa.Integer(), nullable=False),
        sa.Column("item_ids", sa.ARRAY(TEXT), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("fence", COUNT, server_default=sa.text("0"), nullable=False),
        sa.Column("lease_owner", TEXT),
        sa.Column("lease_until", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_stored_responses"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_stored_responses_id_tenant_id"),
        sa.ForeignKeyConstraint(
            ["project_id", "tenant_id"],
            ["projects.id", "projects.tenant_id"],
            name="fk_stored_responses_project_id_tenant_id_projects",
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')",
            name="status_known",
        ),
    )
    op.create_index("ix_stored_responses_expires_at", "stored_responses", ["expires_at"])
    op.create_index("ix_stored_responses_tenant_id", "stored_responses", ["tenant_id"])
    op.create_index("ix_stored_responses_item_ids", "stored_responses", ["item_ids"], postgresql_using="gin")
    op.create_index(
        "ix_stored_responses_unfinished",
        "stored_responses",
        ["id"],
        postgresql_where=sa.text("status IN ('queued', 'in_progress')"),
    )
    op.create_table(
        "response_events",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("response_id", TEXT, nullable=False),
        sa.Column("sequence", COUNT, nullable=False),
        sa.Column("fence", COUNT, nullable=False),
        sa.Column("sealed", BYTES, nullable=False),
        sa.PrimaryKeyConstraint("response_id", "sequence", name="pk_response_events"),
        sa.ForeignKeyConstraint(
            ["response_id", "tenant_id"],
            ["stored_responses.id", "stored_responses.tenant_id"],
            name="fk_response_events_response_id_tenant_id_stored_responses",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_response_events_tenant_id", "response_events", ["tenant_id"])
