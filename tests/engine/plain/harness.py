"""A whole engine around the strict runner, with a clock of its own, and a record of what came out of it."""

from __future__ import annotations

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable
from random import Random
from typing import Any

from engine.core import Captures, EngineCore
from engine.environment import EngineEnvironment
from engine.kv_cache import BlockPool
from engine.lora.draft_adapters import DraftAdapterChoice
from engine.lora.slots import SlotMemory, SlotTable
from engine.null_runner import begin_history, extend_history
from engine.outputs import StepOutputs
from engine.protocol import (
    AdapterRef,
    Finished,
    FinishReason,
    Rejected,
    SamplingParams,
    Submit,
    TokenChunk,
    TokenLogprob,
    UsageEvent,
)
from engine.scheduling.byte_floor import ByteFloor
from engine.scheduling.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits
from tests.engine.plain.strict_runner import StrictRunner

VOCAB_SIZE = 64
EOS = 63
TOKEN_BYTES = [f"{chr(ord('a') + token_id % 26)}".encode() for token_id in range(VOCAB_SIZE - 1)] + [b""]


def adapter(name: str, rank: int = 8) -> AdapterRef:
    return AdapterRef(hashlib.sha256(name.encode()).hexdigest(), rank)


def submission(request_id: str, prompt_ids: list[int], max_tokens: int = 4, **fields: Any) -> Submit:
    """Sampling parameters and Submit's own fields alike.

    Greedy and ignoring the end of sequence unless told.
    """
    own = {
        name: fields.pop(name)
        for name in ("tenant", "adapter", "priority", "n", "labels", "ttft_target")
        if name in fields
    }
    sampling = SamplingParams(
        max_tokens=max_tokens, **{"temperature": 0.0, "ignore_eos": True, "seed": 7, **fields}
    )
    return Submit(
        request_id=request_id,
        prompt_ids=prompt_ids,
        sampling=sampling,
        submitted_at=1000.0,
        **{"tenant": "acme", **own},
    )


class Engine:
    """`auto_load`: loads end at the next step; otherwise when `finish_load` is called."""

    def __init__(
        self,
        num_blocks: int = 65,
        block_size: int = 4,
        num_slots: int = 4,
        auto_load: bool = True,
        memory: SlotMemory | None = None,
        eos_ids: tuple[int, ...] = (EOS,),
        depth: int = 0,
        floor: ByteFloor | None = None,
        drafter: Drafter | None = None,
        draft_adapters: DraftAdapterChoice | None = None,
        captures: Captures | None = None,
        **limits: Any,
    ) -> None:
        self.limits = EngineLimits(
            **{
                "context_length": 64,
                "vocab_size": VOCAB_SIZE,
                "max_batch_tokens": 32,
                "max_rows": 8,
                "slot_patience_s": 5.0,
                "adapter_wait_s": 1e9,
                **limits,
            }
        )
        self.runner = StrictRunner(
            list(range(VOCAB_SIZE)),
            self.limits.max_rows,
            num_blocks,
            block_size,
            self.limits.max_batch_tokens,
            depth,
        )
        self.now = 5000.0
        self.auto_load = auto_load
        self.broken_adapters: set[str] = set()
        self.loads: deque[tuple[int, AdapterRef]] = deque()
        self.load_order: list[str] = []
        slots = SlotTable(num_slots, self._start_load, memory)
        self.core = EngineCore(
            Scheduler(
                self.limits,
                BlockPool(num_blocks, block_size),
                slots,
                eos_ids,
                TOKEN_BYTES,
                EngineEnvironment("engine-0", "first", lambda: self.now, lambda: self.now, lambda: 42),
                floor=floor,
                drafter=drafter,
            ),
            self.runner,
            captures=captures,
        )
        self.scheduler = self.core.scheduler
        if draft_adapters is not None:
            self.scheduler.draft_adapters.choice = draft_adapters
            found = (draft_adapters.base, *draft_adapters.by_adapter.values())
            self.runner.draft_digests = {one.ref.digest for one in found if one is not None}
        self.slots = slots
        self.submitted: dict[str, Submit] = {}
        self.scores: dict[str, list[TokenLogprob]] = defaultdict(list)
        self.chunks: dict[str, dict[int, list[TokenChunk]]] = defaultdict(lambda: defaultdict(list))
        self.finished: dict[str, tuple[Finished, UsageEvent]] = {}
        self.checkpoints: list[UsageEvent] = []
        self.rejected: dict[str, Rejected] = {}

    def _start_load(self, slot: int, ref: AdapterRef) -> None:
        assert self.slots.slots[slot].references == 0, "a slot in use was reloaded"
        self.load_order.append(ref.digest)
        self.loads.append((slot, ref))
        if self.auto_load:
            self.finish_load()

    def finish_load(self) -> None:
        slot, ref = self.loads.popleft()
        if ref.digest in self.broken_adapters:
            self.core.adapter_loaded(slot, ref.digest, "digest mismatch")
        else:
            self.runner.load(slot, ref)
            self.core.adapter_loaded(slot, ref.digest)

    def submit(self, submit: Submit) -> Rejected | None:
        rejected = self.core.submit(submit)
        if rejected is None:
            assert submit.request_id not in self.submitted
            self.submitted[submit.request_id] = submit
        return rejected

    def abort_one(self, random: Random, aborted: set[str]) -> None:
        """Aborts a request that has not finished, or one of `aborted` again; adds it there."""
        going = sorted(self.submitted.keys() - self.finished.keys())
        if going:
            aborted.add(random.choice(going))
            self.core.abort(random.choice(sorted(aborted)))

    def step(self) -> StepOutputs:
        outputs = self.core.step()
        self.record(outputs)
        return outputs

    def record(self, outputs: StepOutputs) -> None:
        for scores in outputs.scores:
            submit = self.submitted[scores.request_id]
            assert scores.request_id not in self.chunks, "scores after a chunk"
            assert scores.start == submit.sampling.score_from + len(self.scores[scores.request_id])
            self.scores[scores.request_id] += scores.logprobs
        for chunk in outputs.chunks:
            assert chunk.request_id not in self.finished, "a chunk after the last word"
            self.chunks[chunk.request_id][chunk.index].append(chunk)
        for finished, event in outputs.finished:
            assert finished.request_id not in self.finished
            assert finished.request_id == event.request_id
            assert finished.usage == event.usage
            self.finished[finished.request_id] = (finished, event)
        self.checkpoints += outputs.checkpoints
        for rejected in outputs.rejected:
            assert rejected.request_id not in self.chunks, "rejected after it ran"
            assert rejected.request_id not in self.rejected
            self.rejected[rejected.request_id] = rejected
        self.core.check_integrity()

    def run(self, max_steps: int = 5000, until: Callable[[], bool] | None = None) -> int:
        """Step until there is no work (or `until`); the number of steps. Time passes, a second per step."""
        for num_steps in range(max_steps):
            if (until is not None and until()) or not self.core.has_work:
                return num_steps
            self.now += 1.0
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps")

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [token_id for chunk in self.chunks[request_id][index] for token_id in chunk.token_ids]

    @property
    def events(self) -> list[UsageEvent]:
        """The last line of each request in the journal."""
        return [event for _, event in self.finished.values()]

    def reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        *earlier, last = self.chunks[request_id][index]
        assert all(chunk.finish_reason is None for chunk in earlier)
        return last.finish_reason

    def check_idle(self) -> None:
        """Everything submitted has had its last word, and nothing is held."""
        assert not self.core.has_work
        assert self.finished.keys() | self.rejected.keys() == self.submitted.keys()
        assert self.finished.keys().isdisjoint(self.rejected)
        self.scheduler.check_integrity()
        assert self.core.stats.running == 0
        assert self.core.stats.blocks_used == 0
        assert set(self.core.stats.waiting.values()) == {0}
        held = self.scheduler.draft_adapters.held
        assert all(slot.references == held.count(slot.index) for slot in self.slots.slots)
        for request_id, (finished, event) in self.finished.items():
            submit = self.submitted[request_id]
            assert self.chunks[request_id].keys() == set(range(submit.n))
            assert all(self.reason(request_id, index) is not None for index in range(submit.n))
            num_tokens = sum(len(self.tokens(request_id, index)) for index in range(submit.n))
            assert finished.usage.completion_tokens == num_tokens
            ran = event.scheduled_at is not None
            assert finished.usage.prompt_tokens == (len(submit.prompt_ids) if ran else 0)
            assert 0 <= finished.usage.cached_tokens < len(submit.prompt_ids)
            if submit.sampling.prompt_logprobs is not None:
                assert finished.usage.cached_tokens < submit.sampling.score_from or not scored_of(submit)
            assert event.finish_reason is not None
            assert event.finished_at is not None


def scored_of(submit: Submit) -> list[TokenLogprob]:
    """What a prompt's scores must be, by definition."""
    sampling = submit.sampling
    if sampling.prompt_logprobs is None:
        return []
    scorer = StrictRunner(list(range(VOCAB_SIZE)), 1, 2, 1, 1)
    history = begin_history(submit.adapter.digest if submit.adapter else "")
    scores = []
    for token_id in submit.prompt_ids:
        scores.append(scorer.score(history, token_id, sampling.prompt_logprobs))
        history = extend_history(history, [token_id])
    return scores[sampling.score_from :]


def alone(submit: Submit, index: int = 0) -> tuple[list[int], FinishReason, int | str | None]:
    """What a choice must be, by definition: tokens drawn one after the other, no engine involved."""
    sampling = submit.sampling
    drawer = StrictRunner(list(range(VOCAB_SIZE)), 1, 2, 1, 1)
    history = extend_history(
        begin_history(submit.adapter.digest if submit.adapter else ""), submit.prompt_ids
    )
    seed = (sampling.seed if sampling.seed is not None else 42) + index
    salt = 0 if sampling.temperature == 0 else seed & (2**63 - 1)
    token_ids: list[int] = []
    text = b""
    if sampling.max_tokens == 0:
        return [], "length", None
    while True:
        token_id = drawer.draw(history, salt)
        history = extend_history(history, [token_id])
        token_ids.append(token_id)
        before, text = text, text + TOKEN_BYTES[token_id]
        if len(token_ids) >= sampling.min_tokens:
            if token_id == EOS and not sampling.ignore_eos:
                return token_ids, "stop", None
            if token_id in sampling.stop_token_ids:
                return token_ids, "stop", token_id
            # One byte per token here: a stop ends now if the text ends with it; of several, the longest.
            ending = [
                stop for stop in sampling.stop if len(text) > len(before) and text.endswith(stop.encode())
            ]
            if ending:
                return token_ids, "stop", max(ending, key=len)
        if len(token_ids) == sampling.max_tokens:
            return token_ids, "length", None
