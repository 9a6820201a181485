"""Formats the `x-ratelimit-*` headers, as OpenAI's clients read them."""

from __future__ import annotations

import math

from tenants.limits.kinds import RateView

QUOTA_HEADER = "x-rootstock-quota"
"""Response header. `local`: this process's share of the limits was applied, because Redis is unreachable."""


def rate_headers(requests: RateView | None, tokens: RateView | None, local: bool) -> dict[str, str]:
    """Returns headers for the tightest limits of requests and of tokens; none without a limit."""
    headers: dict[str, str] = {}
    for name, view in (("requests", requests), ("tokens", tokens)):
        if view is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(view.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(view.remaining)
            headers[f"x-ratelimit-reset-{name}"] = go_duration(view.reset_seconds)
    if local:
        headers[QUOTA_HEADER] = "local"
    return headers


def go_duration(seconds: float) -> str:
    """Formats a duration as Go does, rounded up to milliseconds: "0s", "12ms", "1.5s", "6m0s",
    "1h0m0.25s".
    """
    milliseconds = max(0, math.ceil(seconds * 1000))
    if milliseconds == 0:
        return "0s"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    text = f"{milliseconds // 1000}.{milliseconds % 1000:03d}".rstrip("0").rstrip(".") + "s"
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60}m{text}"
    return f"{minutes}m{text}" if minutes else text
