"""Defines the event types that tenants are notified of, with an example of each.

Names and fields are part of the public API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class EventType:
    name: str
    description: str
    mailed: bool
    """Whether it is also mailed to the account's billing address, owners and billing members."""
    sample: Mapping[str, Any]
    """An example of the event's `data`."""


SPEND_ALERT = "spend.alert"
INVOICE_FINALIZED = "invoice.finalized"
PAYMENT_FAILED = "payment.failed"
PAYMENT_SUCCEEDED = "payment.succeeded"
ACCOUNT_GRACE = "account.grace"
ACCOUNT_SUSPENDED = "account.suspended"
ACCOUNT_RESTORED = "account.restored"
ADAPTER_READY = "adapter.ready"
BATCH_COMPLETED = "batch.completed"
BATCH_FAILED = "batch.failed"
BATCH_EXPIRED = "batch.expired"
BATCH_CANCELLED = "batch.cancelled"
ENDPOINT_DISABLED = "webhook_endpoint.disabled"

_PAYMENT = {"invoice_id": "inv_sample", "amount_micro_usd": 12_340_000}
_ADAPTER = {"adapter_id": "adp_sample", "name": "pirate", "version": 1, "model": "base:pirate@1"}
_BATCH = {
    "id": "batch_sample",
    "total": 100,
    "completed": 99,
    "failed": 1,
    "output_file_id": "file_sample",
    "error_file_id": "file_sample2",
}

EVENTS: Mapping[str, EventType] = {
    event.name: event
    for event in (
        EventType(
            SPEND_ALERT,
            "What was spent this month has reached the threshold of a spend alert.",
            True,
            {
                "alert_id": "alert_sample",
                "project_id": None,
                "month": "2026-11",
                "threshold_micro_usd": 80_000_000,
                "threshold_percent": 80,
                "spent_micro_usd": 80_120_345,
            },
        ),
        EventType(
            INVOICE_FINALIZED,
            "A month's invoice is final.",
            True,
            {"invoice_id": "inv_sample", "number": 1, "month": "2026-10", "total_cents": 1234},
        ),
        EventType(PAYMENT_FAILED, "A payment was refused.", True, _PAYMENT),
        EventType(PAYMENT_SUCCEEDED, "A payment succeeded.", False, _PAYMENT),
        EventType(
            ACCOUNT_GRACE,
            "A payment is overdue: the account is suspended unless it is paid in time.",
            True,
            {"grace_until": 1_795_000_000},
        ),
        EventType(ACCOUNT_SUSPENDED, "Requests are refused until the open amount is paid.", True, {}),
        EventType(ACCOUNT_RESTORED, "Requests are served again.", True, {}),
        EventType(ADAPTER_READY, "A version of an adapter can be used.", False, _ADAPTER),
        EventType(BATCH_COMPLETED, "Every line of a batch has run.", False, _BATCH),
        EventType(
            BATCH_FAILED,
            "The input file of a batch is not valid, and none of its lines ran.",
            False,
            _BATCH | {"total": 0, "completed": 0, "failed": 0, "output_file_id": None, "error_file_id": None},
        ),
        EventType(BATCH_EXPIRED, "A batch ended after 24 hours with what was done.", False, _BATCH),
        EventType(BATCH_CANCELLED, "A batch was cancelled.", False, _BATCH),
        EventType(
            ENDPOINT_DISABLED,
            "A webhook endpoint failed for days and was disabled.",
            True,
            {"webhook_endpoint_id": "whep_sample", "url": "https://example.com/hook"},
        ),
    )
}


def payload(notification_id: str, type: str, at: datetime, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body of a webhook."""
    return {
        "id": notification_id,
        "object": "event",
        "type": type,
        "created_at": int(at.timestamp()),
        "data": dict(data),
    }
