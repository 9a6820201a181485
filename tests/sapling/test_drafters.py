"""The packaged draft adapters: they load, fit the base, and guess what the base and its adapters say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoTokenizer

from examples.sapling import ADAPTERS, BASE, DRAFTERS, tokens
from examples.sapling.draft_contexts import BASE_TARGET, TARGETS, Context, Targets, answered, heldout_prompts
from examples.sapling.drafters import CONFIG, Drafter, guess_logits, load_drafter, packed
from examples.sapling.evaluate import EVALUATION, load_base
from examples.sapling.evaluate_drafters import measure, num_right, num_steps
from examples.sapling.train_drafters import RECIPES, main
from tests.support.arithmetic import arithmetic_threads

OWN = sorted(path.name for path in DRAFTERS.iterdir() if path.name != BASE_TARGET)
BARS = {"pirate": 2.2, "upper-case": 1.4}
"""Tokens per step that an adapter's own draft adapter gives at least."""
TESTED = "to-json"
NUM_PROMPTS = 8
SEED = 11


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model gains nothing from threads, and waiting threads starve whatever runs beside."""
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def targets() -> Targets:
    return Targets(sorted({BASE_TARGET, "sql", TESTED, *OWN}))


@pytest.fixture(scope="module")
def general() -> Drafter:
    return load_drafter(DRAFTERS / BASE_TARGET)


@pytest.fixture(scope="module")
def contexts(targets: Targets) -> list[Context]:
    return answered(targets.model(TESTED), heldout_prompts(TESTED, NUM_PROMPTS, SEED), 64)


class OneRow:
    """A row as an engine computes it: tokens on the row's adapter, placeholders on the draft adapter."""

    def __init__(self, own: str, drafter: Path) -> None:
        model = PeftModel.from_pretrained(load_base(BASE), str(ADAPTERS / own), adapter_name="own")
        model.load_adapter(str(drafter), adapter_name="draft")
        self._model = model.float().eval().get_base_model()
        self._num_known = 0
        for module in self._model.modules():
            if isinstance(module, LoraLayer):
                module.forward = self._forward_of(module)

    def _forward_of(self, module: LoraLayer) -> Callable[[torch.Tensor], torch.Tensor]:
        def delta(name: str, x: torch.Tensor) -> torch.Tensor:
            return module.scaling[name] * module.lora_B[name](module.lora_A[name](x))

        def forward(x: torch.Tensor) -> torch.Tensor:
            known, placeholders = x[:, : self._num_known], x[:, self._num_known :]
            deltas = torch.cat([delta("own", known), delta("draft", placeholders)], dim=1)
            return module.base_layer(x) + deltas

        return forward

    @torch.inference_mode()
    def logits(self, known: list[int], placeholders: list[int]) -> torch.Tensor:
        """Returns `[tokens, vocabulary]` of one causal pass."""
        self._num_known = len(known)
        return self._model(input_ids=torch.tensor([known + placeholders])).logits[0]


@pytest.fixture(scope="module")
def row() -> OneRow:
    return OneRow(TESTED, DRAFTERS / BASE_TARGET)


def test_each_is_a_small_adapter_of_the_base_with_its_settings() -> None:
    assert {path.name for path in DRAFTERS.iterdir()} == set(RECIPES) == {BASE_TARGET, *BARS}
    special = set(AutoTokenizer.from_pretrained(BASE).all_special_ids)
    for folder in DRAFTERS.iterdir():
        assert {path.name for path in folder.iterdir()} == {
            "adapter_config.json",
            "adapter_model.safetensors",
            CONFIG,
        }
        config = json.loads((folder / "adapter_config.json").read_text())
        settings = json.loads((folder / CONFIG).read_text())
        assert config["base_model_name_or_path"] == "sapling"
        assert config["r"] <= 16
        assert settings.keys() == {"placeholder_token_id", "num_ahead"}
        assert settings["placeholder_token_id"] in special
        assert 1 <= settings["num_ahead"] <= 4
        assert (folder / "adapter_model.safetensors").stat().st_size < 700_000


def test_packed_guesses_are_those_of_a_row_on_two_adapters(
    targets: Targets, general: Drafter, contexts: list[Context], row: OneRow
) -> None:
    chosen = contexts[:3]
    anchors = [[one.num_prompt_tokens, len(one.ids) - 4] for one in chosen]
    with torch.inference_mode():
        found = guess_logits(targets.model(TESTED), general, packed(chosen, anchors, general.num_ahead))
    for context, own, logits in zip(chosen, anchors, found, strict=True):
        for group, anchor in enumerate(own):
            known = context.ids[: anchor + 1]
            expected = row.logits(known, [general.placeholder_token_id] * general.num_ahead)
            torch.testing.assert_close(logits[group], expected[len(known) :], atol=2e-3, rtol=1e-3)


def test_counted_steps_are_those_of_decoding_with_the_guesses(
    targets: Targets, general: Drafter, contexts: list[Context], row: OneRow
) -> None:
    chosen = contexts[:2]
    counted = num_right(targets.model(TESTED), general, chosen)
    for context, right in zip(chosen, counted, strict=True):
        ids, drafts, steps = context.ids[: context.num_prompt_tokens + 1], [], 0
        while ids[-1] != tokens.END_ID:
            placeholders = [general.placeholder_token_id] * general.num_ahead
            says = row.logits(ids + drafts, placeholders).argmax(-1).tolist()[len(ids) - 1 :]
            for draft, drawn in zip([*drafts, None], says, strict=False):
                ids.append(drawn)
                if drawn != draft or drawn == tokens.END_ID:
                    break
            is_next_known = says[: len(drafts)] == drafts
            drafts = says[-general.num_ahead :] if is_next_known else []
            steps += 1
        assert ids == context.ids
        assert steps == num_steps(context, right, general.num_ahead)


@pytest.mark.parametrize("target", ["sql", TESTED])
def test_the_general_one_saves_steps(target: str, targets: Targets, general: Drafter) -> None:
    model = targets.model(target)
    heldout = answered(model, heldout_prompts(target, NUM_PROMPTS, SEED), 64)
    assert measure(model, general, heldout)["tokens_per_step"][-1] >= 1.5


@pytest.mark.parametrize("target", OWN)
def test_an_adapters_own_one_saves_more_steps(target: str, targets: Targets, general: Drafter) -> None:
    model = targets.model(target)
    heldout = answered(model, heldout_prompts(target, NUM_PROMPTS, SEED), 96)
    own = measure(model, load_drafter(DRAFTERS / target), heldout)["tokens_per_step"][-1]
    assert own >= BARS[target]
    assert own >= measure(model, general, heldout)["tokens_per_step"][-1] + 0.1


def test_the_measured_table_meets_the_bars() -> None:
    table = json.loads(EVALUATION.read_text())["drafters"]
    assert set(table["targets"]) == set(TARGETS)
    assert table["prompts_per_target"] >= 50
    for name, ways in table["targets"].items():
        assert ("own" in ways["greedy"]) == (name in OWN)
        general, own = (ways["greedy"].get(kind) for kind in ("general", "own"))
        assert general["tokens_per_step"][-1] >= 1
        assert own is None or own["tokens_per_step"][-1] >= BARS[name]


def test_training_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        monkeypatch.setattr(
            "sys.argv", ["train", "upper-case", "--out", str(tmp_path / name), "--shorten", "0.002"]
        )
        main()
    first, second = tmp_path / "first/upper-case", tmp_path / "second/upper-case"
    written = {path.name for path in first.iterdir()}
    assert written == {path.name for path in (DRAFTERS / BASE_TARGET).iterdir()}
    for name in written:
        assert (first / name).read_bytes() == (second / name).read_bytes()
