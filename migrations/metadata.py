"""Collects every table of every domain in one MetaData, which migrations are compared with."""

from sqlalchemy.schema import SchemaItem

import adapters.files.models
import adapters.jobs.models
import adapters.models
import adapters.sharing.models
import adapters.signing.models
import batches.models
import billing.event_numbers.models
import billing.invoices.models
import billing.models
import billing.notifications.models
import billing.payments.models
import billing.reconciliation.models
import billing.request_metadata.models
import billing.spend.models
import conversations.models
import db.outbox
import sla.capacity.models
import sla.incidents.models
import sla.models
import sla.status.models
import tenants.audit.models
import tenants.limits.models
import tenants.models
import tenants.refusals.models
import tenants.retention.models
import tenants.saml.models
import tenants.scim.models
import tenants.signing_keys.models
import tenants.workload_identity.models
from db.base import Base

metadata = Base.metadata
DOMAINS = (
    adapters.files.models,
    adapters.jobs.models,
    adapters.models,
    adapters.sharing.models,
    adapters.signing.models,
    batches.models,
    billing.event_numbers.models,
    billing.invoices.models,
    billing.models,
    billing.notifications.models,
    billing.payments.models,
    billing.reconciliation.models,
    billing.request_metadata.models,
    billing.spend.models,
    conversations.models,
    db.outbox,
    sla.capacity.models,
    sla.incidents.models,
    sla.status.models,
    sla.models,
    tenants.audit.models,
    tenants.limits.models,
    tenants.models,
    tenants.scim.models,
    tenants.refusals.models,
    tenants.saml.models,
    tenants.signing_keys.models,
    tenants.retention.models,
    tenants.workload_identity.models,
)
"""Modules imported for their tables."""


def is_modelled(
    item: SchemaItem, name: str | None, kind: str, reflected: bool, other: SchemaItem | None
) -> bool:
    """Whether alembic compares this object. Partitions are created by the database, so they are not."""
    return not (
        kind == "table"
        and reflected
        and name is not None
        and name.startswith(("usage_records_", "sla_minutes_", "refused_requests_"))
    )
