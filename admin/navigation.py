"""Lists the sections of the console, and returns those that a role can see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from tenants.roles import Right


@dataclass(frozen=True, slots=True)
class Section:
    id: str
    """Also the name of its picture."""
    path: str
    title: str
    group: str = ""
    right: Right | None = None
    """The right that its pages require; None: every signed-in user sees them."""


OVERVIEW = Section("overview", "/", "Overview")
ADAPTERS = Section("adapters", "/adapters", "Adapters", "Models", "adapters.read")
PLAYGROUND = Section("playground", "/playground", "Playground", "Models", "adapters.write")
BATCHES = Section("batches", "/batches", "Batches", "Models", "adapters.read")
PROJECTS = Section("projects", "/projects", "Projects", "Access", "projects.read")
KEYS = Section("keys", "/keys", "API keys", "Access", "keys.read")
MEMBERS = Section("members", "/members", "Members", "Access", "members.read")
USAGE = Section("usage", "/usage", "Usage", "Spending", "billing.read")
BILLING = Section("billing", "/billing", "Billing", "Spending", "billing.read")
INVOICES = Section("invoices", "/invoices", "Invoices", "Spending", "billing.read")
LIMITS = Section("limits", "/limits", "Limits and alerts", "Spending", "limits.read")
WEBHOOKS = Section("webhooks", "/webhooks", "Webhooks", "Access", "webhooks.read")
SETTINGS = Section("settings", "/settings", "Settings", "Access", "projects.read")
AUDIT = Section("audit", "/audit", "Audit log", "Records", "audit.read")
SLA = Section("sla", "/sla", "Service levels", "Records", "limits.read")

SECTIONS = (
    OVERVIEW,
    ADAPTERS,
    PLAYGROUND,
    BATCHES,
    PROJECTS,
    KEYS,
    MEMBERS,
    WEBHOOKS,
    SETTINGS,
    USAGE,
    BILLING,
    INVOICES,
    LIMITS,
    AUDIT,
    SLA,
)

TENANTS = Section("tenants", "/operator/tenants", "Tenants", "Operator")
ENGINES = Section("engines", "/operator/engines", "Engines", "Operator")
PLANS = Section("plans", "/operator/plans", "Plans", "Money")
PRICES = Section("prices", "/operator/prices", "Prices", "Money")
MARGIN = Section("margin", "/operator/margin", "Margin", "Money")
BOOKS = Section("books", "/operator/reconciliation", "Reconciliation", "Money")
CAPACITY = Section("capacity", "/operator/capacity", "Capacity", "Operator")
JOBS = Section("jobs", "/operator/jobs", "Jobs", "Operator")
INCIDENTS = Section("incidents", "/operator/incidents", "Incidents", "Operator")
EVERY_AUDIT = Section("audit", "/operator/audit", "Audit log", "Records")

OPERATOR_SECTIONS = (TENANTS, ENGINES, CAPACITY, JOBS, INCIDENTS, PLANS, PRICES, MARGIN, BOOKS, EVERY_AUDIT)
"""Sections of operators; each is served by `Console.operator_view`."""


def sections_for(may: Callable[[Right], bool]) -> list[tuple[str, list[Section]]]:
    """Returns (group, its sections) for a user with the rights that `may` grants."""
    return grouped(section for section in SECTIONS if section.right is None or may(section.right))


def grouped(sections: Iterable[Section]) -> list[tuple[str, list[Section]]]:
    """(group, its sections)."""
    return [(group, [*own]) for group, own in groupby(sections, key=lambda section: section.group)]
