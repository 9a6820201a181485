"""Defines the classes of data that an organization sets a period for, and what is kept beside them.

Which tables belong to which class: `retention.rules`. A class without a period is kept until it is deleted on
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tenants.retention.errors import PeriodNotAllowed


class DataClass(StrEnum):
    """A class of data with one period."""

    RESPONSES = "responses"
    FILES = "files"
    BATCHES = "batches"
    ADAPTER_SOURCES = "adapter_sources"
    REQUESTS = "requests"
    NOTIFICATIONS = "notifications"
    SIGN_IN = "sign_in"
    FORMER_MEMBERS = "former_members"
    AUDIT_LOG = "audit_log"


@dataclass(frozen=True, slots=True)
class ClassTerms:
    """What a class is, and the bounds of its period in days."""

    title: str
    about: str
    """What is in the class, and from when its age counts."""
    default: int | None = None
    """Days without a setting; None: no end."""
    most: int | None = None
    """Most days; None: no bound."""


LONGEST_DAYS = 36_500
TERMS: Mapping[DataClass, ClassTerms] = {
    DataClass.RESPONSES: ClassTerms(
        "Stored responses and conversations",
        "Responses with their input and events, from when they were made; conversations with their items, "
        "from when an item was last added.",
    ),
    DataClass.FILES: ClassTerms(
        "Uploaded files", "Files for adapters and calibration, and ended uploads, from when they came."
    ),
    DataClass.BATCHES: ClassTerms(
        "Batches",
        "Batches with their lines and the copy of their input, from when they ended; their input and output "
        "files, from when they were stored.",
    ),
    DataClass.ADAPTER_SOURCES: ClassTerms(
        "Raw files of adapters",
        "The files a version was packed from and the calibration data of its jobs, from when they ended. The "
        "packed version keeps serving; it cannot be calibrated again.",
    ),
    DataClass.REQUESTS: ClassTerms(
        "Metadata of requests",
        "What clients named single requests with, and calls that were refused. Refused calls are kept for 30 "
        "days at most.",
    ),
    DataClass.NOTIFICATIONS: ClassTerms(
        "Notifications and webhook deliveries",
        "Events with their deliveries, from when they happened. What waits to be delivered stays.",
        default=30,
        most=365,
    ),
    DataClass.SIGN_IN: ClassTerms(
        "Invitations and password resets",
        "Invitations, from when they were accepted, withdrawn or expired; password resets, from when they "
        "expired. Console sessions end after 24 hours at most, whatever is set.",
    ),
    DataClass.FORMER_MEMBERS: ClassTerms(
        "Names of former members",
        "Name and address of users who were removed, from then on: they are erased, and the id stays for the "
        "ledger.",
    ),
    DataClass.AUDIT_LOG: ClassTerms(
        "Audit log",
        "Entries, from when they were written, the oldest first. The rest of the chain stays provable.",
    ),
}


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Records that no setting deletes."""

    title: str
    why: str
    period: str
    outlives_organization: bool = False


def kept_records(books_years: int) -> tuple[KeptRecords, ...]:
    """Returns what is kept beside the classes. `books_years`: for how long law asks for the books."""
    books = f"{books_years} years"
    organization = "while the organization exists"
    return (
        KeptRecords(
            "Usage ledger and its sums",
            "Invoices are proved by it: token counts, models and ids.",
            books,
            outlives_organization=True,
        ),
        KeptRecords(
            "Invoices, payments and credits",
            "Tax and commercial law ask for them.",
            books,
            outlives_organization=True,
        ),
        KeptRecords(
            "Service levels",
            "Counts of requests by minute; credits are computed from them.",
            books,
            outlives_organization=True,
        ),
        KeptRecords("Counts of refused calls", "By hour, status and code; without ids.", "30 days"),
        KeptRecords("Projects, members, keys, limits", "The account itself.", organization),
        KeptRecords("Adapters that serve", "Deleted with the adapter, within minutes.", organization),
        KeptRecords(
            "Certificates of deletion, legal holds",
            "They prove what was done.",
            "also after the organization",
            outlives_organization=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """What the operator sets for every organization."""

    minimum_days: Mapping[DataClass, int]
    backup_days: int
    """Days for which backups still hold what was deleted."""
    books_years: int

    def least(self, data_class: DataClass) -> int:
        """Returns the smallest period of a class in days."""
        return self.minimum_days.get(data_class, 1)

    def most(self, data_class: DataClass, response_days: int) -> int:
        """Returns the largest period of a class in days. `response_days`: of the organization's plan."""
        if data_class == DataClass.RESPONSES:
            return response_days
        return TERMS[data_class].most or LONGEST_DAYS

    def default(self, data_class: DataClass, response_days: int) -> int | None:
        """Returns the period of a class that has no setting, in days; None: no end."""
        return response_days if data_class == DataClass.RESPONSES else TERMS[data_class].default

    def checked(self, data_class: DataClass, days: int, response_days: int) -> int:
        """Returns the days. Raises PeriodNotAllowed."""
        least, most = self.least(data_class), self.most(data_class, response_days)
        if not least <= days <= most:
            raise PeriodNotAllowed(data_class, days, least, most)
        return days


DEFAULT_BOUNDS = RetentionBounds({DataClass.AUDIT_LOG: 365}, backup_days=35, books_years=10)
