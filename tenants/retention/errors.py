"""Defines the errors of retention: holds that refuse a deletion, and changes that must be confirmed."""

from __future__ import annotations

from tenants.errors import TenantError


class OnLegalHold(TenantError):
    """A legal hold forbids the deletion."""

    def __init__(self, what: str, hold_id: str, remedy: str = "lift the hold first") -> None:
        super().__init__(f"{what} is on legal hold {hold_id} and cannot be deleted: {remedy}")
        self.hold_id = hold_id


class HoldNotFound(TenantError):
    """The organization has no such legal hold."""

    def __init__(self, hold_id: str) -> None:
        super().__init__(f"there is no legal hold {hold_id[:80]!r}")


class HoldLifted(TenantError):
    """The hold has been lifted already."""

    def __init__(self, hold_id: str) -> None:
        super().__init__(f"the legal hold {hold_id} was lifted already: place a new one")


class TooManyHolds(TenantError):
    """The organization has as many holds in force as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} legal holds are in force, the most there can be: lift one, or hold a class")


class CertificateNotFound(TenantError):
    """The organization has no such certificate."""

    def __init__(self, certificate_id: str) -> None:
        super().__init__(f"there is no certificate of deletion {certificate_id[:80]!r}")


class DataClassNotFound(TenantError):
    """There is no class of data of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no class of data {name[:80]!r}: the retention settings list them")


class PeriodNotAllowed(TenantError):
    """The period is outside of the bounds that plan and operator set."""

    def __init__(self, data_class: str, days: int, least: int, most: int) -> None:
        if least > most:
            why = f"the service keeps it for at least {least}, and the plan for at most {most}"
        else:
            why = f"use {least} to {most}"
        super().__init__(f"{data_class} cannot be kept for {days} days: {why}")


class DeletionUnconfirmed(TenantError):
    """A shorter period deletes data, and the request did not confirm that."""

    def __init__(self, data_class: str, days: int, num_rows: int) -> None:
        super().__init__(
            f"keeping {data_class} for {days} days deletes {num_rows} rows for good: preview them, and "
            "repeat the request with confirm_deletions set to true"
        )
        self.num_rows = num_rows


class OrganizationActive(TenantError):
    """Only a disabled organization can be deleted."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is active: disable it first, and delete it once its last invoice is issued")


class DeletionBegun(TenantError):
    """The organization's deletion has begun, or is done."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the deletion of {name} has begun already")
