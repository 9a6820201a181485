"""Invoices, credit notes and prepaid balances of tenants."""
