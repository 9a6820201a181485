"""The invoices section: the list, one invoice, the preview of the next."""
