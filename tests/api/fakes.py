"""Stand-ins for what the API is given: an engine that plays a script, keys, models and reports from memory.

The engine hands out the real `Generation`, so what the API sees of it is the client's own behaviour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from adapters.bases import Bases
from adapters.errors import ModelNotFound, ModelNotReady
from adapters.resolver import ModelCard, ResolvedModel
from billing.rates import Rate
from engine.client import EngineGone, Generation, RequestRejected
from engine.protocol import (
    AdapterRef,
    EngineInfo,
    EngineStats,
    FinishReason,
    RejectCode,
    Submit,
    TokenChunk,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from routing.replica_set import RoutingCounts
from tenants.context import TenantContext
from tenants.errors import InvalidApiKey
from tenants.limits.kinds import Amounts, RateView
from tenants.quotas import Contract, Reservation
from tenants.share_terms import ShareTerms
from tests.support.text_base import SPECIAL
from tokenization.codec import TextCodec

CONTEXT = 512
BASE_DIGEST = "b" * 64
KEY = "sk-rs-0123456789abcdefABCDEFkey-one"
RESTRICTED_KEY = "sk-rs-0123456789abcdefABCDEFrestricted"
OTHER_KEY = "sk-rs-0123456789abcdefABCDEFkey-two"
BROWSER_KEY = "sk-rs-0123456789abcdefABCDEFbrowser-k"
ADMIN_KEY = "sk-rs-0123456789abcdefABCDEFadmin-key"


@dataclass
class Step:
    """What the engine says at one moment, and how long it thinks before."""

    chunks: list[TokenChunk] = field(default_factory=list)
    delay: float = 0.0


@dataclass
class Script:
    """How the engine treats one request."""

    steps: list[Step] = field(default_factory=list)
    reject: tuple[RejectCode, str] | tuple[RejectCode, str, float | None] | None = None
    gone_after: int | None = None
    """Number of steps after which the engine dies."""
    hang_after: int | None = None
    """Number of steps after which nothing more comes, until an abort."""
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    scores: list[TokenLogprob] | None = None
    """Of the prompt; as it asks for unless told."""
    held_for: float = 0.0
    """Seconds, as an engine tells with what comes whole."""


class FakeEngine:
    """Plays `script(submit)` for every request."""

    def __init__(self, text: TextCodec) -> None:
        self.text = text
        self.info: EngineInfo | None = EngineInfo(
            engine_id="engine-0",
            incarnation="i1",
            base="sapling",
            base_digest=BASE_DIGEST,
            quantization="none",
            device="cpu",
            context_length=CONTEXT,
            max_prompt_tokens=CONTEXT - 1,
            vocab_size=len(text.vocabulary.token_bytes),
            build="test",
        )
        self.stats: EngineStats | None = None
        self.ready = True
        self.ready_in = 1.0
        self.left_out: list[str] = []
        self.counts = RoutingCounts()
        self.sessions: list[str | None] = []
        """With each request that was submitted."""
        self.submitted: list[Submit] = []
        self.aborted: list[str] = []
        self.billed: dict[str, Usage] = {}
        """What the ledger would have, by request."""
        self.script: Callable[[Submit], Script] = lambda submit: self.says(submit, "Hello world")
        self._open: dict[str, asyncio.Task[None]] = {}
        self.num_unread = 0
        """Kept by the generations."""

    # What ReplicaSet offers ---------------------------------------------------------------------------------

    @property
    def clients(self) -> list[FakeEngine]:
        return [self]

    def latest_stats(self) -> list[EngineStats]:
        return [] if self.stats is None else [self.stats]

    def takes_requests(self) -> dict[str, bool]:
        return {self.info.engine_id: self.ready}

    def submit(self, request: Submit, session: str | None = None) -> Generation:
        if not self.ready:
            raise EngineGone("not connected", self.ready_in)
        self.submitted.append(request)
        self.sessions.append(session)
        generation = Generation(self, request.request_id)  # type: ignore[arg-type]
        self._open[request.request_id] = asyncio.create_task(self._play(request, generation))
        return generation

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        task = self._open.get(request_id)
        if task is not None:
            task.cancel()

    # Scripts ------------------------------------------------------------------------------------------------

    def tokens(self, text: str) -> list[int]:
        return self.text._plain.encode(text, add_special_tokens=False).ids

    def says(
        self,
        submit: Submit,
        text: str,
        finish: FinishReason = "stop",
        stop: str | int | None = None,
        delay: float = 0.0,
        per_step: int = 1,
        **options: Any,
    ) -> Script:
        """Every choice says `text`, `per_step` tokens at a time, and an end of sequence if nothing else stops
        it.
        """
        token_ids = self.tokens(text)
        if finish == "stop" and stop is None:
            token_ids = [*token_ids, SPECIAL.index("<|end|>")]
        return self.emits(submit, token_ids, finish, stop, delay, per_step, **options)

    def emits(
        self,
        submit: Submit,
        token_ids: list[int],
        finish: FinishReason = "stop",
        stop: str | int | None = None,
        delay: float = 0.0,
        per_step: int = 1,
        **options: Any,
    ) -> Script:
        if submit.sampling.max_tokens == 0:
            ends = [TokenChunk(submit.request_id, index, [], None, "length") for index in range(submit.n)]
            return Script([Step(ends)], **options)
        steps = []
        for begin in range(0, len(token_ids), per_step):
            last = begin + per_step >= len(token_ids)
            part = token_ids[begin : begin + per_step]
            steps.append(
                Step(
                    [
                        TokenChunk(
                            submit.request_id,
                            index,
                            part,
                            _logprobs(part, submit.sampling.logprobs),
                            finish if last else None,
                            stop if last else None,
                        )
                        for index in range(submit.n)
                    ],
                    delay,
                )
            )
        return Script(steps, **options)

    async def _play(self, request: Submit, generation: Generation) -> None:
        completion_tokens = 0
        script = self.script(request)

        def usage() -> Usage:
            made = Usage(
                len(request.prompt_ids), script.cached_tokens, completion_tokens, script.reasoning_tokens
            )
            self.billed[request.request_id] = made
            return made

        try:
            await asyncio.sleep(0)
            if script.reject is not None:
                generation.end(None, RequestRejected(*script.reject))
                return
            asked = request.sampling
            scored = _logprobs(request.prompt_ids[asked.score_from :], asked.prompt_logprobs) or []
            generation.scores += scored if script.scores is None else script.scores
            generation.held_for = script.held_for
            for number, step in enumerate(script.steps):
                if number == script.gone_after:
                    generation.end(None, EngineGone("engine at ipc:///secret/path is gone"))
                    return
                if number == script.hang_after:
                    await asyncio.sleep(3600)
                await asyncio.sleep(step.delay)
                for chunk in step.chunks:
                    generation.receive(chunk)
                    completion_tokens += len(chunk.token_ids)
                generation.wake()
            generation.end(usage(), None)
        except asyncio.CancelledError:
            generation.end(usage(), None)


def _logprobs(token_ids: Iterable[int], wanted: int | None) -> list[TokenLogprob] | None:
    if wanted is None:
        return None
    return [
        TokenLogprob(
            token_id, -0.5, [TopLogprob((token_id + rank) % 400, -0.5 - rank) for rank in range(wanted)]
        )
        for token_id in token_ids
    ]


class FakeKeys:
    """Keys by plaintext."""

    def __init__(self) -> None:
        self.callers = {
            KEY: TenantContext("ten_one", "One", "key_one", "inference"),
            OTHER_KEY: TenantContext("ten_two", "Two", "key_two", "inference"),
            RESTRICTED_KEY: TenantContext("ten_one", "One", "key_r", "inference", frozenset({"models.read"})),
            BROWSER_KEY: TenantContext(
                "ten_one", "One", "key_b", "inference", origins=frozenset({"https://app.example"})
            ),
            ADMIN_KEY: TenantContext("ten_one", "One", "key_admin", "admin"),
        }
        self.error: Exception | None = None

    async def resolve(self, plaintext: str, address: str | None = None) -> TenantContext:
        if self.error is not None:
            raise self.error
        if plaintext not in self.callers:
            raise InvalidApiKey
        return self.callers[plaintext]


ADAPTER = AdapterRef("a" * 64, 16)


SHARED = ShareTerms("shr_1", "ten_birch", 2_000_000, 3_000_000, 80)


class FakeModels:
    """The base for all; for tenant one the adapter "pirate", birch's shared one, and "baking", not ready."""

    bases = Bases("sapling")

    async def resolve(self, tenant_id: str, model: str) -> ResolvedModel:
        if model == "sapling":
            return ResolvedModel("sapling")
        if tenant_id == "ten_one" and model in ("sapling:pirate", "sapling:pirate@3", "adp_1"):
            return ResolvedModel("sapling:pirate@3", ADAPTER, "adp_1", 3)
        if tenant_id == "ten_one" and model == "sapling:birch/pirate":
            return ResolvedModel("sapling:birch/pirate@2", ADAPTER, "adp_2", 2, SHARED)
        if tenant_id == "ten_one" and model == "sapling:baking":
            raise ModelNotReady(model, "packing")
        raise ModelNotFound(model)

    async def card(self, tenant_id: str, model: str) -> ModelCard:
        resolved = await self.resolve(tenant_id, model)
        return ModelCard(model, "sapling", 1_700_000_000, "rootstock", resolved.adapter_id, resolved.version)

    async def list(self, tenant_id: str) -> list[ModelCard]:
        cards = [ModelCard("sapling", "sapling", 1_700_000_000, "rootstock")]
        if tenant_id == "ten_one":
            cards.append(
                ModelCard(
                    "sapling:pirate", "sapling", 1_700_000_001, "ten_one", "adp_1", 3, 16, ADAPTER.digest
                )
            )
        return cards


class FakeQuotas:
    """Grants everything unless told otherwise, and remembers what became of it."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.within_contract = True
        self.requests: RateView | None = None
        self.tokens: RateView | None = None
        self.local = self.away = False
        self.num_open = self.num_judged_locally = self.num_refused_locally = 0
        self.reserved: list[Reservation] = []
        self.contracts: list[Contract | None] = []
        self.settled: dict[str, Amounts] = {}
        self.cancelled: list[str] = []

    async def reserve(
        self,
        request_id: str,
        caller: TenantContext,
        model: str,
        worst: Amounts,
        expected: Amounts | None = None,
        contract: Contract | None = None,
        parts: int = 1,
    ) -> Reservation:
        if self.error is not None:
            raise self.error
        self.contracts.append(contract)
        made = Reservation(
            request_id,
            worst,
            expected or worst,
            parts,
            within_contract=self.within_contract,
            requests=self.requests,
            tokens=self.tokens,
            local=self.local,
        )
        self.reserved.append(made)
        return made

    def settle(self, reservation: Reservation, used: Amounts) -> None:
        self._end(reservation)
        self.settled[reservation.request_id] = used

    def cancel(self, reservation: Reservation) -> None:
        self._end(reservation)
        self.cancelled.append(reservation.request_id)

    def _end(self, reservation: Reservation) -> None:
        assert not reservation.ended, "a reservation ends once"
        reservation.ended = True

    @property
    def num_held(self) -> int:
        return sum(not reservation.ended for reservation in self.reserved)


class FakePrices:
    """One version, in micro-USD per token: 1 of input, half of one that was cached, 2 of output."""

    async def rate(
        self, percent: int, submitted_at: float, on_adapter: bool = False, share: ShareTerms | None = None
    ) -> Rate:
        return Rate("prc_one", 1_000_000, 500_000, 2_000_000, percent, share)


class FakeUsage:
    """Remembers what it was asked, answers with one bucket."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def completions(self, tenant_id: str, **query: Any) -> dict[str, Any]:
        self.asked.append((tenant_id, query))
        return {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": query["start_time"],
                    "end_time": query["start_time"] + 86400,
                    "results": [
                        {
                            "object": "organization.usage.completions.result",
                            "input_tokens": 10,
                            "output_tokens": 5,
                            "input_cached_tokens": 4,
                            "input_uncached_tokens": 6,
                            "input_audio_tokens": 0,
                            "output_audio_tokens": 0,
                            "num_model_requests": 1,
                            "project_id": None,
                            "user_id": None,
                            "api_key_id": None,
                            "model": None,
                            "batch": None,
                            "service_tier": None,
                            "api_source": None,
                        }
                    ],
                }
            ],
            "has_more": False,
            "next_page": None,
        }
