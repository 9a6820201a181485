"""A drafter for tests: it knows what a request will draw, and is wrong now and then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from engine.request import Request
from engine.scheduling.drafter import NoDrafts


class GuessingDrafter(NoDrafts):
    """Guesses up to `most` tokens of each request, each of them right with a probability of `skill`."""

    def __init__(
        self,
        answer: Callable[[Request], list[int]],
        random: Random,
        *,
        vocab_size: int,
        skill: float = 0.7,
        most: int = 8,
    ) -> None:
        """`answer` returns all tokens that a request draws."""
        self._answer = answer
        self._random = random
        self._vocab_size = vocab_size
        self._skill = skill
        self._most = most
        self.num_drafts = self.num_accepted = 0

    def is_waiting(self, requests: Sequence[Request]) -> bool:
        return self._random.random() < 0.5

    def propose(self, requests: Sequence[Request], num_open: int) -> dict[Request, list[int]]:
        found = {}
        for request in requests:
            if request.total_len - request.computed_len != 1:
                continue
            num_drawn = len(request.token_ids) - len(request.group.submit.prompt_ids)
            following = self._answer(request)[num_drawn:]
            num = min(self._random.randint(0, self._most), num_open)
            following = [*following, *(0 for _ in range(num))][:num]  # beyond the end of the answer too
            drafts = [
                token_id if self._random.random() < self._skill else self._random.randrange(self._vocab_size)
                for token_id in following
            ]
            if drafts:
                found[request] = drafts
                num_open -= len(drafts)
        return found

    def note_verified(self, request: Request, num_drafts: int, num_accepted: int) -> None:
        assert 0 <= num_accepted <= num_drafts
        self.num_drafts += num_drafts
        self.num_accepted += num_accepted
