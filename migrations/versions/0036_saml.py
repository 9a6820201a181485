"""Identity providers of organizations that sign members in with SAML, and groups that owners add by hand.

Leaves the running release's queries as they are: it reads neither the new table nor the new column.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT = sa.Text(), sa.DateTime(timezone=True)
NOW, YES, NO = sa.text("now()"), sa.text("true"), sa.text("false")


def upgrade() -> None:
    op.create_table(
        "saml_connections",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("entity_id", TEXT, nullable=False),
        sa.Column("sso_url", TEXT, nullable=False),
        sa.Column("certificates", sa.ARRAY(TEXT), nullable=False),
        sa.Column("email_attribute", TEXT),
        sa.Column("groups_attribute", TEXT),
        sa.Column("is_enabled", sa.Boolean(), server_default=YES, nullable=False),
        sa.Column("allows_idp_initiated", sa.Boolean(), server_default=NO, nullable=False),
        sa.Column("creates_members", sa.Boolean(), server_default=NO, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_saml_connections"),
        sa.UniqueConstraint("tenant_id", name="uq_saml_connections_tenant_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_saml_connections_tenant_id_tenants"),
        sa.CheckConstraint(
            "cardinality(certificates) BETWEEN 1 AND 2", name=op.f("ck_saml_connections_certificates_few")
        ),
        sa.CheckConstraint("tenant_id <> 'operator'", name=op.f("ck_saml_connections_not_of_operators")),
    )
    op.execute("SELECT secure_tenant_rows('saml_connections')")
    op.add_column(
        "scim_groups", sa.Column("is_added_by_hand", sa.Boolean(), server_default=NO, nullable=False)
    )


def downgrade() -> None:
    op.drop_column("scim_groups", "is_added_by_hand")
    op.drop_table("saml_connections")
