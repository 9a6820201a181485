"""What can be wrong with where tenants want to be told. Errors carry data, not HTTP."""

from __future__ import annotations


class NotificationError(Exception):
    """Base of this package's errors."""


class WebhookEndpointNotFound(NotificationError):
    """No such endpoint of this tenant."""

    def __init__(self, endpoint_id: str) -> None:
        super().__init__(f"there is no webhook endpoint {endpoint_id[:100]!r}")
        self.endpoint_id = endpoint_id


class DeliveryNotFound(NotificationError):
    """No such delivery to this endpoint."""

    def __init__(self, delivery_id: str) -> None:
        super().__init__(f"there is no delivery {delivery_id[:100]!r}")
        self.delivery_id = delivery_id


class TooManyEndpoints(NotificationError):
    """A tenant has as many endpoints as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"there can be at most {most} webhook endpoints")
        self.most = most


class EndpointUnreachable(NotificationError):
    """No answer came from an endpoint, or it must not be asked. What an address book or a private network
    would tell is not in the words.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the endpoint did not answer: {reason}")
        self.reason = reason


class MailNotSent(NotificationError):
    """The mail server did not take a message. `for_good`: nor will it later."""

    def __init__(self, reason: str, for_good: bool) -> None:
        super().__init__(f"the message was not sent: {reason}")
        self.reason = reason
        self.for_good = for_good
