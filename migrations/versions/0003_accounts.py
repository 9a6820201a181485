"""Projects, members, service accounts, invitations, wider keys, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
EMPTY = sa.text("'{}'")
JSONB = postgresql.JSONB()
TEXT = sa.Text()
ROLES = "role IN ('owner', 'admin', 'developer', 'billing', 'viewer')"
PROJECT_ROLES = "role IN ('owner', 'member')"

# A tenant's default project bears the tenant's own number, and so its time.
DEFAULT_PROJECTS = """
INSERT INTO projects (id, tenant_id, name, is_default, created_at)
SELECT 'proj_' || substr(id, strpos(id, '_') + 1), id, 'Default', true, created_at FROM tenants
"""
KEYS_TO_PROJECTS = """
UPDATE api_keys SET project_id = projects.id FROM projects
WHERE projects.tenant_id = api_keys.tenant_id AND projects.is_default AND kind = 'inference'
"""
REFUSE = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only ever added to: % of % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$
"""


def upgrade() -> None:
    _projects()
    _users()
    _service_accounts()
    _invites()
    _keys()
    _audit()


def _projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("is_default", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("archived_at", INSTANT),
        sa.Column("models", sa.ARRAY(TEXT), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("models_denied", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("service_tiers", sa.ARRAY(TEXT)),
        sa.Column("auto_tier", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_projects_tenant_id_tenants"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_projects_id_tenant_id"),
        sa.CheckConstraint("NOT is_default OR archived_at IS NULL", name=op.f("ck_projects_default_kept")),
        sa.CheckConstraint(
            "service_tiers <@ ARRAY['priority', 'flex']", name=op.f("ck_projects_service_tiers_known")
        ),
        sa.CheckConstraint("auto_tier IN ('priority', 'default')", name=op.f("ck_projects_auto_tier_known")),
    )
    op.create_index("ix_projects_tenant_id_id", "projects", ["tenant_id", "id"])
    op.create_index(
        "uq_projects_default", "projects", ["tenant_id"], unique=True, postgresql_where=sa.text("is_default")
    )
    op.create_index(
        "uq_projects_live_name",
        "projects",
        ["tenant_id", "name"],
        unique=True,
        postgresql_where=sa.text("archived_at IS NULL"),
    )
    op.execute(DEFAULT_PROJECTS)


def _users() -> None:
    op.add_column("users", sa.Column("name", TEXT, server_default=sa.text("''"), nullable=False))
    op.add_column("users", sa.Column("removed_at", INSTANT))
    op.drop_constraint("ck_users_role_known", "users")
    op.create_check_constraint(op.f("ck_users_role_known"), "users", ROLES)
    op.create_unique_constraint("uq_users_id_tenant_id", "users", ["id", "tenant_id"])
    op.drop_constraint("uq_users_email", "users")
    op.create_index(
        "uq_users_live_email",
        "users",
        ["email"],
        unique=True,
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.drop_index("ix_users_tenant_id", "users")
    op.create_index("ix_users_tenant_id_id", "users", ["tenant_id", "id"])
    op.create_table(
        "project_members",
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("added_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "user_id", name="pk_project_members"),
        _own("project_members", "project_id", "projects"),
        _own("project_members", "user_id", "users"),
        sa.CheckConstraint(PROJECT_ROLES, name=op.f("ck_project_members_role_known")),
    )
    op.create_index("ix_project_members_tenant_id_user_id", "project_members", ["tenant_id", "user_id"])


def _service_accounts() -> None:
    op.create_table(
        "service_accounts",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT, nullable=False),
        sa.Column("name", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("deleted_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_service_accounts"),
        _own("service_accounts", "project_id", "projects"),
        sa.UniqueConstraint("id", "tenant_id", name="uq_service_accounts_id_tenant_id"),
        sa.CheckConstraint(PROJECT_ROLES, name=op.f("ck_service_accounts_role_known")),
    )
    op.create_index(
        "ix_service_accounts_tenant_id_project_id_id",
        "service_accounts",
        ["tenant_id", "project_id", "id"],
    )


def _invites() -> None:
    op.create_table(
        "invites",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("email", TEXT, nullable=False),
        sa.Column("role", TEXT, nullable=False),
        sa.Column("projects", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.Column("accepted_at", INSTANT),
        sa.Column("deleted_at", INSTANT),
        sa.PrimaryKeyConstraint("id", name="pk_invites"),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_invites_tenant_id_tenants"),
        sa.UniqueConstraint("digest", name="uq_invites_digest"),
        sa.CheckConstraint(ROLES, name=op.f("ck_invites_role_known")),
        sa.CheckConstraint("email = lower(email)", name=op.f("ck_invites_email_lower")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_invites_digest_length")),
    )
    op.create_index("ix_invites_tenant_id_id", "invites", ["tenant_id", "id"])


def _keys() -> None:
    table = "api_keys"
    for name in ("project_id", "user_id", "service_account_id", "replaced_by"):
        op.add_column(table, sa.Column(name, TEXT))
    op.add_column(table, sa.Column("rotated_at", INSTANT))
    op.add_column(table, sa.Column("models", postgresql.ARRAY(TEXT), server_default=EMPTY, nullable=False))
    op.add_column(
        table,
        sa.Column("networks", postgresql.ARRAY(postgresql.CIDR()), server_default=EMPTY, nullable=False),
    )
    op.execute(KEYS_TO_PROJECTS)
    for column, other in (
        ("project_id", "projects"),
        ("user_id", "users"),
        ("service_account_id", "service_accounts"),
    ):
        op.create_foreign_key(
            f"fk_{table}_{column}_tenant_id_{other}",
            table,
            other,
            [column, "tenant_id"],
            ["id", "tenant_id"],
        )
        op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_foreign_key("fk_api_keys_replaced_by_api_keys", table, table, ["replaced_by"], ["id"])
    op.create_check_constraint(
        op.f("ck_api_keys_project_of_inference"), table, "(kind = 'admin') = (project_id IS NULL)"
    )
    op.create_check_constraint(
        op.f("ck_api_keys_one_owner"), table, "num_nonnulls(user_id, service_account_id) <= 1"
    )


def _audit() -> None:
    op.create_table(
        "audit_log",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("id", TEXT, nullable=False),
        sa.Column("at", INSTANT, nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("actor", JSONB, nullable=False),
        sa.Column("target_kind", TEXT, nullable=False),
        sa.Column("target_id", TEXT, nullable=False),
        sa.Column("project_id", TEXT),
        sa.Column("details", JSONB, server_default=EMPTY, nullable=False),
        sa.Column("previous", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "seq", name="pk_audit_log"),
        sa.CheckConstraint("seq > 0", name=op.f("ck_audit_log_seq_positive")),
        sa.CheckConstraint(
            "length(digest) = 32 AND length(previous) = 32", name=op.f("ck_audit_log_digest_length")
        ),
    )
    op.create_index("ix_audit_log_id", "audit_log", ["id"], unique=True)
    op.create_table(
        "audit_heads",
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name="pk_audit_heads"),
        sa.CheckConstraint("seq >= 0", name=op.f("ck_audit_heads_seq_counts")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_audit_heads_digest_length")),
    )
    op.execute(REFUSE)
    for table, events in (("audit_log", "UPDATE OR DELETE"), ("audit_heads", "DELETE")):
        op.execute(
            f"CREATE TRIGGER {table}_rows_stay BEFORE {events} ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_audit_change()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_stays BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_change()"
        )


def _own(table: str, column: str, other: str) -> sa.ForeignKeyConstraint:
    """To a row of the same tenant."""
    return sa.ForeignKeyConstraint(
        [column, "tenant_id"],
        [f"{other}.id", f"{other}.tenant_id"],
        name=f"fk_{table}_{column}_tenant_id_{other}",
    )


def downgrade() -> None:
    op.drop_table("audit_heads")
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION refuse_audit_change")
    table = "api_keys"
    # Earlier code knows neither networks nor lists of models, and would let these keys do more than they may.
    op.execute(
        "UPDATE api_keys SET revoked_at = coalesce(revoked_at, now())"
        " WHERE networks <> '{}' OR models <> '{}' OR project_id IN"
        " (SELECT id FROM projects WHERE archived_at IS NOT NULL)"
    )
    for name in ("project_of_inference", "one_owner"):
        op.drop_constraint(f"ck_api_keys_{name}", table)
    for name in (
        *("project_id", "user_id", "service_account_id", "replaced_by", "rotated_at"),
        *("models", "networks"),
    ):
        op.drop_column(table, name)
    op.drop_table("invites")
    op.drop_table("service_accounts")
    op.drop_table("project_members")
    op.drop_table("projects")
    # What no role of before comes near may not sign in; addresses must be unique again.
    op.execute("DELETE FROM users WHERE removed_at IS NOT NULL OR role IN ('billing', 'viewer')")
    op.drop_constraint("ck_users_role_known", "users")
    op.execute("UPDATE users SET role = 'admin' WHERE role = 'owner'")
    op.create_check_constraint(op.f("ck_users_role_known"), "users", "role IN ('admin', 'developer')")
    op.drop_constraint("uq_users_id_tenant_id", "users")
    op.drop_index("uq_users_live_email", "users")
    op.create_unique_constraint("uq_users_email", "users", ["email"])
    op.drop_index("ix_users_tenant_id_id", "users")
    op.create_index("ix_users_tenant_id", "users", ["tenant_id"])
    op.drop_column("users", "removed_at")
    op.drop_column("users", "name")
