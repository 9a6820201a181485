"""What can be wrong with being paid. Errors carry data, not HTTP."""

from __future__ import annotations


class PaymentError(Exception):
    """Any of the below."""


class PaymentsNotConfigured(PaymentError):
    """No payment provider: there are invoices only."""

    def __init__(self) -> None:
        super().__init__("payments are not set up here: invoices are paid as they say")


class ProviderUnavailable(PaymentError):
    """The provider did not answer, or not in time, or asked to come later. What was asked may be done."""

    def __init__(self, reason: str, *, maybe_done: bool = True) -> None:
        super().__init__(f"the payment provider is unavailable: {reason}")
        self.maybe_done = maybe_done
        """False: it is known that nothing was done."""


class ProviderRefused(PaymentError):
    """The provider will not do it, however often it is asked."""

    def __init__(self, reason: str, code: str | None = None) -> None:
        super().__init__(f"the payment provider refused: {reason}")
        self.code = code


class BadSignature(PaymentError):
    """A webhook that the provider did not send, or not now. Says no more: whoever sent it learns nothing."""

    def __init__(self, why: str) -> None:
        super().__init__("the signature is not valid")
        self.why = why
        """For the log."""


class ManualEntryNotFound(PaymentError):
    """Nothing of this id waits for a person."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"nothing with the id {entry_id!r} waits for a person")
        self.entry_id = entry_id
