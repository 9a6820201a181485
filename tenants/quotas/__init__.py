"""Enforcing limits: what a request may take is reserved in Redis before it runs, and settled when it has."""

from tenants.quotas.plan import Contract
from tenants.quotas.quotas import Quotas
from tenants.quotas.reservation import LimitState, Reservation, Seed

__all__ = ["Contract", "LimitState", "Quotas", "Reservation", "Seed"]
