"""Names the sealed columns of second factors, that resealing changes."""

from __future__ import annotations

from tenants.identities.second_factors import PURPOSE
from tenants.models import SecondFactor
from tenants.rotation.repository import SealedColumn

SEALED = (SealedColumn("second factors", SecondFactor, "secret", PURPOSE, lambda row: str(row["user_id"])),)
