"""Computes charges for storage and calibration: their ids, quantities and costs as integers.

`billing.charges.service` decides when a charge is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from billing.models import CalibrationDue, Price, StoredAdapter

STORAGE, CALIBRATION = "adapter_storage", "calibration"
GB = 10**9
_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class DueCharge:
    """A charge to be made, as `billing.models.Charge` has it."""

    id: str
    tenant_id: str
    kind: str
    at: datetime
    quantity: int
    price_id: str
    unit_price: int
    cost: int
    reference: str


def byte_days(spans: Iterable[tuple[int, datetime, datetime | None]], day: datetime) -> int:
    """Returns the byte-days of (size, since, until) on the UTC day that begins at `day`, rounded up once."""
    end = day + _DAY
    total = 0
    for size, since, until in spans:
        stored = min(until or end, end) - max(since, day)
        total += size * max(stored // _MICROSECOND, 0)
    return -(-total // (_DAY // _MICROSECOND))


def storage_cost(quantity: int, gb_day: int) -> int:
    """Returns micro-USD of byte-days, rounded up."""
    return -(-quantity * gb_day // GB)


def calibration_charge(job: CalibrationDue, price: Price) -> DueCharge:
    """Returns the charge for a successful job."""
    return DueCharge(
        id=f"calibration:{job.job_id}",
        tenant_id=job.tenant_id,
        kind=CALIBRATION,
        at=job.finished_at,
        quantity=1,
        price_id=price.id,
        unit_price=price.calibration_job,
        cost=price.calibration_job,
        reference=job.job_id,
    )


def storage_charges(stored: Sequence[StoredAdapter], start: datetime, price: Price) -> list[DueCharge]:
    """Returns a charge for each version that was stored on the UTC day that begins at `start`."""
    charges = []
    for (tenant_id, adapter_id, version), spans in groupby(
        stored, key=lambda one: (one.tenant_id, one.adapter_id, one.version)
    ):
        quantity = byte_days(((one.size, one.since, one.until) for one in spans), start)
        cost = storage_cost(quantity, price.adapter_gb_day)
        reference = f"{adapter_id}@{version}"
        charges.append(
            DueCharge(
                id=f"storage:{start:%Y-%m-%d}:{reference}",
                tenant_id=tenant_id,
                kind=STORAGE,
                at=start + _DAY - timedelta(seconds=1),
                quantity=quantity,
                price_id=price.id,
                unit_price=price.adapter_gb_day,
                cost=cost,
                reference=reference,
            )
        )
    return [charge for charge in charges if charge.quantity]
