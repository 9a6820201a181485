"""Reversals of one request's record or one charge, whole and at most once, as a new row.

A reversal counts in the minute in which it is made, so a past month never changes.
"""

from billing.reversals.repository import ReversalRepository
from billing.reversals.service import ReversalService

__all__ = ["ReversalRepository", "ReversalService"]
