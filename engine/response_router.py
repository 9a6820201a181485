"""Sends tokens, scores and usage of each step to the clients that sent the requests.

The order is what the bill rests on. For each step:

1. counters in the in-flight table move, so that a crash from here on bills what is about to be sent;
2. chunks go to the transport, one message per client, including those that end a choice: streaming never
   waits for Redis. Chunks of requests with `whole` set are buffered: a message per token would cost both ends
   more than the token did;
3. usage events go to the journal's thread, which writes them to Redis or disk, frees the rows and only then
   sends `Finished`, a second message, with the chunks that were buffered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.journal.meter import Meter
from engine.outputs import ChunkBuffer, StepOutputs
from engine.protocol import Begun, Finished, Outputs, PromptScores, Submit, TokenChunk
from engine.transport.server_socket import Transport


@dataclass(slots=True)
class _Route:
    """Where a request's tokens go."""

    client: bytes | None
    """None: the client has left. Its request runs until it is aborted, and is billed."""
    row: int
    """The request's row in the in-flight table."""
    buffer: ChunkBuffer | None = None
    """None: chunks are sent as they come."""


@dataclass(frozen=True, slots=True)
class _FinalMessage:
    """What is sent once a request's last usage event is in the journal."""

    client: bytes
    finished: Finished
    chunks: list[TokenChunk]
    begun: list[Begun]


class ResponseRouter:
    """Open requests by id: which client sent each, and which row of the in-flight table counts it.

    All methods belong to the step loop's thread, except `send_final_messages`.
    """

    def __init__(self, transport: Transport, meter: Meter) -> None:
        self._transport = transport
        self._meter = meter
        self._routes: dict[str, _Route] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._routes

    @property
    def request_ids(self) -> list[str]:
        return list(self._routes)

    def open(self, client: bytes, request: Submit, row: int) -> None:
        """Routes the request's responses to the client from now on."""
        self._routes[request.request_id] = _Route(client, row, ChunkBuffer() if request.whole else None)

    def is_owner(self, client: bytes, request_id: str) -> bool:
        """Returns whether the client sent the request, and it is still open."""
        route = self._routes.get(request_id)
        return route is not None and route.client == client

    def requests_of(self, client: bytes) -> list[str]:
        return [request_id for request_id, route in self._routes.items() if route.client == client]

    def disconnect(self, client: bytes) -> list[str]:
        """Stops sending to a client that has left. Returns its open requests."""
        request_ids = self.requests_of(client)
        for request_id in request_ids:
            self._routes[request_id].client = None
        return request_ids

    def publish(self, outputs: StepOutputs) -> None:
        """Counts, sends and journals what a step produced, in the order above."""
        if outputs.chunks or outputs.scores:
            self._send_chunks(outputs.chunks, outputs.scores)
        for event in outputs.started:
            self._meter.started(self._routes[event.request_id].row, event)
        for event in outputs.checkpoints:
            self._meter.checkpoint(self._routes[event.request_id].row, event)
        for finished, event in outputs.finished:
            route = self._routes.pop(finished.request_id)
            receipt = None
            if route.client is not None:
                chunks, begun = [], []
                if route.buffer is not None:
                    chunks = route.buffer.take()
                    begun = route.buffer.first_token_delay(finished.request_id)
                receipt = _FinalMessage(route.client, finished, chunks, begun)
            self._meter.settle(route.row, event, receipt)
        self._meter.end_step()
        for rejected in outputs.rejected:
            route = self._routes.pop(rejected.request_id)
            self._meter.cancel(route.row)
            if route.client is not None:
                self._transport.send(route.client, Outputs(rejected=[rejected]))

    def send_final_messages(self, receipts: list[object]) -> None:
        """Tells clients that their requests have finished: their usage is safe. On the journal's thread."""
        by_client: dict[bytes, Outputs] = {}
        for receipt in receipts:
            if isinstance(receipt, _FinalMessage):
                outputs = by_client.setdefault(receipt.client, Outputs(chunks=[], finished=[], begun=[]))
                outputs.chunks.extend(receipt.chunks)
                outputs.begun.extend(receipt.begun)
                outputs.finished.append(receipt.finished)
        for client, outputs in by_client.items():
            self._transport.send(client, outputs)

    def _send_chunks(self, chunks: Iterable[TokenChunk], scores: Iterable[PromptScores]) -> None:
        chunks_by_client: dict[bytes, list[TokenChunk]] = {}
        scores_by_client: dict[bytes, list[PromptScores]] = {}
        begun_by_client: dict[bytes, list[Begun]] = {}
        routes = self._routes
        rows: list[int] = []
        counts: list[int] = []
        for chunk in chunks:
            route = routes[chunk.request_id]
            rows.append(route.row)
            counts.append(len(chunk.token_ids))
            if route.client is not None:
                due = [chunk] if route.buffer is None else route.buffer.add(chunk)
                if due:
                    chunks_by_client.setdefault(route.client, []).extend(due)
                    if route.buffer is not None:
                        begun_by_client.setdefault(route.client, []).extend(
                            route.buffer.first_token_delay(chunk.request_id)
                        )
        for prompt_scores in scores:
            client = routes[prompt_scores.request_id].client
            if client is not None:
                scores_by_client.setdefault(client, []).append(prompt_scores)
                chunks_by_client.setdefault(client, [])
        self._meter.count(rows, counts)
        for client, client_chunks in chunks_by_client.items():
            client_scores, begun = scores_by_client.get(client, []), begun_by_client.get(client, [])
            self._transport.send(client, Outputs(chunks=client_chunks, scores=client_scores, begun=begun))
