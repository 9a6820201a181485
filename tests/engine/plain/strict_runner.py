"""A runner that believes nothing: it simulates the KV cache and checks the scheduler's every word.

Each cached position holds a hash of the adapter and all tokens up to it, chained through the block table
exactly as attention would read it. A wrong block, a stale one, one of another adapter, one written by two
rows: the hash, and so the tokens drawn, would differ from those of the request alone; mostly an assertion
fails first.

It is strict about the order of things too: what a step computes is settled at its launch, steps are read in
the order of launches, and no more are under way than `depth` allows.
"""

from __future__ import annotations

from collections import deque
from zlib import crc32

from engine.batch import NO_SLOT, Batch, LaunchedStep, NewRow, Placeholders, Scored, StepResult
from engine.null_runner import NullRunner, begin_history, extend_history
from engine.protocol import TokenLogprob

PLACEHOLDER_ID = 61


class StrictRow:
    def __init__(self, new: NewRow, digest: str) -> None:
        self.new = new
        self.digest = digest
        self.token_ids = list(new.token_ids)
        self.block_ids = list(new.block_ids)
        self.computed_len = new.computed_len
        self.salt = 0 if new.sampling.temperature == 0 else new.seed
        self.num_drafts: int | None = None
        """Of the step whose outcome the scheduler has not told; None: it has told."""


class StrictStep:
    """Read once, in the order of launches. Its masks are filled once, after the steps before it are read."""

    def __init__(self, in_flight: deque[StrictStep], drawn: StepResult) -> None:
        self._in_flight = in_flight
        self._drawn = drawn
        self.has_masks = False
        in_flight.append(self)

    def fill_masks(self) -> None:
        assert list(self._in_flight) == [self], "masks filled before the step before it was read"
        assert not self.has_masks, "masks filled twice"
        self.has_masks = True

    def result(self) -> StepResult:
        assert self._in_flight.popleft() is self, "read out of turn"
        assert self.has_masks or not self._in_flight, "masks never filled"
        return self._drawn


class StrictRunner(NullRunner):
    def __init__(
        self, choices: list[int], max_rows: int, num_blocks: int, block_size: int, budget: int, depth: int = 0
    ) -> None:
        super().__init__(choices, max_rows, depth=depth)
        self.in_flight: deque[StrictStep] = deque()
        self.most_in_flight = 0
        self.batches: list[Batch] = []
        self.block_size = block_size
        self.budget = budget
        self.kv: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.live: dict[int, StrictRow] = {}
        self.max_rows = max_rows
        self.entered: list[str] = []
        """Request ids, in the order in which they were given rows."""
        self.fail_prompts: set[tuple[int, ...]] = set()
        """Requests whose logits are not finite."""
        self.fail_scores: set[tuple[int, ...]] = set()
        """Those whose prompt's logits are not."""
        self.num_drafts = self.num_accepted = self.num_guesses = 0
        self.draft_digests: set[str] = set()
        """Of the draft adapters."""
        self.fails_with_placeholders = False
        """Whether the logits of rows with placeholders are not finite."""
        self.guess_skill = 1.0
        """How many of the guesses of draft adapters are right."""
        self.distinct_slots = 0
        """Most adapters seen in one batch."""

    @property
    def num_steps(self) -> int:
        return len(self.batches)

    def launch(self, batch: Batch) -> LaunchedStep:
        step = StrictStep(self.in_flight, self.draw_step(batch))
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        assert len(self.in_flight) <= self.depth + 1, "launched too far ahead"
        return step

    def draw_step(self, batch: Batch) -> StepResult:
        assert batch.step == self.num_steps
        self.batches.append(batch)
        self._apply(batch)
        assert batch.scheduled, "an empty batch"
        assert batch.num_tokens <= self.budget, "over the token budget"
        rows = [share.row for share in batch.scheduled]
        assert len(set(rows)) == len(rows), "a row twice in one step"
        assert set(rows) == self.live.keys(), "a row left out"
        widths = [share.num_tokens > 1 for share in batch.scheduled]
        assert widths == sorted(widths), "decoding rows come first"
        self.distinct_slots = max(
            self.distinct_slots, len({row.new.slot for row in self.live.values()} - {NO_SLOT})
        )
        result = StepResult([], scores=[self._check_and_score(share, batch) for share in batch.scored])
        drafts = dict(batch.drafted)
        assert len(drafts) == len(batch.drafted)
        assert drafts.keys() <= set(rows)
        places = {one.row: one for one in batch.placeholders}
        assert len(places) == len(batch.placeholders)
        assert places.keys() <= drafts.keys()
        assert list(places) == [row for row in rows if row in places], "not in the order of the plan"
        num_more = sum(map(len, drafts.values())) + sum(one.num_tokens for one in places.values())
        assert len(rows) + num_more <= self.max_rows or not drafts, "too many draws"
        for share in batch.scheduled:
            state = self.live[share.row]
            assert state.num_drafts is None, "a row goes on before its drafts are verified"
            if share.row in drafts:
                self._draw_drafted(state, share.num_tokens, drafts[share.row], places.get(share.row), result)
                continue
            self._compute(state, share.num_tokens)
            assert share.samples == (state.computed_len == len(state.token_ids))
            if share.samples:
                self._sample(state, result)
        return result

    def _draw_drafted(  # type: ignore[override]
        self,
        state: StrictRow,
        num_tokens: int,
        drafts: list[int],
        placeholders: Placeholders | None,
        result: StepResult,
    ) -> None:
        """Computes the drafts' keys and values too, and the placeholders', wherever they end up."""
        num_placeholders = 0 if placeholders is None else placeholders.num_tokens
        assert 1 <= len(drafts) + num_placeholders == num_tokens - 1
        assert state.computed_len + 1 == len(state.token_ids), "drafts of a row that has more to compute"
        known = list(state.token_ids)
        if placeholders is not None and self.fails_with_placeholders:
            result.failed += range(len(result.token_ids), len(result.token_ids) + len(drafts) + 1)
        for num in range(len(drafts) + 1):
            self._compute(state, 1)
            self._sample(state, result)
            state.token_ids[-1:] = drafts[num : num + 1]
        if placeholders is not None:
            self._guess_ahead(state, placeholders, result)
        state.token_ids, state.computed_len, state.num_drafts = known, len(known) - 1, len(drafts)

    def _guess_ahead(self, state: StrictRow, placeholders: Placeholders, result: StepResult) -> None:
        """Computes placeholders behind all that precedes: their keys must never be read again."""
        _, num_tokens, token_id, slot = placeholders
        assert token_id == PLACEHOLDER_ID
        assert self._digests[slot] in self.draft_digests, "placeholders on another adapter than a draft's"
        (history, _, _) = self._cell(state, state.computed_len - 1)
        assert history is not None
        guesses: list[int] = []
        for _ in range(num_tokens + 1):
            guesses.append(self.draw(history, state.salt))
            history = extend_history(history, guesses[-1:])
        for position in range(state.computed_len, state.computed_len + num_tokens):
            _, block, offset = self._cell(state, position)
            block[offset] = -1 - position
        is_right = (crc32(bytes(guesses)) % 100) < 100 * self.guess_skill
        result.guesses.append([token + (not is_right) for token in guesses[1:]])
        self.num_guesses += num_tokens

    def _verify(self, batch: Batch) -> None:
        assert len({one.row for one in batch.verified}) == len(batch.verified)
        for row, token_ids, num_blocks, last_token_id in batch.verified:
            state = self.live[row]
            assert state.num_drafts is not None
            assert len(token_ids) <= state.num_drafts + 1
            assert token_ids or self.fails_with_placeholders
            self.num_drafts += state.num_drafts
            self.num_accepted += max(0, len(token_ids) - 1)
            state.num_drafts = None
            state.token_ids += token_ids
            assert last_token_id == state.token_ids[-1]
            state.computed_len = len(state.token_ids) - 1
            assert num_blocks == -(-state.computed_len // self.block_size), (
                "blocks of refused drafts are kept"
            )
            del state.block_ids[num_blocks:]

    def _apply(self, batch: Batch) -> None:
        self._verify(batch)
        for row in batch.freed_rows:
            del self.live[row]
        for new in batch.new_rows:
            assert 0 <= new.row < self.max_rows
            assert new.row not in self.live, "a row handed out twice"
            state = StrictRow(new, self._digests[new.slot])
            self.live[new.row] = state
            self.entered.append(new.request_id)
            assert 0 <= new.computed_len < len(new.token_ids)
            assert new.computed_len % self.block_size == 0
            assert 1 <= new.prompt_len <= len(new.token_ids)
            history = begin_history(state.digest)
            for position in range(new.computed_len):
                history = extend_history(history, new.token_ids[position : position + 1])
                assert self._cell(state, position)[0] == history, "a cached block has other contents"
        grown = dict(batch.grown)
        assert len(grown) == len(batch.grown)
        assert grown.keys().isdisjoint(new.row for new in batch.new_rows)
        for row, block_ids in grown.items():
            self.live[row].block_ids += block_ids
        for state in self.live.values():
            assert 0 not in state.block_ids, "the null block was handed out"
            assert len(set(state.block_ids)) == len(state.block_ids), "a block twice in one table"

    def _cell(self, state: StrictRow, position: int) -> tuple[int | None, list[int | None], int]:
        block = self.kv[state.block_ids[position // self.block_size]]
        return block[position % self.block_size], block, position % self.block_size

    def _compute(self, state: StrictRow, num_tokens: int) -> None:
        assert num_tokens >= 1
        for position in range(state.computed_len, state.computed_len + num_tokens):
            if position:
                history, _, _ = self._cell(state, position - 1)
                assert history is not None
            else:
                history = begin_history(state.digest)
            block_id = state.block_ids[position // self.block_size]
            holders = [row for row in self.live.values() if block_id in row.block_ids]
            assert holders == [state], "a block written by one row is held by another"
            _, block, offset = self._cell(state, position)
            block[offset] = extend_history(history, state.token_ids[position : position + 1])
        state.computed_len += num_tokens

    def _check_and_score(self, share: Scored, batch: Batch) -> list[TokenLogprob] | None:
        """Before the step: what it computes must be what its scores rest on."""
        state = self.live[share.row]
        (mine,) = (other for other in batch.scheduled if other.row == share.row)
        first_hidden, num_hidden = share.first - 1, share.num_tokens
        assert num_hidden > 0
        assert state.computed_len <= first_hidden, "scored by a token that was computed before"
        assert first_hidden + num_hidden <= state.computed_len + mine.num_tokens, "scored by one yet to come"
        assert share.first + share.num_tokens <= state.new.prompt_len, "a generated token is scored"
        prompt_ids = state.new.token_ids[: state.new.prompt_len]
        if tuple(prompt_ids) in self.fail_scores:
            return None
        history = extend_history(begin_history(state.digest), prompt_ids[: share.first])
        scores = []
        for token_id in prompt_ids[share.first : share.first + share.num_tokens]:
            scores.append(self.score(history, token_id, share.num_tops))
            history = extend_history(history, [token_id])
        return scores

    def _sample(self, state: StrictRow, result: StepResult) -> None:
        history, _, _ = self._cell(state, state.computed_len - 1)
        assert history == extend_history(begin_history(state.digest), state.token_ids), (
            "the KV cache is wrong"
        )
        token_id = self.draw(history, state.salt)
        if tuple(state.new.token_ids[: state.new.prompt_len]) in self.fail_prompts:
            result.failed.append(len(result.token_ids))
        if state.new.sampling.logprobs is not None:
            result.logprobs[len(result.token_ids)] = self.logprob(token_id, state.new.sampling.logprobs)
        state.token_ids.append(token_id)
        result.token_ids.append(token_id)
