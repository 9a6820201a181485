"""Charges for what is no request: storage of packed adapters by the day, successful calibration jobs."""

from billing.charges.dues import (
    CALIBRATION,
    GB,
    STORAGE,
    Due,
    byte_days,
    calibration_due,
    storage_cost,
    storage_dues,
)
from billing.charges.repository import ChargeBook, ChargeRepository
from billing.charges.service import SETTLED_AFTER, ChargeService, OnCharged

__all__ = [
    "CALIBRATION",
    "GB",
    "SETTLED_AFTER",
    "STORAGE",
    "ChargeBook",
    "ChargeRepository",
    "ChargeService",
    "Due",
    "OnCharged",
    "byte_days",
    "calibration_due",
    "storage_cost",
    "storage_dues",
]
