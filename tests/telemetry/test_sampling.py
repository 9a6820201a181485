"""Whether a trace is recorded is decided as OpenTelemetry's own samplers decide it, from the header alone."""

from __future__ import annotations

import random

import pytest
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from telemetry.sampling import EVERY_TRACE, NO_TRACE, HeadSampling, sampling_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = [
    f"00-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-00",
    f"00-{TRACE}-{SPAN}-03",
    f"01-{TRACE}-{SPAN}-01-more",
    f"00-{TRACE}-{SPAN}-01-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f" 00-{TRACE}-{SPAN}-01\t",
    "garbage",
    "00-٠٠-1-01",
]


@pytest.mark.parametrize("header", HEADERS)
def test_headers_are_read_as_the_standard_says(header: str) -> None:
    """The propagator of the SDK is the oracle."""
    theirs = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": header}))
    parent = theirs.get_span_context()
    ours = HeadSampling(1 << 64, follows_parent=False).origin(header)
    assert ours is not None
    if parent.is_valid:
        assert ours == (parent.trace_id, parent.span_id)
        assert (EVERY_TRACE.origin(header) is not None) is bool(parent.trace_flags.sampled)
    else:
        assert ours.parent_id == 0
        assert ours.trace_id != int(TRACE, 16)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_a_share_is_that_of_all_other_services(share: float) -> None:
    """Traces of callers are recorded where another service with this share records them."""
    theirs: Sampler = TraceIdRatioBased(share)
    ours = sampling_of({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": str(share)})
    rng = random.Random(7)
    for _ in range(500):
        trace_id = rng.getrandbits(128) or 1
        header = f"00-{trace_id:032x}-{SPAN}-00"
        expected = theirs.should_sample(None, trace_id, "x").decision.is_sampled()
        assert (ours.origin(header) is not None) is expected


def test_new_traces_are_drawn_by_the_share_and_recorded_downstream() -> None:
    random.seed(11)
    sampling = sampling_of(
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ".1"}
    )
    drawn = [origin for _ in range(20_000) if (origin := sampling.origin()) is not None]
    assert 1_800 < len(drawn) < 2_200
    assert len({origin.trace_id for origin in drawn}) == len(drawn)
    downstream = ParentBased(TraceIdRatioBased(0.1))
    assert all(downstream.should_sample(None, one.trace_id, "x").decision.is_sampled() for one in drawn)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_TRACES_SAMPLER": "odd"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"},
        {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "nan"},
        {},
    ],
)
def test_what_is_not_known_records_everything(environment: dict[str, str]) -> None:
    assert sampling_of(environment) == EVERY_TRACE


def test_nothing_is_recorded_where_all_is_off() -> None:
    assert sampling_of({"OTEL_TRACES_SAMPLER": " Always_Off "}) == NO_TRACE
    assert NO_TRACE.origin() is None
    assert NO_TRACE.origin(HEADERS[0]) is None
