"""Prompts that an engine computes for others: what is handed over when, and what stays held until when."""

from __future__ import annotations

from random import Random

import pytest

from engine.prefill.exporting import BlocksSent, ComputedBlocks, PromptAsked, PromptCancelled, PromptExporter
from engine.prefill.messages import AskPrompt, PromptEnded
from engine.protocol import PriorityClass
from tests.engine.plain.harness import Engine, submission


class Sender:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.blocks: list[ComputedBlocks] = []
        self.ends: list[PromptEnded] = []

    def mark_launched(self) -> str:
        return "mark"

    def send_blocks(self, blocks: ComputedBlocks) -> None:
        assert blocks.ready == "mark"
        self.blocks.append(blocks)

    def send_end(self, client: bytes, ended: PromptEnded) -> None:
        self.ends.append(ended)


def exporting(depth: int = 0, **limits: int) -> tuple[Engine, Sender]:
    engine, sender = Engine(depth=depth, **limits), Sender()
    engine.core.exporter = PromptExporter(engine.scheduler, sender)
    return engine, sender


def prompt(length: int, seed: int = 0) -> list[int]:
    random = Random(seed)
    return [random.randrange(60) for _ in range(length)]


def ask(fetch_id: str, prompt_ids: list[int], first_block: int = 0, tenant: str = "acme") -> PromptAsked:
    return PromptAsked(
        b"c", AskPrompt(fetch_id, tenant, prompt_ids, None, PriorityClass.DEFAULT, first_block)
    )


def release_all(engine: Engine, sender: Sender) -> None:
    for blocks in sender.blocks:
        engine.core.prompt_event(BlocksSent(blocks.block_ids))
    sender.blocks.clear()
    engine.run()


@pytest.mark.parametrize("depth", [0, 1])
def test_blocks_are_handed_over_step_by_step_and_held_until_they_are_sent(depth: int) -> None:
    engine, sender = exporting(depth, max_batch_tokens=16)
    engine.core.prompt_event(ask("f", prompt(40), first_block=1))
    engine.run()
    assert [(one.first_block, len(one.block_ids)) for one in sender.blocks] == [(1, 3), (4, 4), (8, 2)]
    assert sender.ends == [PromptEnded("f")]
    assert engine.core.stats.blocks_used == 9, "the request has ended, and what is to be sent is held"
    assert not engine.chunks
    assert not engine.finished
    assert (engine.core.stats.prompts_exported, engine.core.stats.exported_tokens) == (1, 36)
    release_all(engine, sender)
    engine.check_idle()


def test_a_prefix_is_computed_once_and_sent_again() -> None:
    engine, sender = exporting()
    engine.core.prompt_event(ask("one", prompt(40)))
    engine.run()
    release_all(engine, sender)
    computed = engine.core.stats.prefill_tokens
    engine.core.prompt_event(ask("two", [*prompt(40), *prompt(8, 1)]))
    engine.run()
    assert engine.core.stats.prefill_tokens == computed + 8
    assert sender.ends[-1] == PromptEnded("two", cached_tokens=40)
    assert sum(len(one.block_ids) for one in sender.blocks) == 12
    engine.core.prompt_event(ask("theirs", prompt(40), tenant="bolt"))
    engine.run()
    assert sender.ends[-1].cached_tokens == 0
    release_all(engine, sender)
    engine.check_idle()


def test_requests_of_clients_run_beside_them_and_only_these_are_published() -> None:
    engine, sender = exporting(max_batch_tokens=16)
    engine.submit(submission("served", prompt(9, 1), 12))
    engine.core.prompt_event(ask("f", prompt(40)))
    engine.run()
    assert engine.finished.keys() == {"served"}
    assert [end.cause for end in sender.ends] == [""]
    release_all(engine, sender)
    engine.check_idle()


def test_a_cancelled_prompt_stops_and_holds_only_what_is_being_sent() -> None:
    engine, sender = exporting(max_batch_tokens=16)
    engine.core.prompt_event(ask("f", prompt(48)))
    engine.step()
    engine.core.prompt_event(PromptCancelled("f"))
    engine.run()
    assert [end.cause for end in sender.ends] == ["refused"]
    assert engine.core.stats.blocks_used == 4
    assert engine.core.stats.prefill_tokens < 48
    release_all(engine, sender)
    engine.check_idle()


def test_what_cannot_be_computed_is_refused_and_says_why() -> None:
    engine, sender = exporting()
    for fetch_id, prompt_ids, first_block in (
        ("ragged", prompt(10), 0),
        ("outside", prompt(8), 3),
        ("empty", [], 0),
        ("long", prompt(64), 0),
        ("unknown", [10_000] * 8, 0),
    ):
        engine.core.prompt_event(ask(fetch_id, prompt_ids, first_block))
    engine.core.prompt_event(ask("twice", prompt(8)))
    engine.core.prompt_event(ask("twice", prompt(8)))
    engine.run()
    ends = {end.fetch_id: end for end in sender.ends if end.cause}
    assert ends.keys() == {"ragged", "outside", "empty", "long", "unknown", "twice"}
    assert all(end.cause == "refused" and end.reason for end in ends.values())
    release_all(engine, sender)
    engine.check_idle()


def test_values_that_are_not_finite_end_a_prompt_as_failed() -> None:
    engine, sender = exporting()
    engine.runner.fail_prompts.add(tuple(prompt(8)))
    engine.core.prompt_event(ask("f", prompt(8)))
    engine.run()
    assert [end.cause for end in sender.ends] == ["failed"]
    release_all(engine, sender)
    engine.check_idle()
