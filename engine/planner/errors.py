"""Defines why there is no plan. Messages are one line: the problem and its remedy."""

from __future__ import annotations


class NoPlan(Exception):
    """No number of replicas meets the targets."""


class InvalidPlan(NoPlan):
    """The sizes contradict each other, or the model does not fit."""
