"""Keeps the ledger's sums by minute, hour and day, and compares them with the ledger's rows."""

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
