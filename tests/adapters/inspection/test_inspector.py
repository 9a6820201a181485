"""Good adapters pass with the facts that others compute of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adapters.inspection import values
from adapters.inspection.findings import Inspection
from adapters.inspection.header import Tensor
from adapters.inspection.modules import Pair
from adapters.inspection.sandbox import Sandbox
from adapters.packing import KEY_PREFIX, pack
from engine.lora.artifact import PackedAdapter, artifact_path
from engine.model.config import load_config
from tests.adapters.inspection.uploads import BASE_CONFIG, SAPLING, good_upload, key, plain_config
from tests.adapters.peft_files import LINEARS, lora_tensors, write_peft

ADAPTERS = sorted(path.name for path in (SAPLING / "adapters").iterdir())
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    made = Sandbox()
    await made.start()
    yield made
    await made.close()


async def inspect(sandbox: Sandbox, folder: Path) -> Inspection:
    return await sandbox.inspect(folder / WEIGHTS, folder / CONFIG, BASE_CONFIG, owner="org_a")


def check_norms(found: Inspection, tensors: dict[str, torch.Tensor]) -> None:
    assert found.modules
    for module in found.modules:
        a = tensors[f"{KEY_PREFIX}{module.path}.lora_A.weight"].double()
        b = tensors[f"{KEY_PREFIX}{module.path}.lora_B.weight"].double()
        assert module.norm_a == pytest.approx(float(a.norm()), rel=1e-5)
        assert module.norm_b == pytest.approx(float(b.norm()), rel=1e-5)
        assert module.norm_delta == pytest.approx(float((module.scale * (b @ a)).norm()), rel=1e-4)


async def test_saplings_adapters_all_pass(sandbox: Sandbox, tmp_path: Path) -> None:
    assert len(ADAPTERS) == 11
    base = load_config(SAPLING / "base")
    for name in ADAPTERS:
        folder = SAPLING / "adapters" / name
        found = await inspect(sandbox, folder)
        check_norms(found, load_file(folder / WEIGHTS))
        assert found.warnings == []
        # What packing makes of it, matrix by matrix, with the same ranks and scales.
        ref = pack(folder, base, "b" * 64, tmp_path)
        assert found.rank == ref.rank
        manifest = PackedAdapter.read(artifact_path(tmp_path, ref.digest)).manifest
        packed = {
            (layer, module): (entry.rank, entry.scale)
            for layer, groups in enumerate(manifest.layers)
            for group in groups.values()
            for module, entry in group.modules.items()
        }
        assert len(packed) == len(found.modules) == found.num_tensors // 2
        for fact in found.modules:
            _, _, layer, _, module = fact.path.split(".")
            rank, scale = packed[int(layer), module]
            assert (rank, scale) == (fact.rank, pytest.approx(fact.scale, rel=1e-6))
        # And as its training said.
        config = json.loads((folder / CONFIG).read_text())
        q = next(fact for fact in found.modules if fact.path == "model.layers.0.self_attn.q_proj")
        root = math.sqrt(config["r"]) if config["use_rslora"] else config["r"]
        assert (q.rank, q.dtype, q.scale) == (config["r"], "BF16", pytest.approx(config["lora_alpha"] / root))
        assert found.config["r"] == config["r"]
        assert "base_model_name_or_path" not in found.config


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
async def test_every_type_and_module(sandbox: Sandbox, tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = lora_tensors(load_config(SAPLING / "base"), LINEARS, dtype=dtype)
    folder = write_peft(tmp_path, tensors, target_modules=list(LINEARS), use_rslora=True)
    found = await inspect(sandbox, folder)
    assert (found.num_tensors, len(found.modules), found.rank) == (112, 56, 4)
    assert {module.scale for module in found.modules} == {8 / 2}
    check_norms(found, tensors)


async def test_patterns_of_rank_and_alpha(sandbox: Sandbox, tmp_path: Path) -> None:
    upload = good_upload(["q_proj"], rank=4)
    both = good_upload(["v_proj"], rank=2)
    for name, told in both.header.items():
        if name != "__metadata__":
            upload.add(name, told["dtype"], told["shape"])
    upload.config = plain_config(
        rank_pattern={"v_proj": 2}, alpha_pattern={r"layers\.3\.self_attn\.q_proj": 1}
    )
    upload.write(tmp_path)
    found = await inspect(sandbox, tmp_path)
    facts = {tuple(module.path.split(".")[2::2]): (module.rank, module.scale) for module in found.modules}
    assert facts["0", "v_proj"] == (2, 4.0)
    assert facts["0", "q_proj"] == (4, 2.0)
    assert facts["3", "q_proj"] == (4, 0.25)
    assert found.rank == 4


async def test_modules_that_change_nothing_are_pointed_out(sandbox: Sandbox, tmp_path: Path) -> None:
    upload = good_upload()
    start, end = upload.entry(key(side="B"))["data_offsets"]
    upload.data = upload.data[:start] + bytes(end - start) + upload.data[end:]
    upload.write(tmp_path)
    found = await inspect(sandbox, tmp_path)
    assert found.warnings == ["1 of 16 modules have no effect: their A or B is all zeros"]
    assert (found.modules[0].norm_b, found.modules[0].norm_delta) == (0, 0)


@pytest.mark.parametrize("piece", [64, 1000, 1 << 20])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [("F32", 1.0), ("F16", 1.0), ("BF16", 1.0), ("F32", 1e-30), ("F32", 1e30), ("BF16", 1e25)],
)
def test_pieces_make_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, dtype: str, size: float
) -> None:
    monkeypatch.setattr(values, "PIECE_BYTES", piece)
    torch_type = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    a, b = ((torch.randn(shape) * size).to(torch_type) for shape in ((5, 333), (77, 5)))
    path = tmp_path / "data"
    raw = [matrix.contiguous().view(torch.uint8).numpy().tobytes() for matrix in (a, b)]
    path.write_bytes(b"".join(raw))
    middle = len(raw[0])
    pair = Pair(
        0, "q_proj", "path", 5, -0.5,
        Tensor("a", dtype, (5, 333), 0, middle), Tensor("b", dtype, (77, 5), middle, middle + len(raw[1])),
    )  # fmt: skip
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = values.measure(descriptor, pair)
    finally:
        os.close(descriptor)
    assert found.a == pytest.approx(float(a.double().norm()), rel=1e-5)
    assert found.b == pytest.approx(float(b.double().norm()), rel=1e-5)
    assert found.delta == pytest.approx(0.5 * float((b.double() @ a.double()).norm()), rel=1e-4)


def test_fp32_is_accepted_up_to_what_bfloat16_holds() -> None:
    assert torch.tensor(values.ROUNDS_TO_INFINITY).bfloat16().isinf()
    below = torch.nextafter(torch.tensor(values.ROUNDS_TO_INFINITY), torch.tensor(0.0))
    assert not below.bfloat16().isinf()
