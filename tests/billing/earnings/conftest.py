from tests.billing.invoices.conftest import business

__all__ = ["business"]
