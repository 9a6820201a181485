"""The whole forward pass on the device against the same on a CPU: prefill, chunks, decoding, adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.model.loading import load_model
from kernels.lora import LoraContext
from kernels.lora_work import NO_SLOT
from tests.engine.model.checkpoints import VARIANTS, make_reference, prompts, save
from tests.gpu.closeness import assert_near
from tests.gpu.decoding import DeviceRun, random_adapters

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]

PROMPT_LENS = (1, 40, 16, 7, 90)
NUM_TOKENS = 24
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ADAPTERS = [
    dict.fromkeys(MODULES, 8),
    dict.fromkeys(MODULES, 64),
    {"q_proj": 4, "v_proj": 4},
    {"k_proj": 16, "up_proj": 32},
    {"down_proj": 8},
]
SLOTS = (NO_SLOT, 0, 1, 2, 3, 4, 1, NO_SLOT)


@pytest.mark.parametrize("variant", VARIANTS)
def test_prefill_and_decode(variant: str, tmp_path: Path, device: torch.device) -> None:
    save(make_reference(variant), tmp_path)
    texts = prompts(PROMPT_LENS)
    here, there = load_model(tmp_path), load_model(tmp_path, device=device)
    assert there.device.type == device.type
    tokens, logits = DeviceRun(here, len(texts)).greedy(texts, NUM_TOKENS, chunk=1000)
    for chunk in (1000, 9):
        got_tokens, got_logits = DeviceRun(there, len(texts)).greedy(texts, NUM_TOKENS, chunk=chunk)
        assert got_tokens == tokens
        for got, expected in zip(got_logits, logits, strict=True):
            assert_near(got, expected, 1e-4)


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_every_position_of_a_prefill(variant: str, tmp_path: Path, device: torch.device) -> None:
    save(make_reference(variant), tmp_path)
    texts = prompts((200, 3, 64))
    shares = list(enumerate(texts))
    expected = DeviceRun(load_model(tmp_path), 3, max_len=208).step(shares)
    got = DeviceRun(load_model(tmp_path, device=device), 3, max_len=208).step(shares)
    for there, here in zip(got, expected, strict=True):
        assert_near(there, here, 1e-4)


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_mixed_adapters(variant: str, tmp_path: Path, device: torch.device) -> None:
    save(make_reference(variant), tmp_path)
    here, there = load_model(tmp_path), load_model(tmp_path, device=device)
    texts = prompts([3 + 5 * seq for seq in range(len(SLOTS))])
    lora = LoraContext(random_adapters(here.config, ADAPTERS, "cpu"))
    tokens, logits = DeviceRun(here, len(SLOTS)).greedy(texts, NUM_TOKENS, lora, SLOTS, chunk=11)
    lora = LoraContext(random_adapters(here.config, ADAPTERS, str(device)), device)
    got_tokens, got_logits = DeviceRun(there, len(SLOTS)).greedy(texts, NUM_TOKENS, lora, SLOTS, chunk=11)
    assert got_tokens == tokens
    for got, expected in zip(got_logits, logits, strict=True):
        assert_near(got, expected, 1e-4)
    bare, _ = DeviceRun(there, len(SLOTS)).greedy(texts, NUM_TOKENS, chunk=11)
    differs = [got != plain for got, plain in zip(got_tokens, bare, strict=True)]
    assert differs == [slot != NO_SLOT for slot in SLOTS]


@pytest.mark.parametrize("damage", [3e38, float("nan")])
def test_a_broken_adapter_spoils_only_its_own_answers(
    damage: float, tmp_path: Path, device: torch.device
) -> None:
    save(make_reference("llama"), tmp_path)
    model = load_model(tmp_path, device=device)
    texts = prompts([3 + 5 * seq for seq in range(len(SLOTS))])
    pool = random_adapters(model.config, ADAPTERS, str(device))
    clean, clean_logits = DeviceRun(model, len(SLOTS)).greedy(texts, 8, LoraContext(pool, device), SLOTS)
    broken = pool.groups[0, "qkv"][2]
    assert broken is not None
    assert broken.a is not None
    broken.a.fill_(damage)
    spoiled, logits = DeviceRun(model, len(SLOTS)).greedy(texts, 8, LoraContext(pool, device), SLOTS)
    for seq, slot in enumerate(SLOTS):
        if slot == 2:
            assert not logits[seq].isfinite().any()
        else:
            assert spoiled[seq] == clean[seq]
            assert torch.equal(logits[seq], clean_logits[seq])


@pytest.mark.parametrize("variant", ["llama", "qwen3"])
def test_half_precision_stays_near(variant: str, tmp_path: Path, device: torch.device) -> None:
    save(make_reference(variant, initializer_range=0.1).to(torch.bfloat16), tmp_path)
    shares = list(enumerate(prompts(PROMPT_LENS)))
    expected = DeviceRun(load_model(tmp_path), len(shares)).step(shares)
    got = DeviceRun(load_model(tmp_path, dtype=torch.bfloat16, device=device), len(shares)).step(shares)
    assert_near(torch.cat(got), torch.cat(expected), 5e-2)
