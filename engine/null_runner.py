"""Runs batches without a model: makes up tokens at full speed, for tests and benchmarks of everything around
it.

Tokens are a deterministic function of what a model's would depend on: adapter, token history, seed. So a
request gets the same tokens alone, in any batch and after any preemption. Of the sampling parameters only
temperature (0 ignores the seed), seed and logprobs have an effect.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from zlib import crc32

from engine.batch import NO_SLOT, Batch, LaunchedStep, NewRow, Scored, StepResult
from engine.core import EngineCore
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.slots import SlotTable
from engine.outputs import DeviceGauges, RunnerCounters
from engine.protocol import AdapterRef, EngineInfo, TokenLogprob, TopLogprob
from engine.scheduling.scheduler import Scheduler
from engine.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engine.server import EngineServer
    from engine.settings import DeviceSettings, EngineSettings

_SPREAD = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1
_LOG_2 = math.log(2)

_DEFAULT_VOCAB_SIZE = 32_000
_DEFAULT_CONTEXT_LENGTH = 8192
_DEFAULT_NUM_BLOCKS = 32_768
_DEFAULT_NUM_SLOTS = 64


class RowState:
    """What a runner remembers of a row between steps."""

    __slots__ = ("begin", "history", "num_logprobs", "salt", "token_ids")

    def __init__(self, new: NewRow, digest: str) -> None:
        self.begin = begin_history(digest)
        self.token_ids = new.token_ids
        """As of entering the row: the prompt is among them."""
        self.history = extend_history(self.begin, new.token_ids)
        self.salt = 0 if new.sampling.temperature == 0 else new.seed
        self.num_logprobs = new.sampling.logprobs


def begin_history(digest: str) -> int:
    return crc32(digest.encode())


def extend_history(history: int, token_ids: Sequence[int]) -> int:
    return crc32(array("I", token_ids).tobytes(), history)


class NullStep:
    """A step of a null runner: drawn at its launch, available when its time is over."""

    __slots__ = ("_drawn", "ends_at", "is_read")

    def __init__(self, drawn: StepResult, ends_at: float) -> None:
        self._drawn = drawn
        self.ends_at = ends_at
        self.is_read = False

    def fill_masks(self) -> None:
        """Does nothing: null engines support no grammars."""

    def result(self) -> StepResult:
        left = self.ends_at - time.perf_counter()
        if left > 0:
            time.sleep(left)
        self.is_read = True
        return self._drawn


class NullRunner:
    """Draws from `choices` by the history of the row. One step takes `step_seconds`, whatever is in it.

    With depth 1 it behaves like a device: a launch returns at once, and steps run one after the other.
    """

    def __init__(
        self, choices: Sequence[int], max_rows: int, step_seconds: float = 0.0, depth: int = 0
    ) -> None:
        if not choices:
            raise ValueError("choices must not be empty")
        self.depth = depth
        self.counters = RunnerCounters()
        self._choices = list(choices)
        self._step_seconds = step_seconds
        self._last: NullStep | None = None
        self._rows: list[RowState | None] = [None] * max_rows
        self._digests: dict[int, str] = {NO_SLOT: ""}

    def load(self, slot: int, ref: AdapterRef) -> None:
        """Loads an adapter into a slot, at once."""
        self._digests[slot] = ref.digest

    def launch(self, batch: Batch) -> LaunchedStep:
        self.counters.eager_steps += 1
        began = time.perf_counter()
        drawn = self.draw_step(batch)
        last = self._last
        if last is None or not self._step_seconds:
            starts_at = began
        else:
            starts_at = max(began, last.ends_at)
            if not last.is_read:
                self.counters.gap_seconds += starts_at - last.ends_at
        step = self._last = NullStep(drawn, starts_at + self._step_seconds)
        if not self.depth:
            step.result()
        return step

    def execute(self, batch: Batch) -> StepResult:
        """Launches a step and waits for it."""
        return self.launch(batch).result()

    def draw_step(self, batch: Batch) -> StepResult:
        """Returns what a batch draws."""
        rows = self._rows
        for verified in batch.verified:
            state = rows[verified.row]
            assert state is not None
            state.history = extend_history(state.history, verified.token_ids)
        for row in batch.freed_rows:
            rows[row] = None
        for new in batch.new_rows:
            rows[new.row] = RowState(new, self._digests[new.slot])
        result = StepResult([], scores=[self._score(share) for share in batch.scored])
        drafts = dict(batch.drafted)
        for row, _, samples in batch.scheduled:
            if samples:
                state = rows[row]
                assert state is not None
                if row in drafts:
                    self._draw_drafted(state, drafts[row], result)
                else:
                    token_id = self._draw_next(state, state.history, result)
                    state.history = crc32(token_id.to_bytes(4, "little"), state.history)
        for share in batch.placeholders:
            state = rows[share.row]
            assert state is not None
            result.guesses.append(self._guess(state, drafts[share.row], share.num_tokens))
        return result

    def _guess(self, state: RowState, drafts: Sequence[int], num_tokens: int) -> list[int]:
        """Returns what will follow the token after the drafts."""
        history, found = extend_history(state.history, drafts), list[int]()
        while len(found) <= num_tokens:
            found.append(self.draw(history, state.salt))
            history = extend_history(history, found[-1:])
        return found[1:]

    def _draw_drafted(self, state: RowState, drafts: Sequence[int], result: StepResult) -> None:
        """Draws after the row's last token and after each draft. The row stays where it is."""
        for num in range(len(drafts) + 1):
            self._draw_next(state, extend_history(state.history, drafts[:num]), result)

    def _draw_next(self, state: RowState, history: int, result: StepResult) -> int:
        token_id = self.draw(history, state.salt)
        if state.num_logprobs is not None:
            result.logprobs[len(result.token_ids)] = self.logprob(token_id, state.num_logprobs)
        result.token_ids.append(token_id)
        return token_id

    def _score(self, share: Scored) -> list[TokenLogprob]:
        state = self._rows[share.row]
        assert state is not None
        history = extend_history(state.begin, state.token_ids[: share.first])
        scores = []
        for token_id in state.token_ids[share.first : share.first + share.num_tokens]:
            scores.append(self.score(history, token_id, share.num_tops))
            history = extend_history(history, (token_id,))
        return scores

    def score(self, history: int, token_id: int, num_top: int) -> TokenLogprob:
        """Returns a prompt token's score: the token that would be drawn is the likeliest, others vary."""
        drawn = self.draw(history, 0)
        top = self.logprob(drawn, num_top).top
        if token_id == drawn:
            return TokenLogprob(token_id, -_LOG_2, top)
        chance = crc32(token_id.to_bytes(4, "little"), history) / 2**32
        return TokenLogprob(token_id, -_LOG_2 - 8 * chance, top)

    def draw(self, history: int, salt: int) -> int:
        """Returns the next token after a history."""
        return self._choices[(((history ^ salt) * _SPREAD & _MASK) >> 32) % len(self._choices)]

    def logprob(self, token_id: int, num_top: int) -> TokenLogprob:
        """Returns log-probabilities as if the drawn token had probability 1/2, the next one 1/4,
        and so on.
        """
        others = [choice for choice in self._choices[:num_top] if choice != token_id]
        likeliest = [token_id, *others][:num_top]
        top = [TopLogprob(choice, -_LOG_2 * (place + 1)) for place, choice in enumerate(likeliest)]
        return TokenLogprob(token_id, -_LOG_2, top)


def build_null_engine(
    settings: EngineSettings, device: DeviceSettings, server: EngineServer, build: str
) -> tuple[EngineCore, EngineInfo]:
    """Returns an engine around a NullRunner, and the information that clients receive.

    With `settings.base`, it draws that tokenizer's readable tokens.
    """
    if settings.base is not None:
        token_bytes = Vocabulary.load(settings.base).token_bytes
        choices = [token_id for token_id, data in enumerate(token_bytes) if data and data.isascii()]
    else:
        token_bytes = [b""] * _DEFAULT_VOCAB_SIZE
        choices = list(range(_DEFAULT_VOCAB_SIZE))
    runner = NullRunner(choices, settings.max_rows, settings.null_step_seconds, settings.null_depth)

    def start_load(slot: int, ref: AdapterRef) -> None:
        runner.load(slot, ref)
        server.adapter_loaded(slot, ref.digest, None)

    limits = replace(
        settings.limits(settings.context_length or _DEFAULT_CONTEXT_LENGTH, len(token_bytes)), has_masks=False
    )
    scheduler = Scheduler(
        limits=limits,
        pool=BlockPool(device.num_blocks or _DEFAULT_NUM_BLOCKS),
        slots=SlotTable(device.num_slots or _DEFAULT_NUM_SLOTS, start_load),
        eos_ids=(),
        token_bytes=token_bytes,
        environment=EngineEnvironment(settings.engine_id, server.incarnation),
    )
    info = EngineInfo(
        engine_id=settings.engine_id,
        incarnation=server.incarnation,
        base=settings.base_name,
        base_digest="0" * 64,
        quantization=device.quantization,
        device="null",
        context_length=limits.context_length,
        max_prompt_tokens=limits.context_length - 1,
        vocab_size=limits.vocab_size,
        build=build,
    )
    return EngineCore(scheduler, runner, lambda: DeviceGauges("null")), info
