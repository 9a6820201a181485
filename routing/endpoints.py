"""Reads lists of engines' endpoints from settings."""

from __future__ import annotations


def parse_endpoints(listed: str) -> tuple[str, ...]:
    """Returns the endpoints in a list separated by commas. Raises ValueError when one is named twice."""
    endpoints = tuple(one.strip() for one in listed.split(",") if one.strip())
    twice = next((one for number, one in enumerate(endpoints) if one in endpoints[:number]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is named twice: name each engine once")
    return endpoints
