"""Builds requests from a Submit: validates it, makes the group, and adds its choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.grammar.constraint import CompiledGrammar, RowConstraint
from engine.kv_cache import BlockPool, BlockTable, prefix_root
from engine.protocol import Reasoning, Rejected, Submit
from engine.reasoning.constraint import BudgetConstraint, DeferredGrammar, EndMarker
from engine.reasoning.thinking import Thinking
from engine.request import Request, RequestGroup
from engine.scheduling.validation import EngineLimits, length_limit, validate_submit
from engine.stops import StopMatcher

MAX_END_MARKERS = 8
"""Markers of the end of thinking that are remembered; a base model has one."""


class RequestBuilder:
    """Numbers groups by arrival, draws missing seeds, and sets up what ends each choice."""

    def __init__(
        self,
        limits: EngineLimits,
        pool: BlockPool,
        eos_ids: Iterable[int],
        draw_seed: Callable[[], int],
        token_bytes: Sequence[bytes] = (),
    ) -> None:
        """`token_bytes` is the vocabulary's, to find where thinking ends."""
        self._limits = limits
        self._pool = pool
        self._eos_stops: dict[int, int | None] = dict.fromkeys(eos_ids)
        self._draw_seed = draw_seed
        self._num_groups = 0
        self._token_bytes = token_bytes
        self._end_markers: dict[str, EndMarker] = {}

    def rejection(self, submit: Submit, num_slots: int) -> Rejected | None:
        """Returns why the engine can never run the request; None when it can."""
        max_tokens_held = self._pool.num_blocks * self._pool.block_size
        rejected = validate_submit(submit, self._limits, max_tokens_held, self._token_bytes)
        if rejected is not None:
            return rejected
        if submit.adapter is not None and not num_slots:
            return Rejected(submit.request_id, "adapter_unavailable", "this engine has no adapter slots")
        return None

    def group(self, submit: Submit, grammar: CompiledGrammar | None) -> RequestGroup:
        """Returns a group without choices; `grammar` is the submit's, compiled.

        A request without a seed is given one, so that a preemption changes nothing.
        """
        sampling = submit.sampling
        limit = length_limit(submit, self._limits)
        seed = self._draw_seed() if sampling.seed is None else sampling.seed
        self._num_groups += 1
        return RequestGroup(submit, self._num_groups, limit, seed, grammar)

    def add_choices(self, group: RequestGroup, num_choices: int) -> list[Request]:
        """Adds and returns the group's next choices."""
        submit = group.submit
        stop_ids: dict[int, int | None] = {token_id: token_id for token_id in submit.sampling.stop_token_ids}
        if not submit.sampling.ignore_eos:
            stop_ids |= self._eos_stops
        matcher = StopMatcher(submit.sampling.stop) if submit.sampling.stop else None
        root = prefix_root(submit.tenant, submit.adapter.digest if submit.adapter else None)
        first = len(group.choices)
        for index in range(first, first + num_choices):
            own_matcher = None if matcher is None else matcher.fresh()
            table = BlockTable(self._pool, root)
            thinking, constraint = self._constraints(submit.reasoning, group.grammar)
            group.choices.append(Request(group, index, table, stop_ids, own_matcher, thinking, constraint))
        return group.choices[first:]

    def _constraints(
        self, reasoning: Reasoning | None, grammar: CompiledGrammar | None
    ) -> tuple[Thinking | None, RowConstraint | None]:
        """Returns what follows one choice's thinking, and what its tokens are held to."""
        answer = None if grammar is None else grammar.demand()
        if reasoning is None:
            return None, answer
        thinking = Thinking(reasoning, self._token_bytes)
        if answer is not None:
            return thinking, DeferredGrammar(reasoning, thinking, answer, self._end_marker(reasoning))
        return thinking, None if reasoning.budget is None else BudgetConstraint(reasoning, thinking)

    def _end_marker(self, reasoning: Reasoning) -> EndMarker:
        if reasoning.end not in self._end_markers:
            if len(self._end_markers) >= MAX_END_MARKERS:
                self._end_markers.clear()
            self._end_markers[reasoning.end] = EndMarker(reasoning, self._token_bytes)
        return self._end_markers[reasoning.end]
