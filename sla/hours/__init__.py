"""The hours of service levels beside the minutes they are sums of."""

from sla.hours.derivation import rederive
from sla.hours.repository import HourDifference

__all__ = ["HourDifference", "rederive"]
