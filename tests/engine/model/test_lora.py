"""Adapters in one batch against PEFT: mixed ranks, rsLoRA, patterns, subsets of modules, base-only rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer

from engine.model.config import GROUPS, ModelConfig, load_config
from engine.model.loading import load_model
from kernels.lora import LoraContext
from kernels.lora.cases import ListPool
from kernels.lora_work import NO_SLOT, SlotGroup
from tests.engine.model.checkpoints import (
    PagedRun,
    make_reference,
    prompts,
    reference_greedy,
    reference_logits,
    save,
)

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "rank 8": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "rank 4, attention": {"r": 4, "lora_alpha": 4, "target_modules": ALL[:4]},
    "rsLoRA": {"r": 16, "lora_alpha": 8, "use_rslora": True, "target_modules": ALL},
    "patterns": {
        "r": 8,
        "lora_alpha": 8,
        "target_modules": ALL,
        "rank_pattern": {"q_proj": 2, r"layers\.1\..*down_proj": 32},
        "alpha_pattern": {"up_proj": 24, r"layers\.0\..*v_proj": 2},
    },
    "q and up": {"r": 32, "lora_alpha": 64, "target_modules": ["q_proj", "up_proj"]},
    "one layer": {
        "r": 3,
        "lora_alpha": 9,
        "target_modules": ["v_proj", "down_proj"],
        "layers_to_transform": [1],
    },
}


def slot_groups(peft_model: Any, config: ModelConfig) -> dict[tuple[int, str], SlotGroup | None]:
    """Reads a PEFT model's weights module by module; scales are PEFT's own."""
    modules = {
        (int(name.split(".layers.")[1].split(".")[0]), name.rsplit(".", 1)[1]): module
        for name, module in peft_model.named_modules()
        if isinstance(module, LoraLayer)
    }
    groups: dict[tuple[int, str], SlotGroup | None] = {}
    for layer in range(config.num_layers):
        for group, names in GROUPS.items():
            a, b, ranks, scales = [], [], [], []
            for name in names:
                module = modules.get((layer, name))
                if module is None:
                    b.append(None)
                    ranks.append(0)
                    scales.append(0.0)
                    continue
                a.append(module.lora_A["default"].weight.detach())
                b.append(module.lora_B["default"].weight.detach().t().contiguous())
                ranks.append(module.r["default"])
                scales.append(module.scaling["default"])
            stacked = torch.cat(a) if a else None
            groups[layer, group] = SlotGroup(stacked, tuple(b), tuple(ranks), tuple(scales)) if a else None
    return groups


def make_peft(variant: str, adapter: str) -> Any:
    """The variant's base (always the same weights) with a random adapter whose effect is strong."""
    model = get_peft_model(make_reference(variant), LoraConfig(**ADAPTERS[adapter])).eval()
    generator = torch.Generator().manual_seed(len(adapter))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def build_pool(per_slot: list[dict[tuple[int, str], SlotGroup | None]]) -> ListPool:
    return ListPool({key: [groups[key] for groups in per_slot] for key in per_slot[0]})


@pytest.mark.parametrize("variant", ["llama", "qwen3, biases, yarn"])
def test_golden_against_peft(variant: str, tmp_path: Path) -> None:
    base = make_reference(variant)
    save(base, tmp_path)
    config = load_config(tmp_path)
    references = [make_peft(variant, adapter) for adapter in ADAPTERS]
    pool = build_pool([slot_groups(reference, config) for reference in references])
    model = load_model(tmp_path)
    slots = [NO_SLOT, *range(len(ADAPTERS)), NO_SLOT, 0]
    owners = [references[slot] if slot != NO_SLOT else base for slot in slots]
    texts = prompts([5 + 7 * index for index in range(len(slots))])

    run = PagedRun(model, len(slots))
    for logits, owner, text in zip(
        run.step(list(enumerate(texts)), LoraContext(pool), slots), owners, texts, strict=True
    ):
        expected = reference_logits(owner, text)
        assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()

    tokens, _ = PagedRun(model, len(slots)).greedy(texts, 24, LoraContext(pool), slots, chunk=11)
    expected_tokens = [reference_greedy(owner, text, 24) for owner, text in zip(owners, texts, strict=True)]
    assert tokens == expected_tokens
    # An adapter that changed nothing would prove nothing.
    for owner, text, got in zip(owners, texts, tokens, strict=True):
        if owner is not base:
            assert got != reference_greedy(base, text, 24)


def test_same_bits_alone_batched_and_chunked(tmp_path: Path) -> None:
    save(make_reference("llama"), tmp_path)
    config = load_config(tmp_path)
    pool = build_pool([slot_groups(make_peft("llama", adapter), config) for adapter in ADAPTERS])
    for quantization in ("none", "int8"):
        model = load_model(tmp_path, quantization)
        slots = [0, 2, NO_SLOT, 3, 3, 5, 1]
        texts = prompts((1, 37, 20, 5, 50, 12, 30))
        tokens, logits = PagedRun(model, 7).greedy(texts, 10, LoraContext(pool), slots)
        for chunk in (1, 7):
            got_tokens, got_logits = PagedRun(model, 7).greedy(
                texts, 10, LoraContext(pool), slots, chunk=chunk
            )
            assert got_tokens == tokens
            assert all(torch.equal(a, b) for a, b in zip(got_logits, logits, strict=True))
        for seq, text in enumerate(texts):
            lora = LoraContext(pool)
            alone_tokens, alone_logits = PagedRun(model, 1).greedy([text], 10, lora, [slots[seq]])
            assert alone_tokens == [tokens[seq]]
            assert torch.equal(alone_logits[0], logits[seq])


def test_an_adapter_that_overflows_spoils_only_its_own_answers(tmp_path: Path) -> None:
    save(make_reference("llama"), tmp_path)
    config = load_config(tmp_path)
    groups = [slot_groups(make_peft("llama", adapter), config) for adapter in ("rank 8", "q and up")]
    pool = build_pool(groups)
    model = load_model(tmp_path)
    texts = prompts((9, 20, 30, 4))
    slots = [0, 1, NO_SLOT, 0]
    clean, clean_logits = PagedRun(model, 4).greedy(texts, 8, LoraContext(pool), slots)
    wild = groups[1][0, "qkv"]
    assert wild is not None
    assert wild.a is not None
    wild.a.fill_(3e38)
    assert wild.a.isfinite().all()
    spoiled, spoiled_logits = PagedRun(model, 4).greedy(texts, 8, LoraContext(pool), slots)
    assert not spoiled_logits[1].isfinite().any()
    for seq in (0, 2, 3):
        assert spoiled[seq] == clean[seq]
        assert torch.equal(spoiled_logits[seq], clean_logits[seq])
