"""Defines the errors of payments. They carry data, not HTTP status codes."""

from __future__ import annotations


class PaymentError(Exception):
    """The base of the errors below."""


class PaymentsNotConfigured(PaymentError):
    """No payment provider is configured, so there are invoices only."""

    def __init__(self) -> None:
        super().__init__("payments are not set up here: invoices are paid as they say")


class ProviderUnavailable(PaymentError):
    """The provider did not respond in time, or asked to retry later. The request may have taken effect."""

    def __init__(self, reason: str, *, maybe_done: bool = True) -> None:
        super().__init__(f"the payment provider is unavailable: {reason}")
        self.maybe_done = maybe_done
        """False if the request certainly had no effect."""


class ProviderRefused(PaymentError):
    """The provider rejects the request, however often it is repeated."""

    def __init__(self, reason: str, code: str | None = None) -> None:
        super().__init__(f"the payment provider refused: {reason}")
        self.code = code


class BadSignature(PaymentError):
    """A webhook that the provider did not send, or not now. The message tells the sender nothing more."""

    def __init__(self, why: str) -> None:
        super().__init__("the signature is not valid")
        self.why = why
        """The reason, for the log."""


class ManualEntryNotFound(PaymentError):
    """No entry of this id waits for an operator."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"nothing with the id {entry_id!r} waits for a person")
        self.entry_id = entry_id
