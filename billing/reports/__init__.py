"""Reports on usage, costs and margin, receipts, and exports of the ledger."""
