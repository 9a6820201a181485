"""Drafts for running requests what their grammar forces, what followed the same tokens before in texts of
their tenant and adapter, and what draft adapters guessed.

Forced tokens come first. Of texts and guesses that agree with them, the likelier are taken. Placeholders for
new guesses are behind guesses and forced tokens, not behind a text that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.batch import MAX_DRAFTS
from engine.grammar.constraint import RowConstraint
from engine.lora.draft_adapters import DraftAdapter
from engine.request import Request
from engine.scheduling.drafter import DraftKind, Proposal, ReadyAdapter
from engine.speculation.acceptance import Acceptance, Key
from engine.speculation.budget import DraftBudget
from engine.speculation.guesses import GuessAcceptance, Guessed, GuessKey
from engine.speculation.loss_limit import INCOME, OF_GUESSES, LossLimit
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


class _Candidate(NamedTuple):
    """Tokens that may be drafted for a request, with the chance of each that it and all before are drawn."""

    request: Request
    num_forced: int
    token_ids: list[int]
    chances: list[float]
    kind: DraftKind = DraftKind.TEXT
    """Of those that are not forced."""
    match_len: int = 0
    """Of a guess from texts."""
    first: int = 0
    """Of a draft adapter's guesses: the number of the first that is not forced."""


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
    drafted: _Candidate | None = None
    """Its drafts in flight are the first of these."""
    guess_key: GuessKey | None = None
    """Of the draft adapter that guesses for it, if one does."""
    guessed: Guessed | None = None
    """What that guessed last."""

    def note_look(self, found: bool) -> None:
        """Makes looks rare that find nothing worth its time."""
        self.num_skipped = 0
        self.skip = 0 if found else min(LONGEST_SKIP, 2 * self.skip + 1)


class _Chosen(NamedTuple):
    """How much of a candidate the budget takes, and how many placeholders come behind."""

    request: Request
    candidate: _Candidate | None
    width: int
    num_placeholders: int


class MixedDrafter:
    """Drafts from grammars, texts and draft adapters, within a budget that follows the load."""

    def __init__(self, clock: Callable[[], float], texts: Texts | None = None) -> None:
        """`clock` returns monotonic seconds."""
        self._texts = Texts() if texts is None else texts
        self._acceptance = Acceptance()
        self._guess_acceptance = GuessAcceptance()
        self._losses = LossLimit[Key]()
        self._guess_losses = LossLimit[GuessKey](OF_GUESSES, OF_GUESSES)
        self._budget = DraftBudget(clock)
        self._price = 0.0
        """Of each draft and placeholder in flight."""
        self._followed: dict[Request, _Follow] = {}

    def is_waiting(self, requests: Sequence[Request], ready: ReadyAdapter) -> bool:
        """Returns whether drafts after the tokens known now, or placeholders, would be worth it: probably
        then also after the next.
        """
        return bool(self._choose(requests, len(requests) * MAX_DRAFTS, ready, is_drawing=True))

    def learn(self, requests: Sequence[Request]) -> None:
        """Indexes the texts of running requests, of those that are looked into next as far as they go."""
        if len(requests) > MAX_ROWS:
            return
        left = TOKENS_PER_STEP
        for request in requests:
            follow = self._followed.get(request) or self._follow(request)
            num_new = len(request.token_ids) - follow.opened.text.num_indexed
            looks_next = follow.num_skipped >= follow.skip
            if left > 0 and (num_new >= TOKENS_AT_ONCE or (looks_next and num_new)):
                left -= self._texts.extend(follow.opened, left)

    def propose(
        self, requests: Sequence[Request], num_open: int, ready: ReadyAdapter
    ) -> dict[Request, Proposal]:
        """Returns the drafts and placeholders that are worth their time."""
        chosen = self._choose(requests, num_open, ready, is_drawing=False)
        num_more = sum(one.width + one.num_placeholders for one in chosen)
        self._price = self._budget.price(len(requests), num_more)
        return {one.request: self._proposal(one) for one in chosen}

    def note_verified(
        self, request: Request, num_drafts: int, num_accepted: int, guesses: Sequence[int]
    ) -> None:
        """Counts a request's drafts of one step, and those of them that were drawn too, before the request
        has these. Keeps what was guessed to follow.
        """
        follow = self._followed[request]
        drafted, follow.drafted = follow.drafted, None
        if drafted is not None and num_drafts > drafted.num_forced:
            num_guessed = num_drafts - drafted.num_forced
            num_right = max(0, num_accepted - drafted.num_forced)
            gained = num_right - num_guessed * self._price
            if drafted.kind is DraftKind.TEXT:
                self._losses.add(follow.key, gained)
                self._acceptance.add(follow.key, drafted.match_len, num_guessed, num_right)
            elif follow.guessed is not None and num_accepted >= drafted.num_forced:
                self._guess_losses.add(follow.guessed.key, gained)
                self._guess_acceptance.add(follow.guessed.key, drafted.first, num_guessed, num_right)
        if guesses and follow.guess_key is not None:
            self._guess_losses.add(follow.guess_key, -len(guesses) * self._price)
            position = len(request.token_ids) + num_drafts + 1
            is_of_use = num_accepted == num_drafts
            follow.guessed = Guessed(follow.guess_key, position, list(guesses)) if is_of_use else None

    def note_step(self, num_rows: int, num_drafts: int, num_known: int) -> None:
        """Notes the step just planned: its rows, drafts and placeholders, and known tokens to compute."""
        self._budget.note_step(num_rows, num_drafts, num_known)

    def forget(self, request: Request) -> None:
        """Keeps the text of a request that has ended, and nothing else of it."""
        follow = self._followed.pop(request, None)
        if follow is not None:
            self._texts.extend(follow.opened, LAST_TOKENS)
            self._texts.close(follow.opened)
        if not self._followed:
            self._budget.note_pause()

    def _proposal(self, chosen: _Chosen) -> Proposal:
        """Returns what was chosen for a request, which is in flight from now on."""
        follow, one = self._followed[chosen.request], chosen.candidate
        follow.drafted = one
        if one is None:
            return Proposal([], chosen.num_placeholders)
        guessed_by = ""
        if one.kind is DraftKind.ADAPTER and follow.guessed is not None:
            guessed_by = follow.guessed.key[2]
        drafts = one.token_ids[: chosen.width]
        return Proposal(drafts, chosen.num_placeholders, one.num_forced, one.kind, guessed_by)

    def _choose(
        self, requests: Sequence[Request], num_open: int, ready: ReadyAdapter, is_drawing: bool
    ) -> list[_Chosen]:
        """Returns what may be drafted for some requests, each with how much of it the budget takes.

        `is_drawing`: each request's next token is being drawn.
        """
        if not requests or len(requests) > MAX_ROWS:
            return []
        adapters = self._follow_all(requests, ready)
        candidates = self._candidates(requests, is_drawing)
        widths = self._widths(len(requests), candidates, num_open)
        num_left = num_open - sum(widths)
        found: dict[Request, _Chosen] = {}
        for one, width in zip(candidates, widths, strict=True):
            follow = self._followed[one.request]
            if follow.num_skipped > follow.skip:
                follow.note_look(one.kind is DraftKind.TEXT and width > one.num_forced)
            found[one.request] = _Chosen(one.request, one, width, 0)
        chosen = []
        for request in requests:
            share = found.get(request) or _Chosen(request, None, 0, 0)
            if request in adapters:
                num = min(num_left, self._placeholders(len(requests), share, adapters[request]))
                num_left -= num
                share = share._replace(num_placeholders=num)
            if share.width or share.num_placeholders:
                chosen.append(share)
        return chosen

    def _follow_all(self, requests: Sequence[Request], ready: ReadyAdapter) -> dict[Request, DraftAdapter]:
        """Returns the draft adapters of the requests that may have placeholders."""
        found = {}
        for request in requests:
            follow = self._followed.get(request) or self._follow(request)
            if len(request.token_ids) <= follow.prompt_len:
                continue  # it computes its prompt
            adapter = ready(request)
            if adapter is not None:
                found[request] = adapter
                if follow.guess_key is None or follow.guess_key[2] != adapter.ref.digest:
                    follow.guess_key = (*follow.key, adapter.ref.digest)
        return found

    def _widths(self, num_rows: int, candidates: Sequence[_Candidate], num_open: int) -> list[int]:
        """Returns how much of each candidate the budget takes."""
        widths = [0] * len(candidates)
        if not candidates:
            return widths
        price = self._budget.price(num_rows, min(num_open, sum(len(one.chances) for one in candidates)))
        ranked = [
            (chance, number)
            for number, one in enumerate(candidates)
            for chance in one.chances[: self._affordable(one, price)]
        ]
        ranked.sort(reverse=True)
        num_chosen = self._budget.choose(num_rows, [chance for chance, _ in ranked[:num_open]])
        for _, number in ranked[:num_chosen]:
            widths[number] += 1
        return widths

    def _placeholders(self, num_rows: int, chosen: _Chosen, adapter: DraftAdapter) -> int:
        """Returns how many placeholders a request should have behind its drafts."""
        one, width = chosen.candidate, chosen.width
        if one is not None and one.kind is DraftKind.TEXT and width > one.num_forced:
            return 0  # the text will go on
        key = self._followed[chosen.request].guess_key
        assert key is not None
        most = min(adapter.num_ahead, MAX_DRAFTS)
        price = self._budget.placeholder_price(num_rows, most)
        if price:
            self._earn(chosen.request)
            most = min(most, max(0, int(self._guess_losses.balance(key) / (2 * price))))
        reach = 1.0 if one is None or not width else one.chances[width - 1]
        chances = self._guess_acceptance.chances(key, most)
        num = self._budget.choose_placeholders(num_rows, price, reach, chances)
        if not num:
            self._guess_acceptance.rest(key)
        return num

    def _affordable(self, candidate: _Candidate, price: float) -> int:
        """Returns how many of its tokens may be drafted; forced ones cost nothing, as none is refused."""
        most = len(candidate.token_ids)
        if not price:
            return most
        follow = self._followed[candidate.request]
        self._earn(candidate.request)
        balance = self._losses.balance(follow.key)
        if candidate.kind is DraftKind.ADAPTER:
            assert follow.guess_key is not None
            balance = self._guess_losses.balance(follow.guess_key)
        # Half of the balance at a time, so that bad luck at the beginning is not the end of it.
        num = int(balance / (2 * price)) or int(balance >= price)
        return min(most, candidate.num_forced + max(0, num))

    def _earn(self, request: Request) -> None:
        """Adds to the balances what the tokens that a request drew have earned."""
        follow = self._followed[request]
        num_drawn = len(request.token_ids) - follow.num_earned
        if num_drawn:
            self._losses.add(follow.key, num_drawn * INCOME)
            if follow.guess_key is not None:
                self._guess_losses.add(follow.guess_key, num_drawn * INCOME)
            follow.num_earned += num_drawn

    def _candidates(self, requests: Sequence[Request], is_drawing: bool) -> list[_Candidate]:
        """Looks for what may follow in the requests' texts, as far as they were learnt."""
        found = []
        for request in requests:
            follow = self._followed[request]
            follow.num_skipped += 1
            looks = follow.num_skipped > follow.skip
            if not looks and request.constraint is None and follow.guessed is None:
                continue
            if len(request.token_ids) <= follow.prompt_len:
                continue  # it computes its prompt
            guess = follow.opened.guess(MAX_DRAFTS) if looks else NOTHING
            forced = [] if request.constraint is None else _forced(request.constraint, is_drawing)
            best = self._best(request, follow, forced[:MAX_DRAFTS], guess)
            if best is not None:
                found.append(best)
            elif looks:
                follow.note_look(found=False)
        return found

    def _follow(self, request: Request) -> _Follow:
        key = request.tenant, None if request.adapter is None else request.adapter.digest
        prompt_len = len(request.group.submit.prompt_ids)
        opened = self._texts.open(*key, request.token_ids)
        follow = self._followed[request] = _Follow(key, opened, prompt_len, prompt_len)
        return follow

    def _best(self, request: Request, follow: _Follow, forced: list[int], guess: Guess) -> _Candidate | None:
        """Returns the likelier of what texts and a draft adapter guess, behind what is forced."""
        found = [_Candidate(request, len(forced), forced, [1.0] * len(forced))] if forced else []
        if guess is not NOTHING:
            chances = self._acceptance.chances(follow.key, guess)
            one = _Candidate(request, 0, guess.token_ids, chances, match_len=guess.match_len)
            found.append(_behind(forced, one))
        guessed = follow.guessed
        num_past = None if guessed is None else guessed.num_past(request.token_ids)
        if guessed is not None and num_past is not None:
            chances = self._guess_acceptance.chances(guessed.key, len(guessed.token_ids), num_past)
            rest, first = guessed.token_ids[num_past:], num_past + len(forced)
            one = _Candidate(request, 0, rest, chances, DraftKind.ADAPTER, first=first)
            found.append(_behind(forced, one))
        elif guessed is not None and len(request.token_ids) >= guessed.position:
            follow.guessed = None
        if len(found) < 2:
            return found[0] if found else None
        return max(found, key=lambda one: sum(one.chances))


def _behind(forced: list[int], guess: _Candidate) -> _Candidate:
    """Returns a guess with what is forced at its beginning; the latter alone where they do not agree."""
    if not forced:
        return guess
    num_forced = len(forced)
    certain = [1.0] * num_forced
    if guess.token_ids[:num_forced] != forced:
        return _Candidate(guess.request, num_forced, forced, certain)
    before = guess.chances[num_forced - 1]
    rest = [chance / before for chance in guess.chances[num_forced:]]
    return guess._replace(num_forced=num_forced, chances=certain + rest)


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
