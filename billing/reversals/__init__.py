"""Reversals: one request's record or one charge taken back, whole and at most once, as a new row.

A reversal counts in the minute in which it is made, so that a month that is over stays as it was.
"""

from billing.reversals.repository import ReversalRepository
from billing.reversals.service import ReversalService

__all__ = ["ReversalRepository", "ReversalService"]
