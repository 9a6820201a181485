"""What can be wrong with the ledger's input and with questions to it. Errors carry data, not HTTP."""

from __future__ import annotations


class MalformedEvent(ValueError):
    """A journal entry that no ledger row can be made of. It goes to the dead letters, never blocks the
    others.
    """


class InvalidReportQuery(ValueError):
    """A usage question that cannot be answered; `field` is the parameter at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
