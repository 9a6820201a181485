"""Drafts for running requests what their grammar forces, and what followed the same tokens before, in texts
of their tenant and adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine.batch import MAX_DRAFTS
from engine.grammar.constraint import Constraint
from engine.request import Request
from engine.speculation.acceptance import Acceptance, Key
from engine.speculation.budget import DraftBudget
from engine.speculation.suffixes import NOTHING, Guess
from engine.speculation.texts import OpenText, Texts

MAX_ROWS = 32
"""Running requests above which nothing is drafted, and nothing learned: guesses take the host's time."""
TOKENS_PER_STEP = 256
"""Indexed in one step; prompts are long, and a step must not wait for all of one."""
LAST_TOKENS = 2 * MAX_DRAFTS
"""Indexed when a request ends: those it drew since the last step."""
LONGEST_SKIP = 32
"""Steps between two looks for drafts, where none were worth their time."""


class _Source(NamedTuple):
    """Where a request's drafts come from."""

    match_len: int
    """Of the guess from texts; 0 without one."""
    num_forced: int
    """The first so many are forced by the grammar."""


class _Candidate(NamedTuple):
    """Tokens that may be drafted for a request, with the chance of each that it and all before are drawn."""

    request: Request
    source: _Source
    token_ids: list[int]
    chances: list[float]


class SuffixDrafter:
    """Guesses from grammars and texts, within a budget that follows the load."""

    def __init__(self, clock: Callable[[], float], texts: Texts | None = None) -> None:
        """`clock` returns monotonic seconds."""
        self._texts = Texts() if texts is None else texts
        self._acceptance = Acceptance()
        self._budget = DraftBudget(clock)
        self._opened: dict[Request, OpenText] = {}
        self._sources: dict[Request, _Source] = {}
        """Of the drafts in flight."""
        self._skip = self._num_skipped = 0

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns whether drafts after the tokens known now would be worth it: probably then also after the
        next.
        """
        return bool(self._choose(requests, len(requests) * MAX_DRAFTS, is_drawing=True))

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns the drafts that are worth their time."""
        chosen = self._choose(requests, num_open, is_drawing=False)
        self._sources = {request: candidate.source for request, (candidate, _) in chosen.items()}
        return {request: candidate.token_ids[:width] for request, (candidate, width) in chosen.items()}

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too."""
        match_len, num_forced = self._sources[request]
        if num_drafts > num_forced and num_accepted >= num_forced:
            self._acceptance.add(_key(request), match_len, num_drafts - num_forced, num_accepted - num_forced)

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts, and known tokens to compute."""
        self._budget.note_step(num_rows, num_drafts, num_known)

    def forget(self, request: Request) -> None:
        """Keeps the text of a request that has ended, and nothing else of it."""
        opened = self._opened.pop(request, None)
        self._sources.pop(request, None)
        if opened is not None:
            self._texts.extend(opened, LAST_TOKENS)
            self._texts.close(opened)
        if not self._opened:
            self._budget.note_pause()

    def _choose(
        self, requests: Sequence[Request], num_open: int, is_drawing: bool
    ) -> dict[Request, tuple[_Candidate, int]]:
        """Returns for each request what may be drafted, and how much of it the budget takes.

        `is_drawing`: each request's next token is being drawn.
        """
        if not requests or len(requests) > MAX_ROWS:
            return {}
        self._learn(requests)
        self._num_skipped += 1
        looks = self._num_skipped > self._skip
        candidates = self._candidates(requests, looks, is_drawing)
        chosen: dict[Request, tuple[_Candidate, int]] = {}
        if candidates:
            ranked = [(chance, number) for number, one in enumerate(candidates) for chance in one.chances]
            ranked.sort(reverse=True)
            num_chosen = self._budget.choose(len(requests), [chance for chance, _ in ranked[:num_open]])
            widths = [0] * len(candidates)
            for _, number in ranked[:num_chosen]:
                widths[number] += 1
            chosen = {
                one.request: (one, width) for one, width in zip(candidates, widths, strict=True) if width
            }
        if looks:
            self._note_look(any(width > one.source.num_forced for one, width in chosen.values()))
        return chosen

    def _candidates(self, requests: Sequence[Request], looks: bool, is_drawing: bool) -> list[_Candidate]:
        found = []
        for request in requests:
            grammar = _grammar(request)
            if not looks and grammar is None:
                continue
            if len(request.token_ids) <= len(request.group.submit.prompt_ids):
                continue  # it computes its prompt
            guess = self._opened[request].guess(MAX_DRAFTS) if looks else NOTHING
            forced: list[int] = []
            if grammar is not None and is_drawing:
                grammar.foresees = True
                forced = grammar.foreseen_ids[1:]  # its mask is being filled; the first is being drawn
            elif grammar is not None:
                forced = grammar.forced_ids()
            if forced or guess is not NOTHING:
                found.append(self._candidate(request, forced[:MAX_DRAFTS], guess))
        return found

    def _candidate(self, request: Request, forced: list[int], guess: Guess) -> _Candidate:
        """Joins what is forced with a guess, as far as that agrees."""
        num_forced = len(forced)
        certain = [1.0] * num_forced
        if guess.token_ids[:num_forced] != forced:
            return _Candidate(request, _Source(0, num_forced), forced, certain)
        chances = self._acceptance.chances(_key(request), guess)
        before = chances[num_forced - 1] if num_forced else 1.0
        certain += [chance / before for chance in chances[num_forced:]]
        return _Candidate(request, _Source(guess.match_len, num_forced), guess.token_ids, certain)

    def _note_look(self, found: bool) -> None:
        self._num_skipped = 0
        self._skip = 0 if found else min(LONGEST_SKIP, 2 * self._skip + 1)

    def _learn(self, requests: Sequence[Request]) -> None:
        left = TOKENS_PER_STEP
        for request in requests:
            opened = self._opened.get(request)
            if opened is None:
                opened = self._opened[request] = self._texts.open(*_key(request), request.token_ids)
            if opened.text.num_indexed < len(request.token_ids) and left > 0:
                left -= self._texts.extend(opened, left)


def _key(request: Request) -> Key:
    return request.tenant, None if request.adapter is None else request.adapter.digest


def _grammar(request: Request) -> Constraint | None:
    """Returns the grammar that decides about a request's next token, if any does."""
    return None if request.constraint is None else request.constraint.followed
