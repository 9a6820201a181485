"""Decides which traces are recorded, as OTEL_TRACES_SAMPLER says, before anything else is made for a request.

The decision is that of OpenTelemetry's samplers: it depends on the low 64 bits of the trace id, so that all
services with the same share record the same traces. Most requests are not recorded and pay for one random
number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import getrandbits
from typing import NamedTuple

import structlog

DEFAULT = "parentbased_always_on"
_EVERY = 1 << 64
_LOW = _EVERY - 1
_SHARES = {"always_on": 1.0, "always_off": 0.0, "traceidratio": None}
"""By sampler; None: OTEL_TRACES_SAMPLER_ARG names it."""
_PARENT_BASED = "parentbased_"
_TRACEPARENT = re.compile(
    r"[ \t]*([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:(-.*)|[ \t]*)", re.ASCII
)
log = structlog.get_logger(__name__)


class Origin(NamedTuple):
    """Where a recorded span belongs."""

    trace_id: int
    parent_id: int
    """Of the span in another process; 0: the span begins the trace."""


class HeadSampling(NamedTuple):
    """Which traces are recorded."""

    bound: int
    """Traces whose id has low 64 bits below it are recorded."""
    follows_parent: bool
    """Whether a caller decides for the requests that it sends with a valid `traceparent`."""

    def origin(self, traceparent: str = "") -> Origin | None:
        """Returns where the span of a request belongs: in the trace that its header names, or in a new one
        where there is none or it is invalid. Returns None when the trace is not recorded.
        """
        if traceparent:
            parent = _parse(traceparent)
            if parent is not None:
                trace_id, parent_id, is_recorded = parent
                if not self.follows_parent:
                    is_recorded = trace_id & _LOW < self.bound
                return Origin(trace_id, parent_id) if is_recorded else None
        low = getrandbits(64)
        if low >= self.bound:
            return None
        # The high half decides nothing; an id of 0 is invalid.
        return Origin((getrandbits(64) << 64 | low) or 1, 0)


EVERY_TRACE = HeadSampling(_EVERY, follows_parent=True)
NO_TRACE = HeadSampling(0, follows_parent=False)


def sampling_of(environment: Mapping[str, str]) -> HeadSampling:
    """Returns the sampling that OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG name. As the specification
    wants it, what is unknown is a warning, and everything is recorded.
    """
    given = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower() or DEFAULT
    root = given.removeprefix(_PARENT_BASED)
    if root not in _SHARES:
        log.warning("OTEL_TRACES_SAMPLER is not known: every trace is recorded", sampler=given)
        return EVERY_TRACE
    share = _SHARES[root]
    if share is None:
        share = _share(environment.get("OTEL_TRACES_SAMPLER_ARG", ""))
    return HeadSampling(round(share * _EVERY), given.startswith(_PARENT_BASED))


def _share(written: str) -> float:
    try:
        share = float(written)
    except ValueError:
        share = -1.0
    if 0.0 <= share <= 1.0:
        return share
    log.warning("OTEL_TRACES_SAMPLER_ARG is not a share from 0 to 1: every trace is recorded", value=written)
    return 1.0


def _parse(traceparent: str) -> tuple[int, int, bool] | None:
    """Returns (trace id, span id, whether it is recorded) of a header of W3C Trace Context; None where it is
    invalid.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and more) or not trace_id or not span_id:
        return None
    return trace_id, span_id, bool(int(flags, 16) & 1)
