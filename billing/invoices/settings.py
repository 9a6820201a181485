"""Reads the settings of invoices from ROOTSTOCK_INVOICE_*. Only entry points and commands build them."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class InvoiceSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="ROOTSTOCK_INVOICE_")

    seller_name: str = "Rootstock"
    """The seller's name on invoices."""
    seller_address: str = ""
    """Lines of text."""
    seller_email: str = ""
    seller_tax_id: str = ""
    close_day: int = Field(default=2, ge=1, le=28)
    """The day of the month, UTC, on which the previous month is closed."""
    due_days: int = Field(default=14, ge=0, le=120)
    """Days from an invoice's issue until it is due."""

    @property
    def seller(self) -> dict[str, str]:
        return {
            "name": self.seller_name,
            "address": self.seller_address.replace("\\n", "\n"),
            "email": self.seller_email,
            "tax_id": self.seller_tax_id,
        }
