"""Manages billing accounts: how a tenant pays, and the billing details on its invoices.

It keeps the mode and its prepaid periods. `billing.payments` changes the state (`active`, `grace`,
`suspended`), holding the row through `AccountRepository.hold`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import redis.asyncio

from billing.invoices.credits import balance_of
from billing.invoices.errors import BalanceEmpty, ModeNotAllowed
from billing.invoices.models import BillingAccount, PrepaidPeriod
from billing.invoices.repository import AccountRepository
from billing.months import minute_of
from db.session import Database, WriteSession
from tenants.actors import Actor
from tenants.audit.repository import AuditFilter, AuditRepository
from tenants.audit.service import AuditLog
from tenants.quotas.balance import set_balance
from tenants.validation import is_printable

Mode = Literal["postpaid", "prepaid"]
DETAILS = ("name", "email", "address", "country", "tax_id")
_MAX_LEN = {"name": 200, "email": 254, "address": 600, "country": 2, "tax_id": 40}
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+")
_CHANGES_LOOKED_AT = 1000
"""How many changes of an account are searched for the latest change of its mode."""
_COUNTRY = re.compile(r"[A-Z]{2}")


@dataclass(frozen=True, slots=True)
class BillingAccountView:
    """A tenant's account, or the defaults if it has none yet."""

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
    """Manages the accounts of all tenants."""

    def __init__(self, database: Database, redis_client: redis.asyncio.Redis) -> None:
        self._database = database
        self._redis = redis_client

    async def find(self, tenant_id: str) -> BillingAccountView:
        """Returns a tenant's account. Raises DatabaseUnavailable."""
        async with self._database.read(tenant_id) as session:
            return account_of(tenant_id, await AccountRepository(session, tenant_id).find())

    async def set_details(
        self, tenant_id: str, actor: Actor, changes: Mapping[str, str]
    ) -> BillingAccountView:
        """Changes the billing details (`DETAILS`) from now on. Raises ValueError naming the field."""
        cleaned = checked_details(changes)
        async with self._database.write(tenant_id) as session:
            row = await AccountRepository(session, tenant_id).hold()
            for name, value in cleaned.items():
                setattr(row, name, value)
            row.updated_at = datetime.now(UTC)
            await AuditLog.record(
                session, tenant_id, actor, "billing_account.updated", ("billing_account", tenant_id), cleaned
            )
            return account_of(tenant_id, row)

    async def set_mode(
        self,
        tenant_id: str,
        mode: Mode,
        actor: Actor,
        *,
        now: datetime,
        by_tenant: bool = False,
        confirmed: bool = False,
    ) -> BillingAccountView:
        """Switches to prepaid from the beginning of this minute, or back to postpaid from now on. Every
        process applies it within a second; repeating it changes nothing.

        Args:
            by_tenant: whether the tenant decides rather than the operator; it may undo only its own choice.
            confirmed: whether the tenant knows that its balance is empty.

        Raises ValueError; if the tenant decides, BalanceEmpty, ModeNotAllowed.
        """
        if mode not in ("postpaid", "prepaid"):
            raise ValueError(f"mode must be postpaid or prepaid, not {str(mode)[:40]!r}")
        async with self._database.write(tenant_id) as session:
            accounts = AccountRepository(session, tenant_id)
            row = await accounts.hold()
            if row.mode == mode:
                return account_of(tenant_id, row)
            if by_tenant:
                await _check_choice(session, tenant_id, mode, confirmed)
            minute, periods = minute_of(now), await accounts.periods()
            if mode == "prepaid":
                earliest = max([minute, *(period.until for period in periods if period.until is not None)])
                accounts.add_own(PrepaidPeriod(tenant_id=tenant_id, since=earliest, until=None))
            else:
                # The current minute may already have drawn on the balance.
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


async def _check_choice(session: WriteSession, tenant_id: str, mode: Mode, confirmed: bool) -> None:
    """Raises BalanceEmpty or ModeNotAllowed if the tenant may not choose this mode."""
    balance = (await balance_of(session, tenant_id)).amount
    if mode == "prepaid":
        if balance <= 0 and not confirmed:
            raise BalanceEmpty(balance)
        return
    if not await _was_chosen_by_tenant(session, tenant_id):
        raise ModeNotAllowed(
            "The operator set this account to prepaid; ask the operator to switch it to postpaid."
        )
    if balance < 0:
        raise ModeNotAllowed(
            f"The balance is {balance} micro-USD; top it up to 0 before switching to postpaid."
        )


async def _was_chosen_by_tenant(session: WriteSession, tenant_id: str) -> bool:
    """Whether the current mode was set with one of the tenant's keys or by one of its users."""
    changes = AuditFilter(types=("billing_account.updated",), target_ids=(tenant_id,))
    entries = await AuditRepository(session, tenant_id).page(
        changes, after=None, limit=_CHANGES_LOOKED_AT, newest_first=True
    )
    chosen = next((entry for entry in entries if "mode" in entry.details), None)
    return chosen is not None and chosen.actor["type"] in ("api_key", "user")


def account_of(tenant_id: str, row: BillingAccount | None) -> BillingAccountView:
    if row is None:
        return BillingAccountView(tenant_id)
    return BillingAccountView(
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


def checked_details(changes: Mapping[str, str]) -> dict[str, str]:
    """Returns the details as they are stored. Raises ValueError naming the field."""
    return {name: _checked(name, value) for name, value in changes.items()}


def _checked(name: str, value: str) -> str:
    if name not in DETAILS:
        raise ValueError(f"{name[:60]} is none of {', '.join(DETAILS)}")
    value = value.strip()
    if len(value) > _MAX_LEN[name]:
        raise ValueError(f"{name} must have at most {_MAX_LEN[name]} characters")
    if not is_printable(value.replace("\n", " ") if name == "address" else value):
        raise ValueError(f"{name} has characters that cannot be printed")
    if value and name == "email" and _EMAIL.fullmatch(value) is None:
        raise ValueError("email must be an address")
    if value and name == "country" and _COUNTRY.fullmatch(value) is None:
        raise ValueError("country must be two capital letters, ISO 3166")
    return value
