"""The ledger: one row per request, partitioned by month; its sums by the minute, hour and day; charges that
are no request's; reversals of both; and the prices.

Rows name tenants and keys without foreign keys: a bill must be written down even if what it names is gone.
Money is whole micro-USD. Triggers keep what is written: records only grow, the rest never changes.
"""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    Date,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, declarative_mixin, mapped_column

from db.base import Base
from db.repository import TenantOwned

_COST = (
    "usage_cost(prompt_tokens, cached_tokens, completion_tokens, "
    "input_price, cached_input_price, output_price, price_percent)"
)
_NONE, _ZERO = text("''"), text("0")


class UsageRecord(TenantOwned, Base):
    """What one request is billed for. Grows while the request runs, final once `finish_reason` is set."""

    __tablename__ = "usage_records"
    __table_args__ = (
        CheckConstraint(
            "prompt_tokens >= 0 AND completion_tokens >= 0 AND cached_tokens BETWEEN 0 AND prompt_tokens",
            name="counts_sane",
        ),
        CheckConstraint(
            "input_price >= 0 AND cached_input_price >= 0 AND output_price >= 0 AND price_percent >= 0",
            name="prices_sane",
        ),
        Index(None, "tenant_id", "submitted_at"),
        {"postgresql_partition_by": "RANGE (submitted_at)"},
    )

    submitted_at: Mapped[datetime] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    """The pinned name it was sold under."""
    adapter_id: Mapped[str | None]
    adapter_version: Mapped[int | None] = mapped_column(Integer)
    adapter_digest: Mapped[str | None]
    endpoint: Mapped[str]
    service_tier: Mapped[str]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    num_choices: Mapped[int] = mapped_column(Integer)
    finish_reason: Mapped[str | None]
    queue_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the first batch."""
    first_token_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the first token."""
    total_seconds: Mapped[float | None] = mapped_column(Double)
    """From submission to the end."""
    preemptions: Mapped[int] = mapped_column(Integer)
    engine_id: Mapped[str]
    recorded_at: Mapped[datetime]
    """When the engine wrote the latest event down."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    project_id: Mapped[str | None]
    user_id: Mapped[str | None]
    """Of the user or service account whose key it was."""
    price_id: Mapped[str] = mapped_column(server_default=_NONE)
    """The version of the price list; empty: free."""
    input_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD per million tokens, the surcharge for an adapter included. So are the next two."""
    cached_input_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    output_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    price_percent: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    """What its class of service pays of them."""
    cost: Mapped[int] = mapped_column(BigInteger, Computed(_COST, persisted=True))
    """`billing.pricing.Rate.cost`, to the micro-USD."""
    cached_cost: Mapped[int] = mapped_column(
        BigInteger,
        Computed("usage_cost_share(cached_tokens, cached_input_price, price_percent)", persisted=True),
    )
    """What of `cost` is for cached input, rounded down."""
    output_cost: Mapped[int] = mapped_column(
        BigInteger,
        Computed("usage_cost_share(completion_tokens, output_price, price_percent)", persisted=True),
    )
    """What of `cost` is for output, rounded down. The rest of it is for input that was not cached."""


@declarative_mixin
class RollupSums(TenantOwned):
    """What every rollup has: whose, of what, and the sums. A reversal counts negative, when it was made."""

    key_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    """Empty: none. So are the next two."""
    user_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    adapter_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    num_requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    cached_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    output_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)


class UsageRollup(RollupSums, Base):
    """The ledger's sums per minute of submission. Changed only in the transaction, and by the difference, of
    the records; so are those of hours and days.
    """

    __tablename__ = "usage_rollups"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)


class UsageRollupHour(RollupSums, Base):
    """The same per hour."""

    __tablename__ = "usage_rollup_hours"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)


class UsageRollupDay(RollupSums, Base):
    """The same per UTC day."""

    __tablename__ = "usage_rollup_days"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[datetime] = mapped_column(primary_key=True)


class Charge(TenantOwned, Base):
    """What a tenant pays that is no request's. Its id says what for: charging it again changes nothing."""

    __tablename__ = "charges"
    __table_args__ = (
        CheckConstraint("kind IN ('adapter_storage', 'calibration')", name="kind_known"),
        CheckConstraint("quantity >= 0 AND unit_price >= 0 AND cost >= 0", name="amounts_sane"),
        Index(None, "tenant_id", "at"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`storage:<UTC day>:<adapter>@<version>`, `calibration:<job>`."""
    tenant_id: Mapped[str]
    kind: Mapped[str]
    at: Mapped[datetime]
    """The moment it counts to."""
    quantity: Mapped[int] = mapped_column(BigInteger)
    """Byte-days, or jobs."""
    price_id: Mapped[str]
    unit_price: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD of a GB-day, or of a job."""
    cost: Mapped[int] = mapped_column(BigInteger)
    reference: Mapped[str]
    """`adp_...@version`, or the job's id."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ChargedDay(Base):
    """A UTC day whose storage is charged."""

    __tablename__ = "charged_days"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    charged_at: Mapped[datetime]


class StoredAdapter(TenantOwned, Base):
    """Bytes stored of a packed version, from when to when. The database itself writes it, as versions change:
    their own rows go with the adapter.
    """

    __tablename__ = "adapter_storage"
    __table_args__ = (
        CheckConstraint("until >= since", name="ends_later"),
        Index(None, "adapter_id", "version"),
        Index(None, "until"),
    )

    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    tenant_id: Mapped[str]
    adapter_id: Mapped[str]
    version: Mapped[int] = mapped_column(Integer)
    size: Mapped[int] = mapped_column(BigInteger)
    since: Mapped[datetime]
    until: Mapped[datetime | None]


class CalibrationDue(TenantOwned, Base):
    """A job that ended well and is not charged yet. The database itself writes it, as the job ends."""

    __tablename__ = "calibrations_due"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    finished_at: Mapped[datetime]


class Reversal(TenantOwned, Base):
    """Takes one request's record or one charge back, whole. Amounts are what is taken back: positive.

    Counts when it was made: a month that is over never changes.
    """

    __tablename__ = "reversals"
    __table_args__ = (
        UniqueConstraint("submitted_at", "request_id"),
        UniqueConstraint("charge_id"),
        CheckConstraint(
            "(request_id IS NULL) = (submitted_at IS NULL) AND (request_id IS NULL) <> (charge_id IS NULL)",
            name="of_one",
        ),
        Index(None, "tenant_id", "at"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`rev_...`."""
    tenant_id: Mapped[str]
    at: Mapped[datetime]
    submitted_at: Mapped[datetime | None]
    request_id: Mapped[str | None]
    charge_id: Mapped[str | None] = mapped_column(ForeignKey("charges.id"))
    # Of a request, what its rollups are keyed by; of a charge, empty.
    key_id: Mapped[str] = mapped_column(server_default=_NONE)
    model: Mapped[str] = mapped_column(server_default=_NONE)
    service_tier: Mapped[str] = mapped_column(server_default=_NONE)
    project_id: Mapped[str] = mapped_column(server_default=_NONE)
    user_id: Mapped[str] = mapped_column(server_default=_NONE)
    adapter_id: Mapped[str] = mapped_column(server_default=_NONE)
    num_requests: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    completion_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    cost: Mapped[int] = mapped_column(BigInteger)
    cached_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    output_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    reason: Mapped[str]
    actor: Mapped[str]
    """Who took it back: kind and id, `api_key:key_...`."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Price(Base):
    """A version of the price list, in micro-USD. Rows are never changed: the schema sees to it."""

    __tablename__ = "prices"
    __table_args__ = (
        CheckConstraint(
            "input >= 0 AND cached_input >= 0 AND output >= 0 AND adapter_surcharge >= 0 "
            "AND adapter_gb_day >= 0 AND calibration_job >= 0",
            name="amounts_sane",
        ),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    effective_from: Mapped[datetime] = mapped_column(unique=True)
    """Requests submitted from then on pay it, until the next version's."""
    input: Mapped[int] = mapped_column(BigInteger)
    """Of a million tokens. So are the next two."""
    cached_input: Mapped[int] = mapped_column(BigInteger)
    output: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    adapter_surcharge: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Of a million tokens, in and out, of requests on an adapter: on top."""
    adapter_gb_day: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Of a GB (10**9 bytes) of packed adapters for a UTC day."""
    calibration_job: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Of a job that ended well."""
