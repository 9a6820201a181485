"""What quotas must do, in plain Python: a rate is a list of what happened, added up anew at each question.

Fractions, no shortcuts, nothing shared with the scripts. Milliseconds, integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Literal

Kind = Literal["rate", "held", "day", "month", "ever", "contract"]
NEVER = 9 * 10**15
STANDSTILL = 60_000


@dataclass(frozen=True)
class Cost:
    requests: int = 1
    input: int = 0
    output: int = 0
    spend: int = 0

    def of(self, measure: str) -> int:
        return self.input + self.output if measure == "tokens" else int(getattr(self, measure))


@dataclass(frozen=True)
class Rule:
    name: str
    kind: Kind
    measure: str
    amount: int


@dataclass
class Rate:
    """A leaky bucket as a history: (when, by how much)."""

    per_minute: int
    history: list[tuple[int, Fraction]] = field(default_factory=list)
    time: int | None = None

    def clock(self, now: int) -> tuple[int, int]:
        """The bucket's own time, and how far its history moves: the clock does not run backwards in it, but
        where that was set back by more than a minute the past is moved with it.
        """
        if self.time is None or now >= self.time:
            return now, 0
        return (self.time, 0) if self.time - now <= STANDSTILL else (now, self.time - now)

    def level(self, now: int) -> Fraction:
        at, moved = self.clock(now)
        if moved:
            self.add(now, Fraction(0))
        level, last = Fraction(0), 0
        for when, amount in [*self.history, (at, Fraction(0))]:
            level = max(Fraction(0), level - Fraction(when - last, 60_000) * self.per_minute)
            level = max(Fraction(0), level + amount)
            last = when
        return level

    def add(self, now: int, amount: Fraction) -> None:
        self.time, moved = self.clock(now)
        self.history = [(when - moved, earlier) for when, earlier in self.history]
        self.history.append((self.time, amount))


@dataclass
class Window:
    start: int
    used: int
    held: int = 0


@dataclass
class Held:
    """A reservation."""

    worst: Cost
    likely: Cost
    at: int
    windows: dict[str, int]
    """Starts of the windows it counts to."""
    within: bool
    state: Literal["open", "expired", "settled"] = "open"


def window_of(kind: Kind, now: int) -> tuple[int, int]:
    if kind == "ever":
        return 0, NEVER
    day = datetime.fromtimestamp(now // 1000, UTC).replace(hour=0, minute=0, second=0)
    if kind == "day":
        start, end = day, day + timedelta(days=1)
    else:
        start = day.replace(day=1)
        end = (start + timedelta(days=32)).replace(day=1)
    return int(start.timestamp()) * 1000, int(end.timestamp()) * 1000


class Model:
    """One tenant. `taken` and `refusal` say what `reserve` must answer; counts are read by their names."""

    def __init__(self, rules: list[Rule], seeds: dict[str, int]) -> None:
        self.rules = rules
        self.seeds = seeds
        self.rates = {rule.name: Rate(rule.amount) for rule in rules if rule.kind in ("rate", "contract")}
        self.places = {rule.name: 0 for rule in rules if rule.kind == "held"}
        self.windows: dict[str, Window] = {}
        self.reservations: dict[str, Held] = {}

    def reserve(self, now: int, name: str, worst: Cost, likely: Cost) -> str:
        """'taken', 'limited', 'exhausted' or 'too large'."""
        verdicts = [self._fits(now, rule, worst, likely) for rule in self.rules if rule.kind != "contract"]
        verdict = max(["taken", *verdicts], key=["taken", "limited", "exhausted", "too large"].index)
        if verdict == "taken":
            self._take(now, name, worst, likely)
        return verdict

    def _fits(self, now: int, rule: Rule, worst: Cost, likely: Cost) -> str:
        if rule.kind == "rate":
            need = likely.of(rule.measure)
            if need > rule.amount:
                return "too large"
            return "taken" if self.rates[rule.name].level(now) + need <= rule.amount else "limited"
        if rule.kind == "held":
            if rule.amount == 0:
                return "too large"
            return "taken" if self.places[rule.name] + 1 <= rule.amount else "limited"
        window, need = self._window(now, rule), worst.of(rule.measure)
        if need > rule.amount and rule.kind != "ever":
            return "too large"
        if window.used + need > rule.amount:
            return "exhausted"
        return "taken" if window.used + window.held + need <= rule.amount else "limited"

    def _window(self, now: int, rule: Rule) -> Window:
        """As it is now: a new one is begun by whoever takes of it, the first by whoever asks."""
        start, _ = window_of(rule.kind, now)
        window = self.windows.get(rule.name)
        if window is None:
            window = self.windows[rule.name] = Window(start, self.seeds.get(rule.name, 0))
        return Window(start, 0) if window.start < start else window

    def _take(self, now: int, name: str, worst: Cost, likely: Cost) -> None:
        within = True
        windows = {}
        for rule in self.rules:
            if rule.kind in ("rate", "contract"):
                rate, need = self.rates[rule.name], likely.of(rule.measure)
                fits = rate.level(now) + need <= rule.amount
                if rule.kind == "contract":
                    within = fits
                if fits:
                    rate.add(now, Fraction(need))
            elif rule.kind == "held":
                self.places[rule.name] += 1
            else:
                window = self.windows[rule.name] = self._window(now, rule)
                window.held += worst.of(rule.measure)
                windows[rule.name] = window.start
        self.reservations[name] = Held(worst, likely, now, windows, within)

    def settle(self, now: int, name: str, used: Cost) -> None:
        reservation = self.reservations[name]
        if reservation.state == "open":
            self._return(now, reservation, used)
        elif reservation.state == "expired":
            self._charge(now, reservation, used)
        reservation.state = "settled"

    def expire(self, now: int, name: str) -> None:
        self._return(now, self.reservations[name], Cost(0))
        self.reservations[name].state = "expired"

    def _return(self, now: int, reservation: Held, used: Cost) -> None:
        for rule in self.rules:
            if rule.kind == "held":
                self.places[rule.name] -= 1
            elif rule.kind == "rate" or (rule.kind == "contract" and reservation.within):
                rate = self.rates[rule.name]
                unused = Fraction(reservation.likely.of(rule.measure) - used.of(rule.measure))
                if unused > 0:
                    drained = Fraction(max(0, now - reservation.at), 60_000) * rule.amount
                    unused = max(Fraction(0), unused - drained)
                rate.add(now, -unused)
            elif rule.kind in ("day", "month", "ever"):
                window = self.windows[rule.name]
                if window.start == reservation.windows[rule.name]:
                    window.held -= reservation.worst.of(rule.measure)
                    window.used += used.of(rule.measure)

    def _charge(self, now: int, reservation: Held, used: Cost) -> None:
        for rule in self.rules:
            if rule.kind == "rate" or (rule.kind == "contract" and reservation.within):
                self.rates[rule.name].add(now, Fraction(used.of(rule.measure)))
            elif rule.kind in ("day", "month", "ever"):
                window = self.windows[rule.name]
                if window.start == reservation.windows[rule.name]:
                    window.used += used.of(rule.measure)
