"""Keeps the ledger's sums by minute, hour and day, and compares them with the ledger's rows."""

from billing.rollups.derivation import rederive
from billing.rollups.repository import WRITER_LOCK, RollupBooks, RollupDifference, hold_ledger
from billing.rollups.tables import EARNING_SUMS, KEYS, ROLLUPS, SUMS, TABLES, add_sql, earn_sql

__all__ = [
    "EARNING_SUMS",
    "KEYS",
    "ROLLUPS",
    "SUMS",
    "TABLES",
    "WRITER_LOCK",
    "RollupBooks",
    "RollupDifference",
    "add_sql",
    "earn_sql",
    "hold_ledger",
    "rederive",
]
