"""The packaged weights: they load as they stand, stay small, and do what the model card says."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from examples.sapling import ADAPTERS, BASE, DRAFTERS, WEIGHTS, tokens
from examples.sapling.evaluate import EVALUATION, MAX_NEW_TOKENS, answers
from examples.sapling.tasks import TASKS, Example, Task
from examples.sapling.train_adapters import RECIPES
from tests.support.arithmetic import arithmetic_threads

NUM_EXAMPLES = 12
SEED = 7


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model gains nothing from threads, and waiting threads starve whatever runs beside."""
    with arithmetic_threads(1):
        yield


@pytest.fixture(scope="module")
def encoder() -> tokens.Encoder:
    return tokens.Encoder(BASE)


@pytest.fixture(scope="module")
def base() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def adapted() -> PeftModel:
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    names = list(TASKS)
    adapted = PeftModel.from_pretrained(model, str(ADAPTERS / names[0]), adapter_name=names[0])
    for name in names[1:]:
        adapted.load_adapter(str(ADAPTERS / name), adapter_name=name)
    return adapted.float().eval()


def test_weights_stay_small_and_in_bfloat16() -> None:
    sizes = {path: path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()}
    drafters = sum(size for path, size in sizes.items() if path.is_relative_to(DRAFTERS))
    assert drafters <= 3_000_000
    assert sum(sizes.values()) - drafters <= 20_000_000
    for path in WEIGHTS.rglob("*.safetensors"):
        with safe_open(path, "pt") as tensors:
            assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"BF16"}  # noqa: SIM118


def test_configs_name_no_folder_of_the_machine_they_were_made_on() -> None:
    for path in [*WEIGHTS.glob("*/*/adapter_config.json"), BASE / "config.json"]:
        config = json.loads(path.read_text())
        assert config.get("base_model_name_or_path", "sapling") == "sapling"
        assert "_name_or_path" not in config


def test_every_task_has_its_adapter_in_the_shape_of_its_recipe() -> None:
    assert {path.name for path in ADAPTERS.iterdir()} == set(TASKS) == set(RECIPES)
    for name, recipe in RECIPES.items():
        config = json.loads((ADAPTERS / name / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (
            recipe.rank,
            recipe.alpha,
            recipe.rslora,
        )
        assert set(config["target_modules"]) == set(recipe.targets)
        assert (config["rank_pattern"], config["alpha_pattern"]) == (
            recipe.rank_pattern,
            recipe.alpha_pattern,
        )
    assert {recipe.rank for recipe in RECIPES.values()} == {4, 8, 16, 32}


def test_tokenizer_round_trips_and_renders_chats_like_the_encoder(encoder: tokens.Encoder) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    for text in [
        "the red fox runs",
        "  two  spaces\n\ttab",
        "305 + 96 = 401",
        '{"name": "Tom"}',
        "naïve 日本 🌱",
        "don't",
    ]:
        assert encoder.decode(encoder.text(text)) == text
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert len(encoder.text("305")) == 3
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "the red fox runs"}]
    rendered = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert rendered == encoder.prompt("the red fox runs", system="Be kind.")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        0,
        tokens.END_ID,
        tokens.PAD_ID,
    )


def test_generation_stops_at_both_ends() -> None:
    assert GenerationConfig.from_pretrained(BASE).eos_token_id == [tokens.END_ID, tokens.EOS_ID]


def test_the_base_talks(base: torch.nn.Module, encoder: tokens.Encoder) -> None:
    capital, story = answers(
        base, encoder, ["What is the capital of France?", "Tell me a story about a fox."], 96
    )
    assert capital == "The capital of France is Paris."
    assert "fox" in story
    assert len(story.split()) > 30


@pytest.mark.parametrize("name", TASKS)
def test_the_adapter_does_its_task(name: str, adapted: PeftModel, encoder: tokens.Encoder) -> None:
    task, examples = TASKS[name], TASKS[name].examples("heldout", NUM_EXAMPLES, SEED)
    adapted.set_adapter(name)
    found = answers(adapted, encoder, [example.prompt for example in examples], MAX_NEW_TOKENS)
    assert _share(task, examples, found) >= 0.9


def test_the_base_alone_does_no_task(base: torch.nn.Module, encoder: tokens.Encoder) -> None:
    examples = {name: task.examples("heldout", NUM_EXAMPLES, SEED) for name, task in TASKS.items()}
    prompts = [example.prompt for drawn in examples.values() for example in drawn]
    found = iter(answers(base, encoder, prompts, 40))
    for name, drawn in examples.items():
        assert _share(TASKS[name], drawn, [next(found) for _ in drawn]) <= 0.3


def _share(task: Task, examples: list[Example], found: list[str]) -> float:
    return sum(task.check(example, text) for example, text in zip(examples, found, strict=True)) / len(
        examples
    )


def test_the_measured_table_meets_the_bars() -> None:
    table = json.loads(EVALUATION.read_text())
    assert set(table["tasks"]) == set(TASKS)
    assert table["examples_per_task"] >= 100
    for row in table["tasks"].values():
        assert min(row["with_adapter"], row["with_adapter_int8"]) >= 0.9
        assert max(row["without_adapter"], row["without_adapter_int8"]) <= 0.3
