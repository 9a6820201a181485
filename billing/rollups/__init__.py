"""The ledger's sums by minute, hour and day: how a stretch of time is read from them, and what they are by
the ledger's rows. Refuses to know who reads them.
"""

from billing.rollups.derivation import rederive
from billing.rollups.granularity import KEYS, ROLLUPS, SUMS, TABLES, UNITS, Interval, Unit, add_sql, intervals
from billing.rollups.repository import WRITER_LOCK, RollupBooks, RollupDifference, hold_ledger

__all__ = [
    "KEYS",
    "ROLLUPS",
    "SUMS",
    "TABLES",
    "UNITS",
    "WRITER_LOCK",
    "Interval",
    "RollupBooks",
    "RollupDifference",
    "Unit",
    "add_sql",
    "hold_ledger",
    "intervals",
    "rederive",
]
