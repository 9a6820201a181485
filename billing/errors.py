"""What can be wrong with the ledger's input and with questions to it. Errors carry data, not HTTP."""

from __future__ import annotations

from datetime import datetime


class MalformedEvent(ValueError):
    """A journal entry that no ledger row can be made of. It goes to the dead letters, never blocks the
    others.
    """


class InvalidReportQuery(ValueError):
    """A usage question that cannot be answered; `field` is the parameter at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class GenerationNotFound(LookupError):
    """There is no such request in the ledger, or the one who asks may not see it."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"No such generation: '{request_id[:200]}'.")
        self.request_id = request_id


class PriceTaken(ValueError):
    """Another version of the prices comes into effect at the same moment."""

    def __init__(self, effective_from: datetime) -> None:
        super().__init__(f"effective_from: another price comes into effect at {effective_from.isoformat()}")
        self.effective_from = effective_from


class NothingToReverse(ValueError):
    """The tenant has no such request or charge in the ledger."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the ledger has no {name}")
        self.name = name


class StillRunning(ValueError):
    """What a request is billed for may still grow: it can be reversed once it has ended."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"{request_id} still runs")
        self.request_id = request_id


class AlreadyReversed(ValueError):
    """It was taken back before, by the reversal `reversal_id`."""

    def __init__(self, name: str, reversal_id: str) -> None:
        super().__init__(f"{name} is reversed already, by {reversal_id}")
        self.name = name
        self.reversal_id = reversal_id


class BooksBusy(ValueError):
    """A comparison of the books is going on."""

    def __init__(self, ticket: str) -> None:
        super().__init__("The books are being compared already: wait for that comparison to end.")
        self.ticket = ticket


class InvalidBillingMonth(ValueError):
    """Not a month there can be an invoice of. The message begins with the field."""
