"""Runs the service's own router and placement, `routing.router`, as a policy of a simulation."""

from __future__ import annotations

from benchmarks.simulation.replica import FluidReplica
from benchmarks.simulation.traffic import SimulatedRequest
from routing.prefixes import MAX_PIECES, PIECE_TOKENS
from routing.router import Choice, Router, RoutingQuery
from routing.views import ReplicaReport


class ServiceRouter:
    """One API process's router, with the reports that its engines would send."""

    def __init__(self, seed: int, mean_output: float) -> None:
        self._router = Router(seed)
        self._mean_output = mean_output
        self.reasons: dict[str, int] = {}
        """Choices by reason."""

    def join(self, replica: FluidReplica, now: float) -> None:
        self._router.join(replica.name, now)

    def leave(self, replica: FluidReplica) -> None:
        self._router.leave(replica.name)

    def report(self, replica: FluidReplica, now: float) -> None:
        report = ReplicaReport(
            rows_total=replica.rows_total,
            rows_taken=replica.rows_taken,
            predicted_wait={"default": replica.predicted_wait(self._mean_output, now)},
            prompt_rate=replica.prompt_rate,
            load_seconds=replica.load_seconds,
            resident=replica.resident,
        )
        self._router.report(replica.name, report, now)

    def choose(self, request: SimulatedRequest, now: float) -> tuple[str, object]:
        choice = self._router.choose(
            RoutingQuery(
                tenant=str(request.tenant),
                adapter=str(request.adapter),
                prefixes=prefix_keys_of(request),
                num_tokens=request.prompt_len,
            ),
            now,
        )
        self.reasons[choice.reason] = self.reasons.get(choice.reason, 0) + 1
        return choice.replica, choice

    def first_token(self, token: object, seconds: float, now: float) -> None:
        assert isinstance(token, Choice)
        self._router.first_token(token, seconds, now)

    def ended(self, token: object, now: float) -> None:
        assert isinstance(token, Choice)
        self._router.ended(token, now)


def prefix_keys_of(request: SimulatedRequest) -> tuple[int, ...]:
    """Returns keys as `routing.prefixes.prefix_keys` makes them of tokens: equal as far as prompts are."""
    pieces = min(request.prompt_len // PIECE_TOKENS, MAX_PIECES)
    return tuple(request.conversation * MAX_PIECES + piece for piece in range(pieces))
