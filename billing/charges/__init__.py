"""Charges for what is no request: storage of packed adapters by the day, successful calibration jobs."""

from billing.charges.due_charges import (
    CALIBRATION,
    GB,
    STORAGE,
    DueCharge,
    byte_days,
    calibration_charge,
    storage_charges,
    storage_cost,
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
    "DueCharge",
    "OnCharged",
    "byte_days",
    "calibration_charge",
    "storage_charges",
    "storage_cost",
]
