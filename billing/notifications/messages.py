"""Writes the mail for each event type: a subject, and the same text as plain text and HTML.

Everything that a tenant could have written is escaped, and no header can contain a line break.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from billing.notifications import events

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    text: str
    html: str


def message(event_type: str, tenant_name: str, data: Data) -> Message:
    """Returns the mail for an event."""
    subject, lines = _WORDS[event_type](data)
    prefix = str(data.get("subject_prefix") or "")
    subject = _one_line(f"{prefix} {subject}".strip())
    lines = [f"Organization: {tenant_name}", *lines]
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    return Message(
        subject,
        "\n\n".join(lines) + "\n",
        f"<!doctype html><html><body><h1>{html.escape(subject)}</h1>{paragraphs}</body></html>",
    )


def dollars(micro_usd: int) -> str:
    """Returns the exact amount in dollars, with at least two decimals."""
    sign, micro_usd = ("-" if micro_usd < 0 else ""), abs(micro_usd)
    digits = f"{micro_usd % 1_000_000:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}${micro_usd // 1_000_000:,}.{digits}"


def _spend_alert(data: Data) -> tuple[str, list[str]]:
    spender = "the project " + str(data["project_id"]) if data.get("project_id") else "your organization"
    threshold = dollars(data["threshold_micro_usd"])
    if data.get("threshold_percent"):
        threshold += f" ({data['threshold_percent']} % of its limit)"
    if data.get("test"):
        return f"Test of a spend alert at {threshold}", [
            f"This is a test. When {spender} has spent {threshold} in a month, the alert is sent here.",
            "Nothing was reached and you need to do nothing.",
        ]
    return f"Spend alert: {threshold} reached", [
        f"In {data['month']} {spender} has spent {dollars(data['spent_micro_usd'])}, "
        f"which reaches the alert's threshold of {threshold}.",
        "Requests are still served; only a hard limit refuses them.",
    ]


def _invoice(data: Data) -> tuple[str, list[str]]:
    total = dollars(data["total_cents"] * 10_000)
    return f"Invoice {data['number']} for {data['month']}: {total}", [
        f"Invoice {data['number']} for {data['month']} is final. Its total is {total}."
    ]


def _payment_failed(data: Data) -> tuple[str, list[str]]:
    return "A payment failed", [
        f"A payment of {dollars(data['amount_micro_usd'])} was refused. Please check your payment method: "
        "the payment will be tried again."
    ]


def _payment_succeeded(data: Data) -> tuple[str, list[str]]:
    return "Payment succeeded", [f"Thank you for your payment of {dollars(data['amount_micro_usd'])}."]


def _grace(data: Data) -> tuple[str, list[str]]:
    until = datetime.fromtimestamp(data["grace_until"], UTC)
    return "A payment is overdue", [
        f"Unless the open amount is paid by {until:%Y-%m-%d %H:%M} UTC, requests are refused from then on."
    ]


def _suspended(_: Data) -> tuple[str, list[str]]:
    return "Your account is suspended", [
        "Requests are refused until the open amount is paid. You can pay in the console."
    ]


def _restored(_: Data) -> tuple[str, list[str]]:
    return "Your account is restored", ["Requests are served again. Thank you."]


def _adapter(data: Data) -> tuple[str, list[str]]:
    return f"{data['model']} is ready", [f"Version {data['version']} of {data['name']} can be used."]


def _batch_ended(how: str) -> Callable[[Data], tuple[str, list[str]]]:
    def words(data: Data) -> tuple[str, list[str]]:
        return f"The batch {data['id']} {how}", [
            f"Of {data['total']} requests, {data['completed']} were answered and {data['failed']} failed."
        ]

    return words


def _disabled(data: Data) -> tuple[str, list[str]]:
    return "A webhook endpoint was disabled", [
        f"The endpoint {data['url']} failed for days, so events are no longer sent to it.",
        "Once it works again, test it or change it to enable it.",
    ]


_WORDS: Mapping[str, Callable[[Data], tuple[str, list[str]]]] = {
    events.SPEND_ALERT: _spend_alert,
    events.INVOICE_FINALIZED: _invoice,
    events.PAYMENT_FAILED: _payment_failed,
    events.PAYMENT_SUCCEEDED: _payment_succeeded,
    events.ACCOUNT_GRACE: _grace,
    events.ACCOUNT_SUSPENDED: _suspended,
    events.ACCOUNT_RESTORED: _restored,
    events.ADAPTER_READY: _adapter,
    events.BATCH_COMPLETED: _batch_ended("is completed"),
    events.BATCH_FAILED: _batch_ended("failed: its input file is not valid"),
    events.BATCH_EXPIRED: _batch_ended("has expired"),
    events.BATCH_CANCELLED: _batch_ended("was cancelled"),
    events.ENDPOINT_DISABLED: _disabled,
}


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]
