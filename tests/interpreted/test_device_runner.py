"""A GPU's runner whole, its kernels interpreted: overlapped steps, draws and scores are the CPU runner's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from adapters.packing import pack
from engine.batch import NO_SLOT, Batch, Drafted, NewRow, Placeholders, Scheduled
from engine.core import EngineCore
from engine.device.gpu_runner import DeviceRunner
from engine.device.graphs import Bucket, StepGraphs
from engine.device.runner_options import BatchLimits, CacheLayout
from engine.environment import EngineEnvironment
from engine.grammar.admission import GrammarAdmission
from engine.kv_cache import BlockPool
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.lora.device_pool import DevicePool
from engine.lora.draft_adapters import DraftAdapter, DraftAdapterChoice
from engine.lora.slots import SlotTable
from engine.model.config import load_config
from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.quantization import DenseLinear
from engine.model.weights import base_digest
from engine.protocol import AdapterRef, Grammar, SamplingParams, Submit
from engine.scheduling.drafter import Drafter
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.validation import EngineLimits
from kernels.attention import device_plan
from kernels.attention.device_plan import DECODED_TOKENS
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft
from tests.engine.grammar import sapling
from tests.engine.plain.guesses import GuessingDrafter
from tests.engine.reasoning.markers import reasoning
from tests.engine.runner.bases import write_base
from tests.engine.runner.rig import make_core, run

# Rows that only fill a bucket compute with what their memory held before, and nothing reads them. Where that
# overflows, NumPy warns; a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

BLOCK_SIZE = 16
MAX_ROWS = 4
MAX_LEN = 48
BUDGET = 20
"""Less than the longest prompt, which is cut."""
NUM_BLOCKS = 40
# Rows that pad a step to its size compute with whatever their memory holds; nothing reads their results.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
CLOSE = 2e-3
"""Sums of other shapes, and adapters' projections in bf16."""


def device_core(
    model: Model,
    artifacts: Path,
    num_slots: int,
    grammars: GrammarAdmission | None = None,
    token_bytes: list[bytes] | None = None,
    *,
    drafter: Drafter | None = None,
    draft_adapters: DraftAdapterChoice | None = None,
    max_rows: int = MAX_ROWS,
) -> EngineCore:
    """Adapters load at once. Nothing is captured: every step is launched kernel by kernel."""
    pool = DevicePool(model.config, num_slots, 4 << 20, 4 << 20, "cpu") if num_slots else None
    core: EngineCore

    def start_load(slot: int, ref: AdapterRef) -> None:
        assert pool is not None
        packed = PackedAdapter.read(artifact_path(artifacts, ref.digest), ref.digest)
        pool.load(slot, pool.adopt(packed))
        core.adapter_loaded(slot, ref.digest)

    cache, limits = CacheLayout(NUM_BLOCKS, BLOCK_SIZE), BatchLimits(max_rows, MAX_LEN, BUDGET)
    runner = DeviceRunner(model, pool, cache, limits)
    scheduler = Scheduler(
        EngineLimits(MAX_LEN, model.config.vocab_size, BUDGET, max_rows),
        BlockPool(NUM_BLOCKS, BLOCK_SIZE),
        SlotTable(max(num_slots, 1), start_load),
        model.config.eos_ids,
        token_bytes or [b"x"] * model.config.vocab_size,
        EngineEnvironment("engine-0", "test", draw_seed=lambda: 7),
        drafter=drafter,
    )
    if draft_adapters is not None:
        scheduler.draft_adapters.choice = draft_adapters
    core = EngineCore(scheduler, runner, grammars=grammars)
    return core


def write_adapter(folder: Path, base: Path, rank: int, modules: list[str]) -> AdapterRef:
    """In bf16, as an arena of a GPU has it, so that both runners multiply by the same numbers."""
    config = load_config(base)
    tensors = lora_tensors(config, modules, rank, seed=rank, std=0.25)
    peft_dir = write_peft(folder / f"peft-{rank}", tensors, r=rank, lora_alpha=16, target_modules=modules)
    return pack(peft_dir, config, base_digest(base), folder / "packed", "bfloat16")


@pytest.mark.parametrize(
    ("with_adapters", "beside"),
    [(False, False), (True, False), (True, True)],
    ids=["base", "adapters", "adapters beside products"],
)
def test_it_answers_and_scores_as_the_cpus_runner(
    with_adapters: bool, beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if beside:
        monkeypatch.setattr(DenseLinear, "letting_in", DenseLinear.__call__)
    write_base(tmp_path / "base", num_hidden_layers=1)
    artifacts = tmp_path / "packed"
    refs: list[AdapterRef | None] = [None]
    if with_adapters:
        for rank, modules in ((4, ["q_proj", "v_proj"]), (8, list(LINEARS))):
            refs.append(write_adapter(tmp_path, tmp_path / "base", rank, modules))
    model = load_model(tmp_path / "base")
    greedy = SamplingParams(4, temperature=0.0, ignore_eos=True, prompt_logprobs=2, logprobs=1)
    drawn = SamplingParams(3, temperature=0.8, top_k=20, seed=11, ignore_eos=True)
    submits = [
        Submit(
            f"r{index}",
            "t",
            [3 + (7 * index + 11 * place) % 200 for place in range(5 + 9 * index)],
            greedy if index % 2 else drawn,
            refs[index % len(refs)],
        )
        for index in range(4 if with_adapters else 2)
    ]
    submits.append(Submit("scored", "t", submits[-1].prompt_ids[:12], SamplingParams(0, prompt_logprobs=1)))
    found = run(device_core(model, artifacts, len(refs) - 1), submits)
    expected = run(
        make_core(model, artifacts, max_batch_tokens=BUDGET, max_rows=MAX_ROWS, context_length=MAX_LEN),
        submits,
    )
    assert found.tokens() == expected.tokens()
    assert len({tuple(tokens) for tokens in found.tokens().values()}) == len(submits)
    assert found.scores.keys() == expected.scores.keys()
    for name, scores in found.scores.items():
        assert [score.token_id for score in scores] == [score.token_id for score in expected.scores[name]]
        for score, other in zip(scores, expected.scores[name], strict=True):
            assert score.logprob == pytest.approx(other.logprob, abs=CLOSE)
            assert [top.logprob for top in score.top] == pytest.approx(
                [top.logprob for top in other.top], abs=CLOSE
            )
    assert found.core.runner.counters.eager_steps > 0


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[Bucket]:
    """Of the steps that ran."""
    found: list[Bucket] = []
    launched = StepGraphs.run

    def run_and_note(graphs: StepGraphs, bucket: Bucket) -> torch.Tensor:
        found.append(bucket)
        return launched(graphs, bucket)

    monkeypatch.setattr(StepGraphs, "run", run_and_note)
    return found


@pytest.fixture(params=[0, DECODED_TOKENS], ids=["chunks", "decoded"])
def decoded_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of steps whose rows with drafts run as chunks of prompts do, or as decoding rows."""
    monkeypatch.setattr(device_plan, "DECODED_TOKENS", request.param)
    return request.param


def test_with_drafts_it_answers_as_without(tmp_path: Path, sizes: list[Bucket], decoded_tokens: int) -> None:
    write_base(tmp_path / "base", num_hidden_layers=1)
    ref = write_adapter(tmp_path, tmp_path / "base", 4, ["q_proj", "v_proj"])
    model = load_model(tmp_path / "base")
    kinds = [
        SamplingParams(7, temperature=0.0, ignore_eos=True, logprobs=1),
        SamplingParams(7, temperature=0.9, top_k=20, top_p=0.9, seed=11, ignore_eos=True),
        SamplingParams(7, temperature=0.8, seed=5, frequency_penalty=1.5, repetition_penalty=1.4),
        SamplingParams(7, temperature=0.0, presence_penalty=2.0, logit_bias={5: 3.0}, min_tokens=5),
    ]
    submits = [
        Submit(
            f"r{index}",
            "t",
            [3 + (7 * index + 11 * place) % 200 for place in range(4 + 5 * index)],
            params,
            ref if index % 2 else None,
        )
        for index, params in enumerate(kinds)
    ]
    without = run(device_core(model, tmp_path / "packed", 1), submits)
    drafter = GuessingDrafter(
        lambda request: without.answers[request.request_id, 0].token_ids,
        Random(3),
        vocab_size=model.config.vocab_size,
        skill=0.8,
    )
    core = device_core(model, tmp_path / "packed", 1, drafter=drafter, max_rows=BUDGET)
    sizes.clear()
    found = run(core, submits)
    assert found.tokens() == without.tokens()
    assert all(size.decode_only for size in sizes) == bool(decoded_tokens)
    # Rows that ended with drafts in flight are taken by others, in the opposite order.
    assert run(core, submits[::-1]).tokens() == without.tokens()
    assert drafter.num_drafts > drafter.num_accepted > 5
    for key, answer in found.answers.items():
        expected = [score.logprob for score in without.answers[key].logprobs]
        assert [score.logprob for score in answer.logprobs] == pytest.approx(expected, abs=CLOSE)


def test_with_placeholders_it_answers_as_without_and_guesses_as_the_cpus_runner(
    tmp_path: Path, decoded_tokens: int
) -> None:
    write_base(tmp_path / "base", num_hidden_layers=1)
    ref = write_adapter(tmp_path, tmp_path / "base", 4, ["q_proj", "v_proj"])
    draft = write_adapter(tmp_path, tmp_path / "base", 8, list(LINEARS))
    model = load_model(tmp_path / "base")
    kinds = [
        SamplingParams(12, temperature=0.0, ignore_eos=True, logprobs=1),
        SamplingParams(12, temperature=0.8, seed=5, frequency_penalty=1.5, repetition_penalty=1.4),
        SamplingParams(12, temperature=0.0, presence_penalty=2.0, logit_bias={5: 3.0}, min_tokens=5),
    ]
    submits = [
        Submit(
            f"r{index}",
            "t",
            [3 + (7 * index + 11 * place) % 200 for place in range(4 + 5 * index)],
            params,
            ref if index % 2 else None,
        )
        for index, params in enumerate(kinds)
    ]
    artifacts = tmp_path / "packed"
    without = run(device_core(model, artifacts, 1), submits)
    choice = DraftAdapterChoice(DraftAdapter(draft, 9, 3))
    drafter = GuessingDrafter(
        lambda request: without.answers[request.request_id, 0].token_ids,
        Random(3),
        vocab_size=model.config.vocab_size,
        skill=0.8,
        most=1,
        ahead=3,
    )
    core = device_core(model, artifacts, 2, drafter=drafter, draft_adapters=choice, max_rows=20)
    assert run(core, submits).tokens() == without.tokens()
    assert drafter.num_guesses > 10
    assert drafter.num_guesses_drafted > 2
    assert drafter.num_accepted > 2

    def guesses(core: EngineCore) -> list[list[int]]:
        """Of two rows, one with a draft and a penalty, the other with placeholders alone."""
        for one in (ref, draft):
            core.prefetch(one)
        core.step()
        slots = [core.scheduler.slot_allocator.slots.find(one.digest).index for one in (ref, draft)]
        prompts = [[5, 17, 93, 40], [8, 120, 33]]
        rows = [
            NewRow(
                row, f"r{row}", prompt, len(prompt), 0, [1 + row], kinds[row], 5, slots[0] if row else NO_SLOT
            )
            for row, prompt in enumerate(prompts)
        ]
        first = [Scheduled(row, len(prompt), True) for row, prompt in enumerate(prompts)]
        core.runner.launch(Batch(0, new_rows=rows, scheduled=first)).result()
        batch = Batch(
            1,
            scheduled=[Scheduled(0, 4, True), Scheduled(1, 4, True)],
            drafted=[Drafted(0, []), Drafted(1, [77])],
            placeholders=[Placeholders(0, 3, 9, slots[1]), Placeholders(1, 2, 9, slots[1])],
        )
        step = core.runner.launch(batch)
        return step.result().guesses

    cpu = make_core(model, artifacts, num_slots=2, max_batch_tokens=BUDGET, context_length=MAX_LEN)
    found = guesses(device_core(model, artifacts, 2, max_rows=16))
    assert found == guesses(cpu)
    assert [len(one) for one in found] == [3, 2]


def overwrite_logits(model: Model) -> None:
    """Has the model write all logits into the same memory, as it does on a GPU."""
    logits_of = model.logits
    memory = torch.zeros(64, model.config.vocab_size)

    def logits(hidden_SH: torch.Tensor) -> torch.Tensor:
        return memory[: len(hidden_SH)].copy_(logits_of(hidden_SH))

    model.logits = logits  # type: ignore[method-assign]


def test_rows_with_and_without_a_grammar_answer_as_the_cpus_runner(tmp_path: Path) -> None:
    """The draws of a step with constrained rows are launched after the step before it was committed, and
    after the scores of its prompts.
    """
    raw = json.loads((sapling.BASE / "config.json").read_text())
    write_base(
        tmp_path / "base", num_hidden_layers=1, vocab_size=raw["vocab_size"], eos_token_id=raw["eos_token_id"]
    )
    model = load_model(tmp_path / "base")
    grammar = Grammar("regex", "[ab]{2}-[0-9]{1,3}")
    submits = [
        sapling.submission("held", grammar, max_tokens=12, logprobs=1, prompt_ids=[5, 6, 7]),
        sapling.submission("free", None, max_tokens=6, prompt_ids=[8, 9, 10], prompt_logprobs=1),
        sapling.submission(
            "shaped", grammar, max_tokens=12, seed=5, presence_penalty=1.0, prompt_ids=[8, 9, 11]
        ),
        sapling.submission("late", grammar, max_tokens=12, seed=6, top_p=0.9, prompt_ids=list(range(20, 45))),
        sapling.submission("last", grammar, max_tokens=12, temperature=0.0, prompt_ids=[70, 71]),
    ]
    expected = run(
        make_core(
            model,
            tmp_path,
            max_batch_tokens=BUDGET,
            max_rows=MAX_ROWS,
            context_length=MAX_LEN,
            grammars=sapling.compiled(model, grammar),
        ),
        submits,
    )
    overwrite_logits(model)
    found = run(device_core(model, tmp_path, 0, sapling.compiled(model, grammar)), submits)
    assert found.tokens() == expected.tokens()
    for (name, _), answer in found.answers.items():
        if name != "free":
            assert re.fullmatch(grammar.source, sapling.text_of(answer.token_ids)), name
            assert answer.finish_reason == "stop"


def test_rows_that_think_answer_as_the_cpus_runner(tmp_path: Path) -> None:
    """Budgets are found spent a step after the token that spends them was launched."""
    raw = json.loads((sapling.BASE / "config.json").read_text())
    write_base(
        tmp_path / "base", num_hidden_layers=1, vocab_size=raw["vocab_size"], eos_token_id=raw["eos_token_id"]
    )
    model = load_model(tmp_path / "base")
    grammar = Grammar("regex", "[ab]{2}-[0-9]{1,3}")
    fields: dict[str, Any] = {"max_tokens": 9, "temperature": 0.9, "ignore_eos": True}
    submits = [
        sapling.submission("free", None, prompt_ids=[8, 9], **fields),
        sapling.submission("none", None, prompt_ids=[5, 6, 7], reasoning=reasoning(0), logprobs=1, **fields),
        sapling.submission("some", None, prompt_ids=[5, 6, 7], reasoning=reasoning(3), **fields),
        sapling.submission("much", None, prompt_ids=[15, 6], reasoning=reasoning(30), **fields),
        sapling.submission(
            "held",
            grammar,
            prompt_ids=[15, 7],
            reasoning=reasoning(2),
            seed=5,
            presence_penalty=1.0,
            max_tokens=20,
        ),
    ]
    bytes_of = sapling.VOCABULARY.token_bytes
    found = run(device_core(model, tmp_path, 0, GrammarAdmission(sapling.compiler(model)), bytes_of), submits)
    expected = run(
        make_core(
            model,
            tmp_path,
            max_batch_tokens=BUDGET,
            max_rows=MAX_ROWS,
            context_length=MAX_LEN,
            token_bytes=bytes_of,
            grammars=GrammarAdmission(sapling.compiler(model)),
        ),
        submits,
    )
    assert found.tokens() == expected.tokens()
    end = list(reasoning(0).end_ids)
    for name, budget in (("none", 0), ("some", 3), ("held", 2)):
        tokens = found.answers[name, 0].token_ids
        assert tokens[budget : budget + len(end)] == end
        assert found.usage[name].usage.reasoning_tokens == budget + len(end)
    assert re.fullmatch(grammar.source, sapling.text_of(found.answers["held", 0].token_ids[2 + len(end) :]))
    assert found.usage["much"].usage.reasoning_tokens == 9
