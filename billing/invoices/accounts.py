"""Billing accounts: how a tenant pays and who its bills go to.

Owns the mode, the periods it makes, and the details on bills. The state (`active`, `grace`, `suspended`) is
moved by `billing.payments`, which holds the row through `AccountRepository.hold`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import redis.asyncio

from billing.invoices.models import BillingAccount, PrepaidPeriod
from billing.invoices.repository import AccountRepository
from billing.months import minute_of
from db.session import Database
from tenants.actors import Actor
from tenants.audit.service import AuditLog
from tenants.quotas.balance import set_balance

Mode = Literal["postpaid", "prepaid"]
DETAILS = ("name", "email", "address", "country", "tax_id")
_MAX_LEN = {"name": 200, "email": 254, "address": 600, "country": 2, "tax_id": 40}
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+")
_COUNTRY = re.compile(r"[A-Z]{2}")


@dataclass(frozen=True, slots=True)
class Account:
    """A tenant's account, as it is or as it would be made."""

    tenant_id: str
    mode: str = "postpaid"
    state: str = "active"
    grace_until: datetime | None = None
    stripe_customer_id: str | None = None
    name: str = ""
    email: str = ""
    address: str = ""
    country: str = ""
    tax_id: str = ""


class BillingAccounts:
    """Everybody's account."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def find(self, tenant_id: str) -> Account:
        """Raises DatabaseUnavailable."""
        async with self._database.read(tenant_id) as session:
            return account_of(tenant_id, await AccountRepository(session, tenant_id).find())

    async def set_details(self, tenant_id: str, actor: Actor, changes: Mapping[str, str]) -> Account:
        """Of `DETAILS`, what bills name from now on. Raises ValueError naming the field."""
        cleaned = {name: _checked(name, value) for name, value in changes.items()}
        async with self._database.write(tenant_id) as session:
            row = await AccountRepository(session, tenant_id).hold()
            for name, value in cleaned.items():
                setattr(row, name, value)
            row.updated_at = datetime.now(UTC)
            await AuditLog.record(
                session, tenant_id, actor, "billing_account.updated", ("billing_account", tenant_id), cleaned
            )
            return account_of(tenant_id, row)

    async def set_mode(self, tenant_id: str, mode: Mode, actor: Actor, *, now: datetime) -> Account:
        """Have usage paid from the balance from the beginning of this minute on, or invoiced again from then
        on. Every process hears of it within a second; again changes nothing. Raises ValueError.
        """
        if mode not in ("postpaid", "prepaid"):
            raise ValueError(f"mode must be postpaid or prepaid, not {str(mode)[:40]!r}")
        async with self._database.write(tenant_id) as session:
            accounts = AccountRepository(session, tenant_id)
            row = await accounts.hold()
            if row.mode == mode:
                return account_of(tenant_id, row)
            minute, periods = minute_of(now), await accounts.periods()
            if mode == "prepaid":
                earliest = max([minute, *(period.until for period in periods if period.until is not None)])
                accounts.add_own(PrepaidPeriod(tenant_id=tenant_id, since=earliest, until=None))
            else:
                # The minute that has begun may have drawn something already.
                periods[-1].until = max(minute, periods[-1].since) + timedelta(minutes=1)
            row.mode, row.updated_at = mode, now
            paid_in = await accounts.credits_sum() if mode == "prepaid" else None
            await set_balance(session, self._redis, tenant_id, paid_in)
            await AuditLog.record(
                session,
                tenant_id,
                actor,
                "billing_account.updated",
                ("billing_account", tenant_id),
                {"mode": mode},
            )
            return account_of(tenant_id, row)


def account_of(tenant_id: str, row: BillingAccount | None) -> Account:
    if row is None:
        return Account(tenant_id)
    return Account(
        tenant_id,
        row.mode,
        row.state,
        row.grace_until,
        row.stripe_customer_id,
        row.name,
        row.email,
        row.address,
        row.country,
        row.tax_id,
    )


def _checked(name: str, value: str) -> str:
    if name not in DETAILS:
        raise ValueError(f"{name[:60]} is none of {', '.join(DETAILS)}")
    value = value.strip()
    if len(value) > _MAX_LEN[name]:
        raise ValueError(f"{name} must have at most {_MAX_LEN[name]} characters")
    if any(not (char.isprintable() or (char == "\n" and name == "address")) for char in value):
        raise ValueError(f"{name} has characters that cannot be printed")
    if value and name == "email" and _EMAIL.fullmatch(value) is None:
        raise ValueError("email must be an address")
    if value and name == "country" and _COUNTRY.fullmatch(value) is None:
        raise ValueError("country must be two capital letters, ISO 3166")
    return value
