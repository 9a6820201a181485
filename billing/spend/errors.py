"""What can be wrong with spend control. Errors carry data, not HTTP."""

from __future__ import annotations


class SpendAlertNotFound(Exception):
    """No such alert of this tenant, or of this project."""

    def __init__(self, alert_id: str) -> None:
        super().__init__(f"there is no spend alert {alert_id[:100]!r}")
        self.alert_id = alert_id


class TooManyAlerts(Exception):
    """A tenant has as many alerts as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there can be at most {most} spend alerts")
        self.most = most
