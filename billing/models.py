"""Defines the ledger's tables: one row per request, partitioned by month; its sums by the minute, hour and
day; charges that belong to no request; reversals of both; and the price list.

Rows name tenants and keys without foreign keys: usage must be recorded even if what it names was deleted.
Money is whole micro-USD. Triggers protect what is written: records only grow, all other rows never change.
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
FAILED = "finish_reason = ANY (ARRAY['abort', 'error'])"
"""SQL that matches requests that were cancelled or failed: an index has them."""


class UsageRecord(TenantOwned, Base):
    """The usage and cost of one request. Grows while the request runs, final once `finish_reason` is set."""

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
        Index("ix_usage_records_failed", "tenant_id", "submitted_at", postgresql_where=text(FAILED)),
        {"postgresql_partition_by": "RANGE (submitted_at)"},
    )

    submitted_at: Mapped[datetime] = mapped_column(primary_key=True)
    request_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    """The pinned name that the request used."""
    adapter_id: Mapped[str | None]
    adapter_version: Mapped[int | None] = mapped_column(Integer)
    adapter_digest: Mapped[str | None]
    endpoint: Mapped[str]
    service_tier: Mapped[str]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    reasoning_tokens: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Those of `completion_tokens` that the model thought with."""
    num_choices: Mapped[int] = mapped_column(Integer)
    finish_reason: Mapped[str | None]
    queue_seconds: Mapped[float | None] = mapped_column(Double)
    """Seconds from submission to the first batch."""
    first_token_seconds: Mapped[float | None] = mapped_column(Double)
    """Seconds from submission to the first token."""
    total_seconds: Mapped[float | None] = mapped_column(Double)
    """Seconds from submission to the end."""
    preemptions: Mapped[int] = mapped_column(Integer)
    engine_id: Mapped[str]
    recorded_at: Mapped[datetime]
    """When the engine recorded the latest event."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    project_id: Mapped[str | None]
    user_id: Mapped[str | None]
    """The user or service account that owns the API key."""
    price_id: Mapped[str] = mapped_column(server_default=_NONE)
    """The version of the price list; empty if the request was free."""
    input_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD per million tokens, including the adapter surcharge, as the next two."""
    cached_input_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    output_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    price_percent: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    """The percentage of these prices that the service tier pays."""
    cost: Mapped[int] = mapped_column(BigInteger, Computed(_COST, persisted=True))
    """What the operator's prices come to, in micro-USD. `billed` adds the surcharge."""
    cached_cost: Mapped[int] = mapped_column(
        BigInteger,
        Computed("usage_cost_share(cached_tokens, cached_input_price, price_percent)", persisted=True),
    )
    """The part of `cost` for cached input, rounded down."""
    output_cost: Mapped[int] = mapped_column(
        BigInteger,
        Computed("usage_cost_share(completion_tokens, output_price, price_percent)", persisted=True),
    )
    """The part of `cost` for output, rounded down. The rest is for input that was not cached."""
    owner_id: Mapped[str | None]
    """The organization whose shared adapter was used; None for the tenant's own, as the next one."""
    share_id: Mapped[str | None]
    share_input_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD per million tokens that the owner asks for, as the next one."""
    share_output_price: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    owner_percent: Mapped[int] = mapped_column(Integer, server_default=_ZERO)
    """The owner's part of the surcharge in percent."""
    surcharge: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """`ShareTerms.surcharge`, in micro-USD. A trigger computes it, as the next one."""
    owner_part: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """The owner's part of it. The rest is the platform's."""

    @property
    def billed(self) -> int:
        """Micro-USD that the tenant pays: `billing.rates.Rate.cost`."""
        return self.cost + self.surcharge


@declarative_mixin
class RollupSums(TenantOwned):
    """The keys and sums of every rollup. A reversal counts negative, at the time of the reversal."""

    key_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    service_tier: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    """Empty if there is none, as the next two."""
    user_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    adapter_id: Mapped[str] = mapped_column(primary_key=True, server_default=_NONE)
    num_requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    cached_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    output_cost: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    surcharge: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """The part of `cost` for shared adapters."""


class UsageRollup(RollupSums, Base):
    """The ledger's sums per minute of submission. They change only in the transaction that changes the
    records, by the same difference; so do the sums by hour and day.
    """

    __tablename__ = "usage_rollups"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    minute: Mapped[datetime] = mapped_column(primary_key=True)


class UsageRollupHour(RollupSums, Base):
    """The ledger's sums per hour."""

    __tablename__ = "usage_rollup_hours"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[datetime] = mapped_column(primary_key=True)


class UsageRollupDay(RollupSums, Base):
    """The ledger's sums per UTC day."""

    __tablename__ = "usage_rollup_days"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    day: Mapped[datetime] = mapped_column(primary_key=True)


class ShareEarning(TenantOwned, Base):
    """What an organization earned on a UTC day with an adapter that it shares. Its sums are those of the
    users' records, changed in the same transaction; a reversal counts negative, at its own time.
    """

    __tablename__ = "share_earnings"

    tenant_id: Mapped[str] = mapped_column(primary_key=True)
    """The adapter's owner."""
    day: Mapped[datetime] = mapped_column(primary_key=True)
    share_id: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(primary_key=True)
    """The pinned name that the requests used."""
    num_requests: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    completion_tokens: Mapped[int] = mapped_column(BigInteger)
    surcharge: Mapped[int] = mapped_column(BigInteger)
    owner_part: Mapped[int] = mapped_column(BigInteger)


class Charge(TenantOwned, Base):
    """An amount that a tenant pays besides requests. Its id names what it is for, so charging again changes
    nothing.
    """

    __tablename__ = "charges"
    __table_args__ = (
        CheckConstraint("kind IN ('adapter_storage', 'calibration')", name="kind_known"),
        CheckConstraint("quantity >= 0 AND unit_price >= 0 AND cost >= 0", name="amounts_sane"),
        Index(None, "tenant_id", "at"),
        Index(None, "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    """`storage:<UTC day>:<adapter>@<version>` or `calibration:<job>`."""
    tenant_id: Mapped[str]
    kind: Mapped[str]
    at: Mapped[datetime]
    """The moment it counts at."""
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
    """A UTC day whose storage has been charged."""

    __tablename__ = "charged_days"

    day: Mapped[date] = mapped_column(Date, primary_key=True)
    charged_at: Mapped[datetime]


class StoredAdapter(TenantOwned, Base):
    """The bytes that a packed adapter version stored, and when. A database trigger writes it as versions
    change, because the versions' own rows are deleted with the adapter.
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
    """A successful calibration job that is not charged yet. A trigger writes it when the job ends."""

    __tablename__ = "calibrations_due"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str]
    finished_at: Mapped[datetime]


class Reversal(TenantOwned, Base):
    """Reverses one request's record or one charge, whole. Its amounts are positive. It counts at the time of
    the reversal: a past month never changes.
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
    # The keys of the request's rollups; empty for a charge.
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
    surcharge: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """The part of `cost` for a shared adapter, whose owner loses `owner_part` of it."""
    owner_id: Mapped[str | None]
    share_id: Mapped[str | None]
    owner_part: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    reason: Mapped[str]
    actor: Mapped[str]
    """The kind and id of the actor that reversed it, as `api_key:key_...`."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Price(Base):
    """A version of the price list, in micro-USD. Triggers keep its rows from changing."""

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
    """Requests submitted from then on pay this version, until the next takes effect."""
    input: Mapped[int] = mapped_column(BigInteger)
    """Micro-USD per million tokens, as the next two."""
    cached_input: Mapped[int] = mapped_column(BigInteger)
    output: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    adapter_surcharge: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Added per million tokens, input and output, for requests on an adapter."""
    adapter_gb_day: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD per GB (10**9 bytes) of packed adapters and UTC day."""
    calibration_job: Mapped[int] = mapped_column(BigInteger, server_default=_ZERO)
    """Micro-USD per successful job."""
