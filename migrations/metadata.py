"""Every table of every domain in one MetaData: what migrations are compared with."""

from sqlalchemy.schema import SchemaItem

import adapters.models
import billing.models
import tenants.models
from db.base import Base

metadata = Base.metadata
DOMAINS = (adapters.models, billing.models, tenants.models)
"""Imported for their tables."""


def is_modelled(
    item: SchemaItem, name: str | None, kind: str, reflected: bool, other: SchemaItem | None
) -> bool:
    """Whether alembic compares this object: partitions are made by the database itself, as months come."""
    return not (kind == "table" and reflected and name is not None and name.startswith("usage_records_"))
