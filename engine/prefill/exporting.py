"""Computes prompts for other engines and hands over their blocks as steps compute them.

A prompt runs through ordinary scheduling as a request that generates nothing: fairness, adapters and the
prefix cache hold for it as for others. It is neither journaled nor billed: the engine that asked does that.
All methods belong to the step loop's thread; the sender works beside it.

Blocks are handed over when the step that computes them is launched. From then until they are sent they are
held here, whatever becomes of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from engine.kv_cache import BlockPool
from engine.outputs import StepOutputs
from engine.prefill.messages import AskPrompt, PromptEnded
from engine.protocol import Rejected, SamplingParams, Submit
from engine.request import Request
from engine.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class PromptAsked:
    """A client asks for a prompt."""

    client: bytes
    ask: AskPrompt


@dataclass(frozen=True, slots=True)
class PromptCancelled:
    """The client does not wait for a prompt any more."""

    fetch_id: str


@dataclass(frozen=True, slots=True)
class BlocksSent:
    """Blocks were copied out of the cache, or will not be sent."""

    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """Consecutive blocks of a prompt, readable once the step that was launched last is over."""

    client: bytes
    fetch_id: str
    is_shared: bool
    first_block: int
    block_ids: list[int]
    ready: Any
    """What the reader waits for."""


ExportEvent = PromptAsked | PromptCancelled | BlocksSent


class BlockSender(Protocol):
    """Sends to other engines. Reports `ExportEvent`s, later."""

    def mark_launched(self) -> Any:
        """Returns what to wait for until the steps launched so far are over."""
        ...

    def send_blocks(self, blocks: ComputedBlocks) -> None: ...

    def send_end(self, client: bytes, ended: PromptEnded) -> None: ...


@dataclass(slots=True)
class _Export:
    client: bytes
    ask: AskPrompt
    num_sent: int
    """Blocks, from the prompt's first on, that were handed over or are not wanted."""


class PromptExporter:
    """The prompts that are computed for other engines."""

    def __init__(self, scheduler: Scheduler, sender: BlockSender) -> None:
        self._scheduler = scheduler
        self._pool: BlockPool = scheduler.pool
        self._sender = sender
        self._open: dict[str, _Export] = {}
        """By request id."""
        self.num_exported = 0
        """Prompts computed as a whole, since the start."""
        self.num_tokens = 0
        """Tokens whose keys and values were handed over, since the start."""
        self._sending: dict[int, int] = {}
        """How often each block is held for the sender."""

    @property
    def num_open(self) -> int:
        return len(self._open)

    def take(self, event: ExportEvent) -> None:
        """Takes in what the sender reports."""
        if isinstance(event, PromptAsked):
            self._begin(event)
        elif isinstance(event, PromptCancelled):
            self._scheduler.abort(_request_id(event.fetch_id))
        else:
            self._pool.release(event.block_ids)
            for block_id in event.block_ids:
                self._sending[block_id] -= 1
                if not self._sending[block_id]:
                    del self._sending[block_id]

    def abort_all(self) -> None:
        """Ends all prompts; the engines that wait compute them."""
        for request_id in list(self._open):
            self._scheduler.abort(request_id)

    def _begin(self, asked: PromptAsked) -> None:
        ask = asked.ask
        prompt_len = len(ask.prompt_ids)
        submit = Submit(
            request_id=_request_id(ask.fetch_id),
            tenant=ask.tenant,
            prompt_ids=ask.prompt_ids,
            # No token is scored either: this asks for the prompt alone.
            sampling=SamplingParams(max_tokens=0, prompt_logprobs=0, score_from=max(1, prompt_len)),
            adapter=ask.adapter,
            priority=ask.priority,
        )
        problem = ""
        block_size = self._pool.block_size
        if prompt_len % block_size or not 0 <= ask.first_block * block_size <= prompt_len:
            problem = f"{prompt_len} tokens from block {ask.first_block} on are not full blocks"
        elif (rejected := self._scheduler.submit(submit)) is not None:
            problem = rejected.message
        if problem:
            self._sender.send_end(asked.client, PromptEnded(ask.fetch_id, "refused", problem))
        else:
            self._open[submit.request_id] = _Export(asked.client, ask, ask.first_block)

    def launched(self) -> None:
        """Hands over the blocks that the step launched last computes, of prompts for other engines."""
        if not self._open:
            return
        ready: Any = None
        for request in self._scheduler.planned_prompts:
            export = self._open.get(request.request_id)
            num_full = request.computed_len // self._pool.block_size
            if export is None or num_full <= export.num_sent:
                continue
            if ready is None:
                ready = self._sender.mark_launched()
            self._hand_over(export, request, num_full, ready)

    def _hand_over(self, export: _Export, request: Request, num_full: int, ready: Any) -> None:
        block_ids = request.table.block_ids[export.num_sent : num_full]
        self._pool.hold(block_ids)
        for block_id in block_ids:
            self._sending[block_id] = self._sending.get(block_id, 0) + 1
        ask = export.ask
        self._sender.send_blocks(
            ComputedBlocks(export.client, ask.fetch_id, ask.is_shared, export.num_sent, block_ids, ready)
        )
        export.num_sent = num_full
        self.num_tokens += len(block_ids) * self._pool.block_size

    def take_outputs(self, outputs: StepOutputs) -> None:
        """Removes what concerns these prompts from a step's outputs, and reports how they ended."""
        if not self._open:
            return
        chunks = [one for one in outputs.chunks if one.request_id in self._open]
        reasons = {chunk.request_id: chunk.finish_reason for chunk in chunks}
        for finished, _ in outputs.finished:
            if finished.request_id in self._open:
                self._end(finished.request_id, reasons.get(finished.request_id), finished.usage.cached_tokens)
                reasons[finished.request_id] = None
        for rejected in outputs.rejected:
            if rejected.request_id in self._open:
                self._reject(rejected)
                reasons[rejected.request_id] = None
        if reasons:
            outputs.chunks = [one for one in outputs.chunks if one.request_id not in reasons]
            outputs.finished = [one for one in outputs.finished if one[0].request_id not in reasons]
            outputs.rejected = [one for one in outputs.rejected if one.request_id not in reasons]

    def _end(self, request_id: str, reason: str | None, cached_tokens: int) -> None:
        export = self._open.pop(request_id)
        fetch_id = export.ask.fetch_id
        if reason == "length":
            self.num_exported += 1
            ended = PromptEnded(fetch_id, cached_tokens=cached_tokens)
        elif reason == "error":
            ended = PromptEnded(fetch_id, "failed", "its keys and values are not finite")
        else:
            ended = PromptEnded(fetch_id, "refused", "it was cancelled")
        self._sender.send_end(export.client, ended)

    def _reject(self, rejected: Rejected) -> None:
        export = self._open.pop(rejected.request_id)
        ended = PromptEnded(export.ask.fetch_id, "refused", rejected.message)
        self._sender.send_end(export.client, ended)

    def held_ids(self) -> set[int]:
        """Returns the blocks that are held to be sent. For checks."""
        return set(self._sending)


def _request_id(fetch_id: str) -> str:
    return f"prompt-{fetch_id}"
