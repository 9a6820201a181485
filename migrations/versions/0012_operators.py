"""The service itself, as the tenant that its operators are users of."""

from __future__ import annotations

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SELECT set_config('rootstock.tenant', '*', true)")
    op.execute("INSERT INTO tenants (id, name) VALUES ('operator', 'Rootstock, the service')")


def downgrade() -> None:
    op.execute("SELECT set_config('rootstock.tenant', '*', true)")
    op.execute("DELETE FROM users WHERE tenant_id = 'operator'")
    op.execute("DELETE FROM tenants WHERE id = 'operator'")
