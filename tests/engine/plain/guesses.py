"""A drafter for tests: it knows what a request will draw, and is wrong now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from engine.request import Request
from engine.scheduling.drafter import DraftKind, NoDrafts, Proposal, ReadyAdapter


class GuessingDrafter(NoDrafts):
    """Guesses up to `most` tokens of each request, each of them right with a probability of `skill`.

    Where a draft adapter can guess, up to `ahead` placeholders follow, and what it guessed is drafted half of
    the time.
    """

    def __init__(
        self,
        answer: Callable[[Request], list[int]],
        random: Random,
        *,
        vocab_size: int,
        skill: float = 0.7,
        most: int = 8,
        ahead: int = 0,
    ) -> None:
        """`answer` returns all tokens that a request draws."""
        self._answer = answer
        self._random = random
        self._vocab_size = vocab_size
        self._skill = skill
        self._most = most
        self._ahead = ahead
        self._guessed: dict[Request, tuple[int, list[int]]] = {}
        self.num_drafts = self.num_accepted = self.num_guesses = 0
        self.num_guesses_drafted = self.num_guesses_accepted = 0
        self._of_adapter: set[Request] = set()

    def is_waiting(self, requests: Sequence[Request], ready: ReadyAdapter) -> bool:
        return self._random.random() < 0.5

    def propose(
        self, requests: Sequence[Request], num_open: int, ready: ReadyAdapter
    ) -> dict[Request, Proposal]:
        found = {}
        for request in requests:
            if request.total_len - request.computed_len != 1:
                continue
            drafts, kind, guessed_by = self._drafts(request, num_open), DraftKind.TEXT, ""
            adapter = ready(request) if self._ahead else None
            position, guesses = self._guessed.pop(request, (0, []))
            self._of_adapter.discard(request)
            if position == len(request.token_ids) and self._random.random() < 0.5:
                drafts, kind, guessed_by = guesses[:num_open], DraftKind.ADAPTER, "guessed"
                self._of_adapter.add(request)
            num_open -= len(drafts)
            ahead = 0
            if adapter is not None:
                ahead = min(self._random.randint(0, self._ahead), adapter.num_ahead, num_open)
            if drafts or ahead:
                found[request] = Proposal(drafts, ahead, 0, kind, guessed_by)
                num_open -= ahead
        return found

    def _drafts(self, request: Request, num_open: int) -> list[int]:
        num_drawn = len(request.token_ids) - len(request.group.submit.prompt_ids)
        following = self._answer(request)[num_drawn:]
        num = min(self._random.randint(0, self._most), num_open)
        following = [*following, *(0 for _ in range(num))][:num]  # beyond the end of the answer too
        return [
            token_id if self._random.random() < self._skill else self._random.randrange(self._vocab_size)
            for token_id in following
        ]

    def note_verified(
        self, request: Request, num_drafts: int, num_accepted: int, guesses: Sequence[int]
    ) -> None:
        assert 0 <= num_accepted <= num_drafts
        self.num_drafts += num_drafts
        self.num_accepted += num_accepted
        self.num_guesses += len(guesses)
        if request in self._of_adapter:
            self.num_guesses_drafted += num_drafts
            self.num_guesses_accepted += num_accepted
        if guesses and num_accepted == num_drafts:
            self._guessed[request] = len(request.token_ids) + num_drafts + 1, list(guesses)
