"""Builds what the engine is sent for a validated request: one Submit per prompt, labelled for the ledger."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.model_names import base_of
from api.openai.reasoning import Thinking
from api.openai.tool_calls import OfferedTools
from api.openai.validation import ValidatedRequest
from billing.request_metadata.content import RequestMetadata
from engine.protocol import PriorityClass, Submit


class Submission(msgspec.Struct, frozen=True):
    """One API request on its way to the engine: a Submit per prompt, and what heads its answer."""

    id: str
    """`chatcmpl-...` or `cmpl-...`: also the ledger's request id, "-<k>" appended for prompt k of a list."""
    created: int
    """Unix seconds."""
    model: str
    """The pinned form of the model's name."""
    fingerprint: str
    tier: PriorityClass
    n: int
    """Choices per prompt."""
    submits: list[Submit]
    stops: tuple[str, ...]
    logprobs: int | None
    tools: OfferedTools | None = None
    """What the model may call."""
    thinking: Thinking | None = None
    """May precede every answer."""
    metadata: RequestMetadata | None = None
    """What the client named the request with, to be kept for its receipt."""
    session: str | None = None
    """Names requests that share a prefix: they go to one engine, if it has room."""

    @property
    def base(self) -> str:
        """The base model, with which the model's name begins."""
        return base_of(self.model)


def build_submission(
    request: ValidatedRequest,
    tier: PriorityClass,
    rate_labels: Mapping[str, str],
    billed_as: str | None = None,
) -> Submission:
    """Returns the request's Submits in the service tier `tier`, at the rate that `rate_labels` name.
    `billed_as`: the service tier in the ledger, if it is another one.
    """
    caller, model = request.caller, request.model
    max_wait_ms = caller.plan.terms[tier].max_wait_ms
    labels = {
        "key_id": caller.key_id,
        "model": model.name,
        "endpoint": request.endpoint,
        "service_tier": billed_as or tier.value,
        **rate_labels,
    }
    if caller.project_id is not None:
        labels["project_id"] = caller.project_id
    if caller.user_id is not None:
        labels["user_id"] = caller.user_id
    if model.adapter_id is not None:
        labels["adapter_id"] = model.adapter_id
        labels["adapter_version"] = str(model.version)
    single = len(request.prompts) == 1
    submits = [
        Submit(
            request_id=request.id if single else f"{request.id}-{position}",
            tenant=caller.tenant_id,
            prompt_ids=prompt_ids,
            sampling=sampling,
            adapter=model.adapter,
            priority=tier,
            n=request.n,
            labels=labels,
            submitted_at=request.submitted_at,
            ttft_target=None if max_wait_ms is None else max_wait_ms / 1000,
            whole=not request.is_streamed,
            grammar=request.grammar,
            reasoning=None if request.thinking is None else request.thinking.reasoning,
            model=request.asked_model,
        )
        for position, (prompt_ids, sampling) in enumerate(zip(request.prompts, request.sampling, strict=True))
    ]
    return Submission(
        id=request.id,
        created=int(request.submitted_at),
        model=model.name,
        fingerprint=request.fingerprint,
        tier=tier,
        n=request.n,
        submits=submits,
        stops=request.sampling[0].stop,
        logprobs=request.sampling[0].logprobs,
        tools=request.tools,
        thinking=request.thinking,
        metadata=request.metadata,
        session=request.session,
    )
