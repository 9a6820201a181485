"""Checkpoint files: what is missing, unexplained or misshapen is named; the digest follows every byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.model.known_digest import known_base_digest
from engine.model.loading import load_model
from engine.model.weights import INDEX_FILE, SINGLE_FILE, base_digest
from tests.engine.model.checkpoints import make_reference, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(make_reference("qwen3"), tmp_path)


def rewrite(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / SINGLE_FILE)
    for name, tensor in change.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.1.self_attn.q_norm.weight": None}, "lacks .*layers.1.self_attn.q_norm.weight"),
        ({"lm_head.weight": None}, "lacks .*lm_head.weight"),
        (
            {"model.layers.2.mlp.up_proj.weight": torch.zeros(1)},
            "does not explain: model.layers.2.mlp.up_proj",
        ),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(96)}, "does not explain: .*q_proj.bias"),
        ({"model.norm.weight": torch.ones(63)}, r"model.norm.weight has shape \(63,\), .* implies \(64,\)"),
        ({"model.norm.weight": torch.ones(64, dtype=torch.int32)}, "model.norm.weight is stored as I32"),
        ({f"extra.{index}": torch.zeros(1) for index in range(9)}, "extra.0, .* and 4 more"),
    ],
)
def test_refuses_by_name(folder: Path, change: dict[str, torch.Tensor | None], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(ValueError, match=message):
        load_model(folder)


def test_old_buffers_are_not_in_the_way(tmp_path: Path) -> None:
    folder = save(make_reference("qwen2, tied"), tmp_path)
    rewrite(folder, {"model.rotary_emb.inv_freq": torch.zeros(8)})
    load_model(folder)


@pytest.mark.parametrize("row", [None, 0, 159])
def test_a_tied_base_with_a_head_of_its_own_is_served_as_transformers_serves_it(
    tmp_path: Path, row: int | None
) -> None:
    """config.json ties head and embedding, and the checkpoint has both: `row` is where they differ."""
    folder = save(make_reference("qwen2, tied"), tmp_path)
    embedding = load_file(folder / SINGLE_FILE)["model.embed_tokens.weight"]
    head = embedding.clone()
    if row is not None:
        head[row] += 1.0
    rewrite(folder, {"lm_head.weight": head})
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    assert theirs.lm_head.weight.equal(head)
    ours = load_model(folder)
    hidden_TH = torch.randn(3, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(hidden_TH), theirs.lm_head(hidden_TH))
    shares_memory = ours._head_HV.data_ptr() == ours._embedding_VH.data_ptr()
    assert shares_memory == (row is None)


def test_a_tied_base_with_a_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    folder = save(make_reference("qwen2, tied"), tmp_path)
    rewrite(folder, {"lm_head.weight": torch.zeros(161, 64)})
    with pytest.raises(ValueError, match=r"lm_head\.weight has shape \(161, 64\)"):
        load_model(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.1.self_attn.k_norm.weight",
        "model.layers.1.mlp.down_proj.weight",
    ],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    folder: Path, name: str, dtype: torch.dtype, value: float
) -> None:
    tensor = load_file(folder / SINGLE_FILE)[name].to(dtype)
    tensor.view(-1)[-1] = value
    rewrite(folder, {name: tensor})
    with pytest.raises(ValueError, match=rf"{name} has values that are not finite .* download it again"):
        load_model(folder)


def test_a_folder_of_pickles_says_so_and_what_to_do(folder: Path) -> None:
    (folder / SINGLE_FILE).rename(folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"only as PyTorch pickles \(pytorch_model\.bin\).*save_pretrained"):
        load_model(folder)


def test_refuses_folders_without_readable_files(folder: Path) -> None:
    (folder / SINGLE_FILE).write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00nonsense")
    with pytest.raises(ValueError, match=f"{SINGLE_FILE} is not a readable safetensors file"):
        load_model(folder)
    (folder / SINGLE_FILE).unlink()
    with pytest.raises(ValueError, match="has neither"):
        load_model(folder)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": {"lm_head.weight": "gone.safetensors"}}))
    with pytest.raises(ValueError, match=r"names files that are missing: gone\.safetensors"):
        load_model(folder)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": []}))
    with pytest.raises(ValueError, match="no usable weight_map"):
        load_model(folder)


def test_int8_refuses_weights_that_are_not_finite(folder: Path) -> None:
    rewrite(folder, {"model.layers.0.mlp.down_proj.weight": torch.full((64, 112), float("inf"))})
    with pytest.raises(ValueError, match="not finite"):
        load_model(folder, "int8")


def test_the_digest_follows_config_and_weights(folder: Path) -> None:
    first = base_digest(folder)
    assert len(first) == 64
    assert base_digest(folder) == first
    (folder / "README.md").write_text("not part of the model")
    assert base_digest(folder) == first
    data = bytearray((folder / SINGLE_FILE).read_bytes())
    data[-1] ^= 1
    (folder / SINGLE_FILE).write_bytes(data)
    second = base_digest(folder)
    assert second != first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5}))
    assert base_digest(folder) not in (first, second)


def test_a_bases_digest_is_kept_until_a_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "state" / "base-digest.json"
    hashed: list[Path] = []

    def hash_it(base_dir: Path) -> str:
        hashed.append(base_dir)
        return base_digest(base_dir)

    monkeypatch.setattr("engine.model.known_digest.base_digest", hash_it)
    digest = base_digest(folder)
    assert [known_base_digest(folder, kept) for _ in range(3)] == [digest] * 3
    assert len(hashed) == 1
    assert kept.stat().st_mode & 0o777 == 0o600
    config = folder / "config.json"
    before, seen = config.read_bytes(), config.stat()
    config.write_bytes(before.replace(b"2", b"3", 1))
    os.utime(config, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert config.stat().st_size == seen.st_size
    assert known_base_digest(folder, kept) == base_digest(folder) != digest, (
        "its time of change cannot be set"
    )
    config.write_bytes(before)
    assert known_base_digest(folder, kept) == digest
    assert len(hashed) == 3
    for damage in (b"", b"[]", b'{"digest": 1}', b"\xff"):
        kept.write_bytes(damage)
        assert known_base_digest(folder, kept) == digest
    kept.unlink()
    kept.mkdir()
    assert known_base_digest(folder, kept) == digest, "nothing can be kept there"
