"""Runs a request for a response: opens its turn, generates through the steps of chat requests, stores it."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from fastapi import Request, Response

from api.openai.answer_trace import trace_answer
from api.openai.outcome import OutcomeRecorder
from api.openai.pipeline import read_body
from api.openai.reservation import RequestReservation, reserve
from api.openai.respond import new_answer, released
from api.openai.response_bodies import JsonAnswer
from api.openai.service_tier import requested_tier
from api.openai.stream import AbortOnDisconnect, EventStream
from api.ratelimit import rate_headers
from api.request_trace import mark_phase
from api.response_writer import response_writer_for
from api.responses.bodies import ended, failed, shown
from api.responses.exchange import Exchange
from api.responses.generation import validated_exchange
from api.responses.output import read_output
from api.responses.queueing import enqueue
from api.responses.schemas import decode_response
from api.responses.stream import ResponseEvents
from api.responses.turns import is_stored, open_turn, store
from api.services import Services
from billing.request_ids import new_request_id
from conversations.owner import Owner
from engine.protocol import Usage
from tenants.context import TenantContext

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


async def create_response(request: Request, services: Services, caller: TenantContext) -> Response:
    """Answers a request for a response of an authenticated caller. Raises what the route documents."""
    with OutcomeRecorder(caller, services.sla, services.metrics) as outcome:
        mark_phase(request, "authenticate")
        body = await read_body(request, decode_response)
        will_store = is_stored(body, caller, services)
        submitted_at = time.time()
        response_id = new_request_id("resp", submitted_at)
        turn = await open_turn(services, caller, body, lock_for=response_id)
        exchange = Exchange(response_id, submitted_at, body, caller, turn, will_store)
        try:
            validated = await validated_exchange(services, exchange)
            request.state.log |= {"model": validated.model.name, "id": response_id}
            outcome.tier = requested_tier(body.service_tier, caller)
            if body.background:
                return await enqueue(services, exchange, validated.model.name, outcome.tier)
            mark_phase(request, "prepare")
            reserved = await reserve(validated, outcome.tier, services.quotas, services.prices)
            mark_phase(request, "reserve")
            return await _respond(request, services, exchange, reserved, outcome)
        except BaseException:
            await turn.release()
            raise


async def _respond(
    request: Request,
    services: Services,
    exchange: Exchange,
    reserved: RequestReservation,
    outcome: OutcomeRecorder,
) -> Response:
    """Returns the response once the engine has begun to answer, or, without a stream, once it has ended."""
    submission, reservation = reserved.submission, reserved.reservation
    outcome.tier = submission.tier
    output = exchange.output()
    body = exchange.body(submission.model, submission.tier.value)

    async def finish(usage: Usage) -> Json:
        return await _end(services, exchange, ended(body, output.finish_reason, usage), output.items)

    async def fail(error: Exception) -> Json:
        if exchange.turn.lock is not None:  # a failed turn changes nothing of the conversation
            await exchange.turn.release()
            return shown(failed(body, error), output.items)
        return await _end(services, exchange, failed(body, error), output.items)

    with released(reserved):
        reserved.trace = trace_answer(request, submission)
        answer = new_answer(services, reserved, outcome, request.state.arrived, is_chat=True)
        writer = response_writer_for(request.scope, request.receive, request._send)
        await answer.submit(services.pools[submission.base].engine, services.request_metadata)
        headers = rate_headers(reservation.requests, reservation.tokens, reservation.local)
        if exchange.request.stream:
            with AbortOnDisconnect(writer, answer):
                await answer.admitted()
            events = ResponseEvents(body, output, finish, fail, exchange.turn.release)
            return EventStream(answer, events, services.limits.ping_interval, services.metrics, headers)

        with AbortOnDisconnect(writer, answer):
            await read_output(answer, output)
        return JsonAnswer(_encode(await finish(answer.usage)), headers)


async def _end(services: Services, exchange: Exchange, body: Json, output: list[Json]) -> Json:
    """Stores the response where that is asked for; returns its whole object."""
    if exchange.is_stored:
        owner = Owner.of(exchange.caller)
        if not await store(services, owner, exchange.record(body, output), exchange.turn.lock):
            body = {**body, "store": False}
    return shown(body, output)
