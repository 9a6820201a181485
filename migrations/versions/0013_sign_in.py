"""Second factors, identities of other providers, and leave to choose another password."""

from __future__ import annotations

import secrets

import argon2
import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INSTANT = sa.DateTime(timezone=True)
NOW = sa.text("now()")
TEXT = sa.Text()
TABLES = ("second_factors", "identities", "password_resets")


def upgrade() -> None:
    op.add_column(
        "tenants",
        sa.Column("second_factor_required", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.alter_column("users", "password_hash", nullable=True)
    op.add_column("users", sa.Column("sessions_from", INSTANT))
    op.create_table(
        "second_factors",
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("confirmed_at", INSTANT),
        sa.Column("last_step", sa.BigInteger()),
        sa.Column("recovery", sa.ARRAY(sa.LargeBinary()), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_second_factors"),
        _user("second_factors"),
    )
    op.create_table(
        "identities",
        sa.Column("id", TEXT, nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("issuer", TEXT, nullable=False),
        sa.Column("subject", TEXT, nullable=False),
        sa.Column("email", TEXT, server_default=sa.text("''"), nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_identities"),
        sa.UniqueConstraint("issuer", "subject", name="uq_identities_issuer_subject"),
        _user("identities"),
    )
    op.create_index("ix_identities_tenant_id_user_id", "identities", ["tenant_id", "user_id"])
    op.create_table(
        "password_resets",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("tenant_id", TEXT, nullable=False),
        sa.Column("user_id", TEXT, nullable=False),
        sa.Column("created_at", INSTANT, server_default=NOW, nullable=False),
        sa.Column("expires_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_password_resets"),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_password_resets_digest_length")),
        _user("password_resets"),
    )
    op.create_index("ix_password_resets_tenant_id_user_id", "password_resets", ["tenant_id", "user_id"])
    for table in TABLES:
        op.execute(f"SELECT secure_tenant_rows('{table}')")


def _user(table: str) -> sa.ForeignKeyConstraint:
    """Of the same tenant."""
    return sa.ForeignKeyConstraint(
        ["user_id", "tenant_id"],
        ["users.id", "users.tenant_id"],
        name=f"fk_{table}_user_id_tenant_id_users",
    )


def downgrade() -> None:
    for table in reversed(TABLES):
        op.drop_table(table)
    op.drop_column("users", "sessions_from")
    # Nobody knows the text of this hash: who has no password has none that earlier code would let in.
    unknown = argon2.PasswordHasher().hash(secrets.token_urlsafe(32))
    filled = sa.text("UPDATE users SET password_hash = :unknown WHERE password_hash IS NULL")
    op.execute(filled.bindparams(unknown=unknown))
    op.alter_column("users", "password_hash", nullable=False)
    op.drop_column("tenants", "second_factor_required")
