"""What went wrong with the service: what everybody is told, and what operators noted among themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
TEXT = sa.Text()
NOW, NO = sa.text("now()"), sa.text("false")


def upgrade() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("title", TEXT, nullable=False),
        sa.Column("severity", TEXT, nullable=False),
        sa.Column("is_public", sa.Boolean(), server_default=NO, nullable=False),
        sa.Column("began_at", INSTANT, nullable=False),
        sa.Column("ended_at", INSTANT),
        sa.Column("opened_by", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
        sa.CheckConstraint(
            "severity IN ('minor', 'major', 'critical')", name=op.f("ck_incidents_severity_known")
        ),
        sa.CheckConstraint("ended_at >= began_at", name=op.f("ck_incidents_ends_later")),
    )
    op.create_index(
        "ix_incidents_open", "incidents", ["began_at"], postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_table(
        "incident_notes",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("incident_id", TEXT, nullable=False),
        sa.Column("at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("author", TEXT, nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("is_public", sa.Boolean(), server_default=NO, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_incident_notes"),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name="fk_incident_notes_incident_id_incidents"
        ),
    )
    op.create_index("ix_incident_notes_incident_id_id", "incident_notes", ["incident_id", "id"])
    op.create_index("ix_sla_minutes_minute", "sla_minutes", ["minute"])


def downgrade() -> None:
    op.drop_index("ix_sla_minutes_minute", "sla_minutes")
    op.drop_table("incident_notes")
    op.drop_table("incidents")
