"""The ledger's sums by minute, hour and day: how a stretch of time is read from them, and what they are by
the ledger's rows. Refuses to know who reads them.
"""

from billing.rollups.derivation import rederive
from billing.rollups.repository import WRITER_LOCK, RollupBooks, RollupDifference, hold_ledger
from billing.rollups.tables import KEYS, ROLLUPS, SUMS, TABLES, add_sql

__all__ = [
    "KEYS",
    "ROLLUPS",
    "SUMS",
    "TABLES",
    "WRITER_LOCK",
    "RollupBooks",
    "RollupDifference",
    "add_sql",
    "hold_ledger",
    "rederive",
]
