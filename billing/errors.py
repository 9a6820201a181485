"""Defines the errors of the ledger's input and of questions to it. They carry data, not HTTP status codes."""

from __future__ import annotations

from datetime import datetime


class MalformedEvent(ValueError):
    """A journal entry that cannot become a ledger row. The meter moves it to the dead letters and goes on."""


class InvalidReportQuery(ValueError):
    """A usage question that cannot be answered; `field` names the invalid parameter."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class GenerationNotFound(LookupError):
    """The ledger has no such request, or the caller may not see it."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"No such generation: '{request_id[:200]}'.")
        self.request_id = request_id


class PriceTaken(ValueError):
    """Another version of the price list takes effect at the same moment."""

    def __init__(self, effective_from: datetime) -> None:
        super().__init__(f"effective_from: another price comes into effect at {effective_from.isoformat()}")
        self.effective_from = effective_from


class NothingToReverse(ValueError):
    """The ledger has no such request or charge of the tenant."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the ledger has no {name}")
        self.name = name


class StillRunning(ValueError):
    """The request may still grow; it can be reversed once it has ended."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"{request_id} still runs")
        self.request_id = request_id


class AlreadyReversed(ValueError):
    """The request or charge was reversed before, by the reversal `reversal_id`."""

    def __init__(self, name: str, reversal_id: str) -> None:
        super().__init__(f"{name} is reversed already, by {reversal_id}")
        self.name = name
        self.reversal_id = reversal_id


class ReconciliationRunning(ValueError):
    """Another comparison of the books is running."""

    def __init__(self, ticket: str) -> None:
        super().__init__("The books are being compared already: wait for that comparison to end.")
        self.ticket = ticket


class InvalidBillingMonth(ValueError):
    """The month is not one that can be invoiced. The message begins with the field."""
