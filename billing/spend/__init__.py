"""Spend control: alerts, the prepaid balance, and costs that no request reserved."""
