"""The decoder against transformers (fp32, eager attention); rows that are strangers to each other."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.model.loading import load_model
from engine.model.model import Model
from engine.model.quantization import check_quantization
from engine.model.weights import INDEX_FILE
from kernels.attention import AttentionMetadata
from tests.engine.model.checkpoints import (
    VARIANTS,
    PagedRun,
    make_reference,
    prompts,
    reference_greedy,
    reference_logits,
    save,
)

PROMPT_LENS = (1, 40, 16, 7)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(save(make_reference("llama"), tmp_path_factory.mktemp("llama")))


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_against_transformers(variant: str, tmp_path: Path) -> None:
    reference = make_reference(variant)
    model = load_model(save(reference, tmp_path))
    texts = prompts(PROMPT_LENS)
    for logits, text in zip(PagedRun(model, 4).step(list(enumerate(texts))), texts, strict=True):
        expected = reference_logits(reference, text)
        assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()
    tokens, _ = PagedRun(model, 4).greedy(texts, 24, chunk=9)
    assert tokens == [reference_greedy(reference, text, 24) for text in texts]


def test_positions_beyond_the_original_context_follow_the_scaling(tmp_path: Path) -> None:
    """Past `original_max_position_embeddings` the scaled frequencies are what is tested."""
    reference = make_reference("qwen2, yarn")
    model = load_model(save(reference, tmp_path))
    (text,) = prompts([200])
    (logits,) = PagedRun(model, 1, max_len=256).step([(0, text)])
    expected = reference_logits(reference, text)
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_sharded_and_half_precision_files(tmp_path: Path) -> None:
    save(make_reference("llama").to(torch.bfloat16), tmp_path, max_shard_size="60KB")
    reference = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    assert (tmp_path / INDEX_FILE).exists()
    model = load_model(tmp_path)
    assert model.dtype == torch.float32
    (text,) = prompts([30])
    expected = reference_logits(reference.eval(), text)
    (logits,) = PagedRun(model, 1).step([(0, text)])
    assert (logits - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_same_bits_alone_batched_and_chunked(quantization: str, tmp_path: Path) -> None:
    model = load_model(save(make_reference("qwen3"), tmp_path), quantization)
    texts = prompts((1, 37, 20, 5, 64, 33))
    tokens, logits = PagedRun(model, 6).greedy(texts, 12)
    for chunk in (1, 3, 16, 31):
        chunked_tokens, chunked_logits = PagedRun(model, 6, seed=chunk).greedy(texts, 12, chunk=chunk)
        assert chunked_tokens == tokens
        for whole, part in zip(logits, chunked_logits, strict=True):
            assert torch.equal(whole, part)
    for seq, text in enumerate(texts):
        alone_tokens, alone_logits = PagedRun(model, 1).greedy([text], 12)
        assert alone_tokens == [tokens[seq]]
        assert torch.equal(alone_logits[0], logits[seq])


def test_a_prefix_computed_by_another_sequence_serves_as_well(llama: Model) -> None:
    """Prefix caching: the second sequence's table names the first one's blocks."""
    (text,) = prompts([48])
    run = PagedRun(llama, 2)
    run.step([(0, text[:40])])
    run.tables[1, :2] = run.tables[0, :2]
    run.computed[1] = 32
    (shared,) = run.step([(1, text[32:])])
    (fresh,) = PagedRun(llama, 1).step([(0, text)])
    assert torch.equal(shared, fresh[32:])


def test_blocks_of_a_former_owner_do_not_leak(llama: Model) -> None:
    texts = prompts((20, 33))
    run = PagedRun(llama, 2)
    clean = run.step([(0, texts[0]), (1, texts[1])])
    run.kv.layers[:, 1:] = float("inf")
    run.computed = [0, 0]
    assert all(
        torch.equal(a, b) for a, b in zip(run.step([(0, texts[0]), (1, texts[1])]), clean, strict=True)
    )
    assert run.kv.layers[:, 0].abs().max() == 0


def test_int8_stays_near_the_plain_model(tmp_path: Path) -> None:
    reference = make_reference("llama", initializer_range=0.1)
    model = load_model(save(reference, tmp_path), "int8")
    (text,) = prompts([60])
    (logits,) = PagedRun(model, 1).step([(0, text)])
    expected = reference_logits(reference, text)
    assert 0 < (logits - expected).norm() / expected.norm() < 0.05
    assert (logits.argmax(-1) == expected.argmax(-1)).float().mean() > 0.85


def test_refuses_a_batch_that_contradicts_itself(llama: Model) -> None:
    run = PagedRun(llama, 1)
    metadata = AttentionMetadata.build([2], [2], run.tables, 16)
    with pytest.raises(ValueError, match="3 ids"):
        llama.forward(torch.tensor([1, 2, 3]), torch.tensor([0, 1]), metadata, run.kv)


def test_refuses_positions_beyond_the_context(llama: Model) -> None:
    run = PagedRun(llama, 1, max_len=2048)
    run.computed[0] = 1500
    with pytest.raises(ValueError, match="context of 256"):
        run.step([(0, [1])])


@pytest.mark.parametrize(
    ("quantization", "device", "message"),
    [("int3", "cpu", "unknown quantization"), ("int8", "cuda", "needs a CPU")],
)
def test_refuses_quantizations_a_device_does_not_have(quantization: str, device: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_quantization(quantization, torch.device(device))
