"""Measures how long a peer has been silent, without the time in which it could not have been heard."""

from __future__ import annotations

LONGEST_GAP = 0.5
"""Seconds between two looks that count in full: they are much closer together in a process that runs."""


class Silence:
    """For how long nothing was heard of a peer, in seconds of this process's looking for it.

    A process that does not look for seconds was stopped, mostly with the whole machine: a virtual one that is
    moved to another host stands still for some. The peer's words may come just after the first look, so such
    a gap counts as a short one.
    """

    __slots__ = ("_looked_at", "_seconds")

    def __init__(self, now: float) -> None:
        """`now`: seconds of any clock that does not go backwards, as everywhere here."""
        self._looked_at = now
        self._seconds = 0.0

    def heard(self, now: float) -> None:
        """Notes that the peer has spoken."""
        self._looked_at = now
        self._seconds = 0.0

    def seconds(self, now: float) -> float:
        """Returns how long it has been silent. Call it several times in each `LONGEST_GAP`."""
        self._seconds += min(max(0.0, now - self._looked_at), LONGEST_GAP)
        self._looked_at = now
        return self._seconds
