"""Drafts for running requests what followed the same tokens before, in texts of their tenant and adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.batch import MAX_DRAFTS
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


class SuffixDrafter:
    """Guesses from texts, within a budget that follows the load."""

    def __init__(self, clock: Callable[[], float], texts: Texts | None = None) -> None:
        """`clock` returns monotonic seconds."""
        self._texts = Texts() if texts is None else texts
        self._acceptance = Acceptance()
        self._budget = DraftBudget(clock)
        self._opened: dict[Request, OpenText] = {}
        self._match_lens: dict[Request, int] = {}
        """Of the drafts in flight."""
        self._skip = self._num_skipped = 0

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        """Returns whether drafts after the tokens known now would be worth it: probably then also after the
        next.
        """
        if not self._looks(requests):
            return False
        is_worth_it = bool(self._choose(requests, len(requests) * MAX_DRAFTS))
        self._note_look(is_worth_it)
        return is_worth_it

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        """Returns the drafts that are worth their time."""
        if not self._looks(requests):
            return {}
        chosen = self._choose(requests, num_open)
        self._note_look(bool(chosen))
        self._match_lens = {request: guess.match_len for request, guess in chosen.items()}
        return {request: guess.token_ids for request, guess in chosen.items()}

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too."""
        self._acceptance.add(_key(request), self._match_lens[request], num_drafts, num_accepted)

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts, and known tokens to compute."""
        self._budget.note_step(num_rows, num_drafts, num_known)

    def forget(self, request: Request) -> None:
        """Keeps the text of a request that has ended, and nothing else of it."""
        opened = self._opened.pop(request, None)
        self._match_lens.pop(request, None)
        if opened is not None:
            self._texts.extend(opened, LAST_TOKENS)
            self._texts.close(opened)
        if not self._opened:
            self._budget.note_pause()

    def _looks(self, requests: Sequence[Request]) -> bool:
        """Returns whether to look for drafts in this step."""
        if not requests or len(requests) > MAX_ROWS:
            return False
        self._learn(requests)
        self._num_skipped += 1
        return self._num_skipped > self._skip

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

    def _choose(self, requests: Sequence[Request], num_open: int) -> dict[Request, Guess]:
        """Returns for each request the part of its guess that the budget takes."""
        guesses: list[tuple[Request, Guess]] = []
        ranked: list[tuple[float, int]] = []
        for request in requests:
            if len(request.token_ids) <= len(request.group.submit.prompt_ids):
                continue  # it computes its prompt
            guess = self._opened[request].guess(MAX_DRAFTS)
            if guess is NOTHING:
                continue
            chances = self._acceptance.chances(_key(request), guess)
            ranked += [(chance, len(guesses)) for chance in chances]
            guesses.append((request, guess))
        ranked.sort(reverse=True)
        num_chosen = self._budget.choose(len(requests), [chance for chance, _ in ranked[:num_open]])
        widths = [0] * len(guesses)
        for _, number in ranked[:num_chosen]:
            widths[number] += 1
        return {
            request: Guess(guess.match_len, guess.token_ids[:width], guess.shares[:width])
            for (request, guess), width in zip(guesses, widths, strict=True)
            if width
        }


def _key(request: Request) -> Key:
    return request.tenant, None if request.adapter is None else request.adapter.digest
