"""Provisioning by identity providers (SCIM), and tokens of other issuers that are exchanged for keys.

Leaves the running release's queries as they are: it reads none of the new tables and columns.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
expand_only = True

TEXT, INSTANT, BYTES = sa.Text(), sa.DateTime(timezone=True), sa.LargeBinary()
NOW = sa.text("now()")
ROLE = "role IN ('owner', 'admin', 'developer', 'billing', 'viewer')"
WORKLOADS = ("workload_identity_providers", "federation_rules")
SCIM = ("scim_tokens", "scim_users", "scim_groups", "scim_group_members")


def upgrade() -> None:
    _scim()
    _workloads()
    for table in (*SCIM, *WORKLOADS):
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def downgrade() -> None:
    op.drop_column("api_keys", "federation_rule_id")
    for table in reversed((*SCIM, *WORKLOADS)):
        op.drop_table(table)


def _scim() -> None:
    op.create_table(
        "scim_tokens",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("digest", BYTES, nullable=False),
        sa.Column("prefix", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("revoked_at", INSTANT),
        sa.Column("last_used_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_scim_tokens"),
        sa.UniqueConstraint("digest", name="uq_scim_tokens_digest"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_scim_tokens_tenant_id_tenants"),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_scim_tokens_digest_length")),
    )
    op.create_index("ix_scim_tokens_tenant_id_id", "scim_tokens", ["tenant_id", "id"])
    op.create_table(
        "scim_users",
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("user_name", TEXT, nullable=False),
        sa.Column("external_id", TEXT),
        sa.Column("attributes", JSONB, server_default=sa.text("'{}'"), nullable=False),
        sa.Column("is_created_here", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_scim_users"),
        sa.ForeignKeyConstraint(
            ["user_id", "tenant_id"],
            ["users.id", "users.tenant_id"],
            name="fk_scim_users_user_id_tenant_id_users",
        ),
    )
    op.create_index(
        "uq_scim_users_user_name", "scim_users", ["tenant_id", sa.text("lower(user_name)")], unique=True
    )
    op.create_table(
        "scim_groups",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("display_name", TEXT, nullable=False),
        sa.Column("external_id", TEXT),
        sa.Column("role", TEXT),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_scim_groups"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_scim_groups_id_tenant_id"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_scim_groups_tenant_id_tenants"),
        sa.CheckConstraint(ROLE, name=op.f("ck_scim_groups_role_known")),
    )
    op.create_index("ix_scim_groups_tenant_id_id", "scim_groups", ["tenant_id", "id"])
    op.create_index(
        "uq_scim_groups_display_name",
        "scim_groups",
        ["tenant_id", sa.text("lower(display_name)")],
        unique=True,
    )
    op.create_table(
        "scim_group_members",
        sa.Column("group_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("group_id", "user_id", name="pk_scim_group_members"),
        sa.ForeignKeyConstraint(
            ["group_id", "tenant_id"],
            ["scim_groups.id", "scim_groups.tenant_id"],
            name="fk_scim_group_members_group_id_tenant_id_scim_groups",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["user_id", "tenant_id"],
            ["users.id", "users.tenant_id"],
            name="fk_scim_group_members_user_id_tenant_id_users",
        ),
    )
    op.create_index("ix_scim_group_members_tenant_id_user_id", "scim_group_members", ["tenant_id", "user_id"])


def _workloads() -> None:
    op.create_table(
        "workload_identity_providers",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("description", TEXT),
        sa.Column("issuer", TEXT, nullable=False),
        sa.Column("audience", TEXT, nullable=False),
        sa.Column("discovery_url", TEXT),
        sa.Column("jwks", JSONB),
        sa.Column("token_seconds", sa.Integer(), server_default=sa.text("3600"), nullable=False),
        sa.Column("is_single_use", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workload_identity_providers"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_workload_identity_providers_id_tenant_id"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name="fk_workload_identity_providers_tenant_id_tenants"
        ),
        sa.CheckConstraint(
            "token_seconds BETWEEN 60 AND 43200",
            name=op.f("ck_workload_identity_providers_token_seconds_sane"),
        ),
    )
    op.create_index(
        "ix_workload_identity_providers_tenant_id_id", "workload_identity_providers", ["tenant_id", "id"]
    )
    op.create_table(
        "federation_rules",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("provider_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("service_account_id", TEXT, nullable=False),
        sa.Column("name", TEXT),
        sa.Column("description", TEXT),
        sa.Column("matchers", JSONB, nullable=False),
        sa.Column("scopes", sa.ARRAY(TEXT), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("is_enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("updated_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_federation_rules"),
        sa.ForeignKeyConstraint(
            ["provider_id", "tenant_id"],
            ["workload_identity_providers.id", "workload_identity_providers.tenant_id"],
            name="fk_federation_rules_provider",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["service_account_id", "tenant_id"],
            ["service_accounts.id", "service_accounts.tenant_id"],
            name="fk_federation_rules_service_account",
        ),
    )
    op.create_index("ix_federation_rules_tenant_id_id", "federation_rules", ["tenant_id", "id"])
    op.create_index("ix_federation_rules_provider_id", "federation_rules", ["provider_id"])
    op.add_column("api_keys", sa.Column("federation_rule_id", TEXT))
    op.create_index(
        "ix_api_keys_federation_rule_id",
        "api_keys",
        ["federation_rule_id"],
        postgresql_where=sa.text("federation_rule_id IS NOT NULL"),
    )
