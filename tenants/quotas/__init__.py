"""Enforces limits: reserves in Redis what a request can use before it runs, and settles what it used."""

from tenants.quotas.plan import Contract
from tenants.quotas.quotas import Quotas
from tenants.quotas.reservation import LimitState, Reservation, UsageReader

__all__ = ["Contract", "LimitState", "Quotas", "Reservation", "UsageReader"]
