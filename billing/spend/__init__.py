"""Keeping what is spent within what tenants allow: alerts, the prepaid balance, costs that are not tokens."""
