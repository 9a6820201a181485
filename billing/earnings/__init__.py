"""Reads what organizations earn with the adapters that they share, and compares it with the users' rows."""

from billing.earnings.repository import EarningLine, EarningsBook, EarningsRepository, ShareDifference

__all__ = ["EarningLine", "EarningsBook", "EarningsRepository", "ShareDifference"]
