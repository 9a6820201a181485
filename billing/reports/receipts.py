"""Builds the receipt of one request: its usage, prices, cost and timings.

It is read from the ledger, which has a request about a second after its event was recorded. While the request
runs, its receipt grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from sqlalchemy.ext.asyncio import AsyncSession

from billing.errors import GenerationNotFound
from billing.models import Reversal, UsageRecord
from billing.reports.repository import LedgerRows
from billing.request_ids import response_id_of, submitted_at_of
from billing.request_metadata.content import MetadataSealer, RequestMetadata
from billing.request_metadata.repository import MetadataRepository
from db.session import Database

_CLOCK = timedelta(milliseconds=1)
"""The id and the row both have whole microseconds, but rounded separately."""

OfKey = tuple[str | None, str]
"""(project of the API key, the key): what the key may see."""


class ReceiptAdapter(TypedDict):
    """The adapter that generated."""

    id: str
    version: int | None
    digest: str | None
    """Null for the adapter of another organization."""


class CachedTokens(TypedDict):
    cached_tokens: int
    """Prompt tokens that were in the prefix cache."""


class ReasoningTokens(TypedDict):
    reasoning_tokens: int
    """Completion tokens that the model thought with, before its answer."""


class ReceiptUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class ReceiptPrice(TypedDict):
    """Prices in micro-USD per million tokens."""

    id: str
    input: int
    cached_input: int
    output: int
    percent: int
    """What of these prices the service tier and the plan come to."""


class ReceiptShare(TypedDict):
    """The terms of a shared adapter. Micro-USD per million tokens."""

    id: str
    owner_id: str
    """The organization that the adapter belongs to."""
    input: int
    output: int


class CostDetails(TypedDict):
    """Micro-USD."""

    input: int
    cached_input: int
    output: int
    surcharge: int
    """For another organization's adapter."""


class ReceiptReversal(TypedDict):
    """A cost that was taken back."""

    id: str
    at: str
    request: str | None
    """The request whose cost was taken back."""
    reason: str
    cost_micro_usd: int


class Timings(TypedDict):
    """Of several prompts the longest."""

    queue_seconds: float | None
    """Until the request began to run."""
    first_token_seconds: float | None
    total_seconds: float | None


class ReceiptObject(TypedDict):
    """What a request used, and what it costs."""

    id: str
    object: Literal["generation"]
    created: int
    """Unix seconds."""
    submitted_at: str
    """The same in ISO 8601, with microseconds."""
    status: Literal["completed", "in_progress"]
    finish_reason: str | None
    """Of several prompts, one for each, with commas between; null while the request runs."""
    endpoint: str | None
    model: str | None
    adapter: ReceiptAdapter | None
    """Null for a request on the base model."""
    service_tier: str | None
    """The service tier that the request was served in."""
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    requests: list[str]
    """One id for each prompt."""
    user: str | None
    """What the request had in `user`."""
    safety_identifier: str | None
    metadata: dict[str, str] | None
    """The request's own; null of requests without, and of organizations that store nothing."""
    num_choices: int
    usage: ReceiptUsage
    price: ReceiptPrice | None
    share: ReceiptShare | None
    """The surcharge of a shared adapter; null for your own and for base models."""
    cost_micro_usd: int
    cost_details: CostDetails
    reversals: list[ReceiptReversal]
    """Costs that were taken back."""
    billed_micro_usd: int
    """The cost less what was taken back."""
    timings: Timings
    preemptions: int
    """How often the request was paused for others."""


class Receipts:
    """Builds receipts of one tenant per call."""

    def __init__(self, database: Database, sealer: MetadataSealer | None = None) -> None:
        """`sealer`: decrypts the metadata of requests; without it receipts have none."""
        self._database = database
        self._sealer = sealer

    async def of(self, tenant_id: str, request_id: str, of_key: OfKey | None = None) -> ReceiptObject:
        """Returns the receipt of the request whose response had that id: of a list of prompts, of all of them
        together, or of one by the id with its position appended.

        Raises GenerationNotFound if there is none, it is another tenant's, or not of the project or key that
        `of_key` names; DatabaseUnavailable.
        """
        at = submitted_at_of(request_id)
        records: Sequence[UsageRecord] = ()
        reversals: Sequence[Reversal] = ()
        named = RequestMetadata()
        if at is not None:
            async with self._database.read(tenant_id) as session:
                rows = LedgerRows(session, tenant_id)
                records = await rows.of_request(request_id, at - _CLOCK, at + _CLOCK)
                records = [record for record in records if of_key is None or _shows(record, of_key)]
                if records:
                    reversals = await rows.reversals_of(records)
                    named = await self._metadata(session, tenant_id, request_id, at)
        if not records:
            raise GenerationNotFound(request_id)
        return _receipt(request_id, records, reversals, named)

    async def _metadata(
        self, session: AsyncSession, tenant_id: str, request_id: str, submitted_at: datetime
    ) -> RequestMetadata:
        response_id = response_id_of(request_id)
        sealed = await MetadataRepository(session, tenant_id).sealed(submitted_at, response_id)
        if sealed is None or self._sealer is None:
            return RequestMetadata()
        return self._sealer.open(sealed, tenant_id, response_id)


def _shows(record: UsageRecord, of_key: OfKey) -> bool:
    project_id, key_id = of_key
    return record.key_id == key_id or (project_id is not None and record.project_id == project_id)


def _receipt(
    request_id: str, records: Sequence[UsageRecord], reversals: Sequence[Reversal], named: RequestMetadata
) -> ReceiptObject:
    first = records[0]
    records = sorted(records, key=lambda record: _place(record.request_id))
    cost = sum(record.billed for record in records)
    reversed_cost = sum(reversal.cost for reversal in reversals)
    return {
        "id": request_id,
        "object": "generation",
        "created": int(first.submitted_at.timestamp()),
        "submitted_at": _moment(first.submitted_at),
        "status": "completed" if all(record.finish_reason for record in records) else "in_progress",
        "finish_reason": _joined(records),
        "endpoint": first.endpoint or None,
        "model": first.model or None,
        "adapter": _adapter(first),
        "service_tier": first.service_tier or None,
        "project_id": first.project_id,
        "user_id": first.user_id,
        "api_key_id": first.key_id or None,
        "requests": [record.request_id for record in records],
        "user": named.user,
        "safety_identifier": named.safety_identifier,
        "metadata": named.metadata,
        "num_choices": sum(record.num_choices for record in records),
        "usage": _usage(records),
        "price": _price(first),
        "share": _share(first),
        "cost_micro_usd": cost,
        "cost_details": {
            "input": sum(record.cost - record.cached_cost - record.output_cost for record in records),
            "cached_input": sum(record.cached_cost for record in records),
            "output": sum(record.output_cost for record in records),
            "surcharge": sum(record.surcharge for record in records),
        },
        "reversals": [
            _reversal(reversal)
            for reversal in sorted(reversals, key=lambda reversal: (reversal.at, reversal.id))
        ],
        "billed_micro_usd": cost - reversed_cost,
        "timings": {
            "queue_seconds": _longest(record.queue_seconds for record in records),
            "first_token_seconds": _longest(record.first_token_seconds for record in records),
            "total_seconds": _longest(record.total_seconds for record in records),
        },
        "preemptions": sum(record.preemptions for record in records),
    }


def _adapter(record: UsageRecord) -> ReceiptAdapter | None:
    if record.adapter_id is None:
        return None
    return {
        "id": record.adapter_id,
        "version": record.adapter_version,
        "digest": record.adapter_digest if record.owner_id is None else None,
    }


def _usage(records: Sequence[UsageRecord]) -> ReceiptUsage:
    prompt = sum(record.prompt_tokens for record in records)
    completion = sum(record.completion_tokens for record in records)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(record.cached_tokens for record in records)},
        "completion_tokens_details": {"reasoning_tokens": sum(record.reasoning_tokens for record in records)},
    }


def _price(record: UsageRecord) -> ReceiptPrice | None:
    if not record.price_id:
        return None
    return {
        "id": record.price_id,
        "input": record.input_price,
        "cached_input": record.cached_input_price,
        "output": record.output_price,
        "percent": record.price_percent,
    }


def _share(record: UsageRecord) -> ReceiptShare | None:
    if record.owner_id is None or record.share_id is None:
        return None
    return {
        "id": record.share_id,
        "owner_id": record.owner_id,
        "input": record.share_input_price,
        "output": record.share_output_price,
    }


def _reversal(reversal: Reversal) -> ReceiptReversal:
    return {
        "id": reversal.id,
        "at": _moment(reversal.at),
        "request": reversal.request_id,
        "reason": reversal.reason,
        "cost_micro_usd": -reversal.cost,
    }


def _joined(records: Sequence[UsageRecord]) -> str | None:
    """Returns the finish reasons in order, one if all are the same; None while any prompt runs."""
    reasons = [record.finish_reason for record in records]
    if None in reasons:
        return None
    return str(reasons[0]) if len(set(reasons)) == 1 else ",".join(map(str, reasons))


def _longest(durations: Any) -> float | None:
    known = [duration for duration in durations if duration is not None]
    return max(known) if known else None


def _place(request_id: str) -> tuple[int, str]:
    """Returns a sort key that puts prompts in the order of their list, the tenth after the ninth."""
    return (len(request_id), request_id)


def _moment(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
