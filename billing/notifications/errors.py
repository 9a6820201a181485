"""Defines the errors of notifications. They carry data, not HTTP status codes."""

from __future__ import annotations


class NotificationError(Exception):
    """The base of this package's errors."""


class WebhookEndpointNotFound(NotificationError):
    """The tenant has no such endpoint."""

    def __init__(self, endpoint_id: str) -> None:
        super().__init__(f"there is no webhook endpoint {endpoint_id[:100]!r}")
        self.endpoint_id = endpoint_id


class DeliveryNotFound(NotificationError):
    """The endpoint has no such delivery."""

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"there is no delivery {delivery_id[:100]!r}")
        self.delivery_id = delivery_id


class TooManyEndpoints(NotificationError):
    """The tenant has reached the maximum number of endpoints."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there can be at most {most} webhook endpoints")
        self.most = most


class MailNotSent(NotificationError):
    """The mail server did not accept a message. `for_good` means that a retry would fail as well."""

    def __init__(self, reason: str, for_good: bool) -> None:
        super().__init__(f"the message was not sent: {reason}")
        self.reason = reason
        self.for_good = for_good
