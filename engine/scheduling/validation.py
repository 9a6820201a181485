"""Validates a Submit against the engine's limits, so that nothing in it can make a step fail.

The API validates for its users; the engine relies on this check alone, whatever client sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.protocol import PriorityClass, Reasoning, Rejected, SamplingParams, Submit
from engine.reasoning.thinking import token_text

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_BYTES = 8192
"""Of all stop strings together: the automaton has one state per byte."""
MAX_NAME_LEN = 256
MAX_GRAMMAR_BYTES = 1 << 20
MAX_MARKER_LEN = 64
"""Of the texts and tokens around a model's thinking."""
MAX_BUDGET = 1 << 31

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The requests that one engine accepts, and its scheduling parameters."""

    context_length: int
    """Prompt plus completion, tokens."""
    vocab_size: int
    max_batch_tokens: int = 2048
    """Tokens computed in one step."""
    max_rows: int = 256
    """Running requests (choices)."""
    max_waiting: int = 1024
    """Waiting requests (choices). The last part of the queue is reserved for higher classes."""
    max_flex_tokens: int | None = None
    """Tokens of FLEX prompts computed in one step while a higher class has requests. None: no bound."""
    flex_interval: int = 1
    """FLEX prompts get that share in one of this many steps; in the others, one token each."""
    flex_wait_s: float = 30.0
    """Seconds that a FLEX request waits for leftover capacity before FLEX has turns of its own."""
    priority_step_s: float | None = None
    """Seconds that a step may take on average while PRIORITY requests arrive: other classes get no more rows
    than that allows. None: no bound."""
    ttft_targets: Mapping[PriorityClass, float] = field(default_factory=dict)
    """Seconds to the first token, for requests without a target of their own: a request predicted to wait
    longer is rejected. A class without a target waits without limit."""
    slot_patience_s: float = 2.0
    """Seconds that an adapter waits for a slot before it claims one in use."""
    adapter_wait_s: float = 30.0
    """Seconds that a request waits for its adapter before it is rejected as `adapter_loading`."""
    has_masks: bool = True
    """Whether the runner applies masks, by which thinking is ended."""

    def __post_init__(self) -> None:
        for name in ("context_length", "vocab_size", "max_batch_tokens", "max_rows", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_batch_tokens < self.max_rows:
            raise ValueError(
                f"max_batch_tokens ({self.max_batch_tokens}) must be at least max_rows ({self.max_rows}): "
                "every running row may decode one token in a step"
            )
        if self.max_flex_tokens is not None and self.max_flex_tokens < 1:
            raise ValueError(f"max_flex_tokens must be at least 1, not {self.max_flex_tokens}")
        if self.flex_interval < 1:
            raise ValueError(f"flex_interval must be at least 1, not {self.flex_interval}")
        if not self.flex_wait_s >= 0:
            raise ValueError(f"flex_wait_s must not be negative, not {self.flex_wait_s}")
        if self.priority_step_s is not None and not self.priority_step_s > 0:
            raise ValueError(f"priority_step_s must be positive, not {self.priority_step_s}")
        for priority, target in self.ttft_targets.items():
            if not target > 0:
                raise ValueError(f"ttft_targets must be positive, not {target} for {priority}")
        if not self.slot_patience_s >= 0:
            raise ValueError(f"slot_patience_s must not be negative, not {self.slot_patience_s}")
        if not self.adapter_wait_s > 0:
            raise ValueError(f"adapter_wait_s must be positive, not {self.adapter_wait_s}")


def is_digest(text: str) -> bool:
    """Returns whether it is a hex SHA-256. Loaders build paths from digests, so nothing else may pass."""
    return _DIGEST.fullmatch(text) is not None


def validate_submit(
    submit: Submit, limits: EngineLimits, max_tokens_held: int, token_bytes: Sequence[bytes] = ()
) -> Rejected | None:
    """Returns why the engine can never run the request; None when it can.

    `max_tokens_held`: tokens whose keys and values fit into all blocks together. `token_bytes`: the
    vocabulary's.
    """
    problem = (
        _invalid(submit, limits.vocab_size)
        or _invalid_scoring(submit)
        or _invalid_reasoning(submit.reasoning, limits, token_bytes)
    )
    if problem is not None:
        return Rejected(submit.request_id, "invalid", problem)
    prompt_len = len(submit.prompt_ids)
    if prompt_len >= limits.context_length:
        message = (
            f"This model's maximum context length is {limits.context_length} tokens, one of them at least "
            f"for the completion. However, prompt_ids has {prompt_len} tokens"
        )
        return Rejected(submit.request_id, "context_length_exceeded", message)
    limit = length_limit(submit, limits)
    # Keys and values of the last token are never needed.
    if limit - 1 > max_tokens_held:
        message = (
            f"prompt_ids and max_tokens come to {limit} tokens; "
            f"this engine has memory for {max_tokens_held} tokens of one request"
        )
        return Rejected(submit.request_id, "context_length_exceeded", message)
    return None


def length_limit(submit: Submit, limits: EngineLimits) -> int:
    """Returns the longest length of a choice, prompt and completion.

    A request that only scores its prompt draws one token that is dropped: so every request ends in the same
    way.
    """
    return min(len(submit.prompt_ids) + max(submit.sampling.max_tokens, 1), limits.context_length)


def _invalid_scoring(submit: Submit) -> str | None:
    """Returns what is wrong with the scoring parameters, if anything."""
    sampling = submit.sampling
    if sampling.prompt_logprobs is None:
        return None if sampling.score_from == 1 else "score_from needs prompt_logprobs"
    if not 0 <= sampling.prompt_logprobs <= MAX_LOGPROBS:
        return f"prompt_logprobs must be from 0 to {MAX_LOGPROBS}, not {sampling.prompt_logprobs}"
    if not 1 <= sampling.score_from <= len(submit.prompt_ids):
        return f"score_from must be from 1 to {len(submit.prompt_ids)}, not {sampling.score_from}"
    return None


def _invalid(submit: Submit, vocab_size: int) -> str | None:
    """Returns the first problem, naming the field, if any."""
    if not 1 <= len(submit.request_id) <= MAX_NAME_LEN:
        return f"request_id must have 1 to {MAX_NAME_LEN} characters, not {len(submit.request_id)}"
    if not 1 <= len(submit.tenant) <= MAX_NAME_LEN:
        return f"tenant must have 1 to {MAX_NAME_LEN} characters, not {len(submit.tenant)}"
    if not submit.prompt_ids:
        return "prompt_ids must not be empty"
    if min(submit.prompt_ids) < 0 or max(submit.prompt_ids) >= vocab_size:
        return f"prompt_ids must be token ids from 0 to {vocab_size - 1}"
    if not 1 <= submit.n <= MAX_CHOICES:
        return f"n must be from 1 to {MAX_CHOICES}, not {submit.n}"
    if submit.adapter is not None and not is_digest(submit.adapter.digest):
        return "adapter.digest must be 64 lowercase hexadecimal digits"
    if submit.ttft_target is not None and not submit.ttft_target > 0:
        return f"ttft_target must be a number of seconds above 0, not {submit.ttft_target}"
    if not (math.isfinite(submit.submitted_at) and submit.submitted_at >= 0):
        return f"submitted_at must be a time in Unix seconds, not {submit.submitted_at}"
    return (
        _invalid_lengths(submit.sampling, vocab_size)
        or _invalid_numbers(submit.sampling, vocab_size)
        or _invalid_grammar(submit)
    )


def _invalid_grammar(submit: Submit) -> str | None:
    """Checks what a grammar cannot be combined with, before it is compiled."""
    if submit.grammar is None:
        return None
    if len(submit.grammar.source) > MAX_GRAMMAR_BYTES:
        return f"grammar must have at most {MAX_GRAMMAR_BYTES} characters, not {len(submit.grammar.source)}"
    if submit.sampling.min_tokens:
        return "min_tokens cannot be combined with a grammar, which says where the output may end"
    if submit.sampling.ignore_eos:
        return "ignore_eos cannot be combined with a grammar, which says where the output may end"
    return None


def _invalid_reasoning(
    reasoning: Reasoning | None, limits: EngineLimits, token_bytes: Sequence[bytes]
) -> str | None:
    """Checks that thinking can be recognized, and ended."""
    if reasoning is None:
        return None
    if not all(0 < len(marker) <= MAX_MARKER_LEN for marker in (reasoning.start, reasoning.end)):
        return f"reasoning.start and reasoning.end must have 1 to {MAX_MARKER_LEN} characters"
    if reasoning.start != reasoning.start.strip() or reasoning.end != reasoning.end.strip():
        return "reasoning.start and reasoning.end must not begin or end with white space"
    if reasoning.budget is not None and not limits.has_masks:
        return "reasoning.budget is not supported by this engine; leave it out"
    if reasoning.budget is not None and not 0 <= reasoning.budget < MAX_BUDGET:
        return f"reasoning.budget must be from 0 to {MAX_BUDGET - 1} tokens, not {reasoning.budget}"
    ids = (*reasoning.start_ids, *reasoning.end_ids, *reasoning.special)
    if not all(0 <= token_id < limits.vocab_size for token_id in ids):
        return f"reasoning must have token ids from 0 to {limits.vocab_size - 1}"
    if max(len(reasoning.start_ids), len(reasoning.end_ids), len(reasoning.special)) > MAX_MARKER_LEN:
        return f"reasoning.start_ids and reasoning.end_ids must have at most {MAX_MARKER_LEN} tokens"
    start, end = (
        b"".join(token_text(token_id, token_bytes, reasoning.special) for token_id in token_ids)
        for token_ids in (reasoning.start_ids, reasoning.end_ids)
    )
    if start.lstrip() != reasoning.start.encode():
        return f"reasoning.start_ids must be the tokens of {reasoning.start!r}, not of {start!r}"
    if not end.endswith(reasoning.end.encode()):
        return f"reasoning.end_ids must be tokens that end in {reasoning.end!r}, not in {end!r}"
    return None


def _invalid_lengths(sampling: SamplingParams, vocab_size: int) -> str | None:
    """Checks the parameters that decide when a choice ends."""
    fewest = 1 if sampling.prompt_logprobs is None else 0
    if sampling.max_tokens < fewest:
        return f"max_tokens must be at least {fewest}, not {sampling.max_tokens}"
    if not 0 <= sampling.min_tokens <= sampling.max_tokens:
        return f"min_tokens must be from 0 to max_tokens, not {sampling.min_tokens}"
    if len(sampling.stop) > MAX_STOPS:
        return f"stop must have at most {MAX_STOPS} strings, not {len(sampling.stop)}"
    try:
        stop_bytes = [len(stop.encode("utf-8")) for stop in sampling.stop]
    except UnicodeEncodeError:
        return "stop must be valid Unicode"
    if not all(stop_bytes):
        return "stop must not have an empty string"
    if sum(stop_bytes) > MAX_STOP_BYTES:
        return f"stop must have at most {MAX_STOP_BYTES} bytes in all, not {sum(stop_bytes)}"
    if len(sampling.stop_token_ids) > MAX_STOPS:
        return f"stop_token_ids must have at most {MAX_STOPS} ids, not {len(sampling.stop_token_ids)}"
    if not all(0 <= token_id < vocab_size for token_id in sampling.stop_token_ids):
        return f"stop_token_ids must be token ids from 0 to {vocab_size - 1}"
    return None


def _invalid_numbers(sampling: SamplingParams, vocab_size: int) -> str | None:
    """Checks the parameters that change the distribution, and the log-probabilities."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature must be a number of at least 0, not {sampling.temperature}"
    if sampling.top_k < 0:
        return f"top_k must not be negative, not {sampling.top_k}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p must be above 0 and at most 1, not {sampling.top_p}"
    if not 0 <= sampling.min_p <= 1:
        return f"min_p must be from 0 to 1, not {sampling.min_p}"
    for name in ("presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(sampling, name)):
            return f"{name} must be a finite number, not {getattr(sampling, name)}"
    if not (math.isfinite(sampling.repetition_penalty) and sampling.repetition_penalty > 0):
        return f"repetition_penalty must be a number above 0, not {sampling.repetition_penalty}"
    if not all(0 <= token_id < vocab_size for token_id in sampling.logit_bias):
        return f"logit_bias must have token ids from 0 to {vocab_size - 1}"
    if not all(math.isfinite(bias) for bias in sampling.logit_bias.values()):
        return "logit_bias must have finite values"
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        return f"logprobs must be from 0 to {MAX_LOGPROBS}, not {sampling.logprobs}"
    return None
