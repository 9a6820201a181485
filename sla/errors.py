"""Defines the errors of service-level reports and incidents. They carry data, not HTTP status codes."""

from __future__ import annotations


class InvalidMonth(ValueError):
    """The month cannot be reported. The message begins with the field."""


class IncidentNotFound(LookupError):
    def __init__(self, incident_id: str) -> None:
        super().__init__(f"There is no incident '{incident_id[:60]}'.")
        self.incident_id = incident_id


class IncidentEnded(ValueError):
    """The incident was closed before."""

    def __init__(self, incident_id: str) -> None:
        super().__init__("This incident is closed already.")
        self.incident_id = incident_id
