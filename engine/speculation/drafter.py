"""Drafts for running requests what their grammar forces, and what followed the same tokens before, in texts
of their tenant and adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.batch import MAX_DRAFTS
from engine.grammar.constraint import RowConstraint
from engine.request import Request
from engine.speculation.acceptance import Acceptance, Key
from engine.speculation.budget import DraftBudget
from engine.speculation.loss_limit import INCOME, LossLimit
from engine.speculation.suffixes import NOTHING, Guess
from engine.speculation.texts import OpenText, Texts

MAX_ROWS = 32
"""Running requests above which nothing is drafted, and nothing learned: guesses take the host's time."""
TOKENS_PER_STEP = 256
"""Indexed in one step; prompts are long, and a step must not wait for all of one."""
TOKENS_AT_ONCE = 16
"""Indexed together where nothing is looked for: a call costs as much as several tokens."""
LAST_TOKENS = 2 * TOKENS_AT_ONCE
"""Indexed when a request ends: those it drew since the last step."""
LONGEST_SKIP = 32
"""Steps between two looks for drafts, where none were worth their time."""


@dataclass(slots=True)
class _Follow:
    """A running request, as far as drafts are concerned."""

    key: Key
    opened: OpenText
    prompt_len: int
    num_earned: int
    """Of its tokens, those that came from the prompt, or have earned their share of drafts."""
    skip: int = 0
    """Steps between two looks into texts."""
    num_skipped: int = 0
    match_len: int = 0
    """Of its drafts in flight, like `num_forced`: of the guess from texts."""
    num_forced: int = 0
    """The first so many are forced by the grammar."""

    def note_look(self, found: bool) -> None:
        """Makes looks rare that find nothing worth its time."""
        self.num_skipped = 0
        self.skip = 0 if found else min(LONGEST_SKIP, 2 * self.skip + 1)


class _Candidate(NamedTuple):
    """Tokens that may be drafted for a request, with the chance of each that it and all before are drawn."""

    request: Request
    match_len: int
    num_forced: int
    token_ids: list[int]
    chances: list[float]


class SuffixDrafter:
    """Guesses from grammars and texts, within a budget that follows the load."""

    def __init__(self, clock: Callable[[], float], texts: Texts | None = None) -> None:
        """`clock` returns monotonic seconds."""
        self._texts = Texts() if texts is None else texts
        self._acceptance = Acceptance()
        self._losses = LossLimit()
        self._budget = DraftBudget(clock)
        self._price = 0.0
        """Of each draft in flight."""
        self._followed: dict[Request, _Follow] = {}

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns whether drafts after the tokens known now would be worth it: probably then also after the
        next.
        """
        return bool(self._choose(requests, len(requests) * MAX_DRAFTS, is_drawing=True))

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns the drafts that are worth their time."""
        chosen = self._choose(requests, num_open, is_drawing=False)
        self._price = self._budget.price(len(requests), sum(width for _, width in chosen))
        found = {}
        for one, width in chosen:
            follow = self._followed[one.request]
            follow.match_len, follow.num_forced = one.match_len, one.num_forced
            found[one.request] = one.token_ids[:width]
        return found

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too."""
        follow = self._followed[request]
        num_guessed = num_drafts - follow.num_forced
        if num_guessed <= 0:
            return
        num_right = max(0, num_accepted - follow.num_forced)
        self._losses.add(follow.key, num_right - num_guessed * self._price)
        self._acceptance.add(follow.key, follow.match_len, num_guessed, num_right)

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts, and known tokens to compute."""
        self._budget.note_step(num_rows, num_drafts, num_known)

    def forget(self, request: Request) -> None:
        """Keeps the text of a request that has ended, and nothing else of it."""
        follow = self._followed.pop(request, None)
        if follow is not None:
            self._texts.extend(follow.opened, LAST_TOKENS)
            self._texts.close(follow.opened)
        if not self._followed:
            self._budget.note_pause()

    def _choose(
        self, requests: Sequence[Request], num_open: int, is_drawing: bool
    ) -> list[tuple[_Candidate, int]]:
        """Returns what may be drafted for some requests, each with how much of it the budget takes.

        `is_drawing`: each request's next token is being drawn.
        """
        if not requests or len(requests) > MAX_ROWS:
            return []
        candidates = self._candidates(requests, is_drawing)
        if not candidates:
            return []
        price = self._budget.price(len(requests), min(num_open, sum(len(one.chances) for one in candidates)))
        ranked = [
            (chance, number)
            for number, one in enumerate(candidates)
            for chance in one.chances[: self._affordable(one, price)]
        ]
        ranked.sort(reverse=True)
        num_chosen = self._budget.choose(len(requests), [chance for chance, _ in ranked[:num_open]])
        widths = [0] * len(candidates)
        for _, number in ranked[:num_chosen]:
            widths[number] += 1
        for one, width in zip(candidates, widths, strict=True):
            follow = self._followed[one.request]
            if follow.num_skipped > follow.skip:
                follow.note_look(width > one.num_forced)
        return [(one, width) for one, width in zip(candidates, widths, strict=True) if width]

    def _affordable(self, candidate: _Candidate, price: float) -> int:
        """Returns how many of its tokens may be drafted; forced ones cost nothing, as none is refused."""
        most = len(candidate.token_ids)
        if not price:
            return most
        follow = self._followed[candidate.request]
        num_drawn = len(candidate.request.token_ids) - follow.num_earned
        if num_drawn:
            self._losses.add(follow.key, num_drawn * INCOME)
            follow.num_earned += num_drawn
        return min(most, candidate.num_forced + max(0, int(self._losses.balance(follow.key) / price)))

    def _candidates(self, requests: Sequence[Request], is_drawing: bool) -> list[_Candidate]:
        """Learns from the requests' texts, and looks for what may follow."""
        found = []
        left = TOKENS_PER_STEP
        for request in requests:
            follow = self._followed.get(request) or self._follow(request)
            follow.num_skipped += 1
            looks = follow.num_skipped > follow.skip
            num_new = len(request.token_ids) - follow.opened.text.num_indexed
            if left > 0 and (num_new >= TOKENS_AT_ONCE or (looks and num_new)):
                left -= self._texts.extend(follow.opened, left)
            if not looks and request.constraint is None:
                continue
            if len(request.token_ids) <= follow.prompt_len:
                continue  # it computes its prompt
            guess = follow.opened.guess(MAX_DRAFTS) if looks else NOTHING
            forced = [] if request.constraint is None else _forced(request.constraint, is_drawing)
            if forced or guess is not NOTHING:
                found.append(self._candidate(request, forced[:MAX_DRAFTS], guess))
            elif looks:
                follow.note_look(found=False)
        return found

    def _follow(self, request: Request) -> _Follow:
        key = request.tenant, None if request.adapter is None else request.adapter.digest
        prompt_len = len(request.group.submit.prompt_ids)
        opened = self._texts.open(*key, request.token_ids)
        follow = self._followed[request] = _Follow(key, opened, prompt_len, prompt_len)
        return follow

    def _candidate(self, request: Request, forced: list[int], guess: Guess) -> _Candidate:
        """Joins what is forced with a guess, as far as that agrees."""
        num_forced = len(forced)
        certain = [1.0] * num_forced
        if guess.token_ids[:num_forced] != forced:
            return _Candidate(request, 0, num_forced, forced, certain)
        chances = self._acceptance.chances(self._followed[request].key, guess)
        before = chances[num_forced - 1] if num_forced else 1.0
        certain += [chance / before for chance in chances[num_forced:]]
        return _Candidate(request, guess.match_len, num_forced, guess.token_ids, certain)


def _forced(constraint: RowConstraint, is_drawing: bool) -> list[int]:
    """Returns the tokens that a request's grammar forces after its next one, or as the next ones, where none
    is being drawn.
    """
    grammar = constraint.followed
    if grammar is None:
        return []
    if is_drawing:
        grammar.foresees = True
        return grammar.foreseen_ids[1:]  # its mask is being filled; the first is being drawn
    return grammar.forced_ids()
