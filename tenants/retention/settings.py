"""Reads the bounds of retention from ROOTSTOCK_RETENTION_*. Only process mains construct them."""

from __future__ import annotations

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tenants.retention.classes import LONGEST_DAYS, DataClass, RetentionBounds

AUDIT_FLOOR = 90
"""Days below which PostgreSQL itself deletes no entry of the audit log."""


class RetentionSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_RETENTION_")

    minimum_days: str = "audit_log=365"
    """The fewest days that an organization can keep a class of its data for, as `audit_log=365,requests=7`.
    Classes that are not named: 1. Of the audit log: at least 90.
    """
    backup_days: int = Field(default=35, ge=0, le=3660)
    """Days for which your backups, and the archived log beside them, still hold what was deleted.
    Certificates of deletion say so: set what you do.
    """
    books_years: int = Field(default=10, ge=1, le=100)
    """Years for which the law that you are under has the ledger and invoices kept. Shown; nothing deletes
    them.
    """

    @field_validator("minimum_days")
    @classmethod
    def _are_classes(cls, value: str) -> str:
        _minimum(value)
        return value

    def bounds(self) -> RetentionBounds:
        return RetentionBounds(_minimum(self.minimum_days), self.backup_days, self.books_years)


def _minimum(value: str) -> dict[DataClass, int]:
    found = {DataClass.AUDIT_LOG: AUDIT_FLOOR}
    for part in filter(None, (one.strip() for one in value.split(","))):
        name, _, days = part.partition("=")
        if name not in DataClass.__members__.values() or not days.isdecimal():
            known = ", ".join(DataClass)
            raise ValueError(f"{part!r} is not CLASS=DAYS with one of the classes {known}")
        least = AUDIT_FLOOR if name == DataClass.AUDIT_LOG else 1
        if not least <= int(days) <= LONGEST_DAYS:
            raise ValueError(f"{part!r}: days must be from {least} to {LONGEST_DAYS}")
        found[DataClass(name)] = int(days)
    return found
