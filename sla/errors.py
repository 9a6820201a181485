"""What can be wrong with a question about service levels, and with a change of an incident."""

from __future__ import annotations


class InvalidMonth(ValueError):
    """Not a month there is a report of. The message begins with the field."""


class IncidentNotFound(LookupError):
    def __init__(self, incident_id: str) -> None:
        super().__init__(f"There is no incident '{incident_id[:60]}'.")
        self.incident_id = incident_id


class IncidentEnded(ValueError):
    """It was closed before."""

    def __init__(self, incident_id: str) -> None:
        super().__init__("This incident is closed already.")
        self.incident_id = incident_id
