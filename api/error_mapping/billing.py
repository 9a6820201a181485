"""Maps errors of billing, payments and notifications to HTTP responses."""

from __future__ import annotations

from api.error_mapping import INTERNAL, INVALID, NOT_FOUND, UNAVAILABLE, ErrorResponse
from billing.errors import (
    AlreadyReversed,
    GenerationNotFound,
    InvalidBillingMonth,
    InvalidReportQuery,
    MalformedEvent,
    NothingToReverse,
    PriceTaken,
    ReconciliationRunning,
    StillRunning,
)
from billing.invoices.errors import (
    BalanceEmpty,
    CreditNotAllowed,
    InvoiceNotFound,
    ModeNotAllowed,
    MonthSettled,
)
from billing.notifications.errors import (
    DeliveryNotFound,
    MailNotSent,
    NotificationError,
    TooManyEndpoints,
    WebhookEndpointNotFound,
)
from billing.payments.errors import (
    BadSignature,
    ManualEntryNotFound,
    PaymentsNotConfigured,
    ProviderRefused,
    ProviderUnavailable,
)
from billing.spend.errors import SpendAlertNotFound, TooManyAlerts

ERROR_RESPONSES: dict[type[Exception], ErrorResponse] = {
    InvalidReportQuery: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    GenerationNotFound: NOT_FOUND,
    ReconciliationRunning: ErrorResponse(409, "conflict_error", "books_busy", retry=False),
    InvalidBillingMonth: ErrorResponse(400, INVALID, "invalid_value", retry=False, param="month"),
    MonthSettled: ErrorResponse(404, INVALID, "not_found", retry=False, param="month"),
    InvoiceNotFound: NOT_FOUND,
    BalanceEmpty: ErrorResponse(409, "conflict_error", "balance_empty", retry=False, param="mode"),
    ModeNotAllowed: ErrorResponse(409, "conflict_error", "mode_not_allowed", retry=False, param="mode"),
    CreditNotAllowed: ErrorResponse(400, INVALID, "invalid_value", retry=False),
    PaymentsNotConfigured: ErrorResponse(409, "conflict_error", "payments_not_configured", retry=False),
    ProviderUnavailable: ErrorResponse(
        503,
        UNAVAILABLE,
        "server_is_overloaded",
        retry=True,
        retry_after=5,
        message="The payment provider does not answer at the moment. Try again.",
    ),
    ProviderRefused: ErrorResponse(
        500,
        "server_error",
        "payment_provider_error",
        retry=False,
        message="The payment provider refused this. Please contact us.",
    ),
    BadSignature: ErrorResponse(400, INVALID, "invalid_signature", retry=False),
    # Raised by the operator's commands only, never by an HTTP request.
    ManualEntryNotFound: INTERNAL,
    # Raised by workers and the operator's commands only, never by an HTTP request.
    MalformedEvent: INTERNAL,
    PriceTaken: INTERNAL,
    NothingToReverse: INTERNAL,
    StillRunning: INTERNAL,
    AlreadyReversed: INTERNAL,
    NotificationError: INTERNAL,
    WebhookEndpointNotFound: NOT_FOUND,
    DeliveryNotFound: NOT_FOUND,
    SpendAlertNotFound: NOT_FOUND,
    TooManyEndpoints: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    TooManyAlerts: ErrorResponse(429, "rate_limit_error", "insufficient_quota", retry=False),
    MailNotSent: INTERNAL,
}
