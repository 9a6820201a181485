"""The ledger of usage and money: prices, charges, rollups, invoices, payments, spend alerts and reports."""
