"""Compares what clients received during upgrades with what the ledger bills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.upgrade_traffic import Answer

Ledger = Mapping[str, tuple[int, int]]
"""Prompt and completion tokens by request."""
MAX_SHOWN = 20


def compared(answers: Sequence[Answer], ledger: Ledger) -> dict[str, Any]:
    """Returns the number of requests and how many of them failed, were lost or counted double.

    `lost`: the ledger lacks the request, or tokens that its client received. `double`: the ledger has more
    tokens than its client received of an answer that is whole, or a request that no client made. A request
    that failed before its client learned its id may have one row that looks like the latter.
    """
    known = {answer.id for answer in answers if answer.id}
    strange = len(ledger.keys() - known)
    nameless = sum(answer.failed and not answer.id for answer in answers)
    failures = [f"{answer.during}: {answer.error}" for answer in answers if answer.failed]
    return {
        "requests": len(answers),
        "streams": sum(answer.streamed for answer in answers),
        "tokens": sum(answer.received for answer in answers),
        "failed": len(failures),
        "lost": sum(_is_lost(answer, ledger) for answer in answers),
        "double": sum(_is_double(answer, ledger) for answer in answers) + max(0, strange - nameless),
        "failures": failures[:MAX_SHOWN],
    }


def is_clean(figures: Mapping[str, Any]) -> bool:
    return bool(figures["requests"]) and not any(figures[name] for name in ("failed", "lost", "double"))


def _is_lost(answer: Answer, ledger: Ledger) -> bool:
    if not answer.id:
        return False
    prompt, completion = ledger.get(answer.id, (0, 0))
    owed = answer.usage or (0, 0)
    return answer.id not in ledger or completion < answer.received or prompt < owed[0]


def _is_double(answer: Answer, ledger: Ledger) -> bool:
    if answer.failed or answer.usage is None:
        return False
    prompt, completion = ledger.get(answer.id, (0, 0))
    return prompt > answer.usage[0] or completion > answer.received
