"""Comparison of the hours and days of service levels with the minutes they are sums of."""

from sla.rollups.derivation import rederive
from sla.rollups.repository import RollupDifference

__all__ = ["RollupDifference", "rederive"]
