"""Defines the errors of spend control. They carry data, not HTTP status codes."""

from __future__ import annotations


class SpendAlertNotFound(Exception):
    """The tenant or the project has no such alert."""

    def __init__(self, alert_id: str) -> None:
        super().__init__(f"there is no spend alert {alert_id[:100]!r}")
        self.alert_id = alert_id


class TooManyAlerts(Exception):
    """The tenant has reached the maximum number of alerts."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there can be at most {most} spend alerts")
        self.most = most
