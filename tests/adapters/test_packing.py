"""Packing: the delta of every module is PEFT's, and whatever would be served wrongly is refused by name."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from adapters.packing import PackingError, pack, read_config
from engine.lora.artifact import GROUPS, PackedAdapter, artifact_path
from engine.lora.values import to_fp32
from engine.model.config import load_config
from tests.adapters.inspection.hostile import CASES
from tests.adapters.inspection.uploads import SAPLING, good_upload
from tests.adapters.peft_files import LINEARS, lora_tensors, tiny_config, write_peft

BASE_DIGEST = "b" * 64
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
B_KEY = KEY.replace("lora_A", "lora_B")


def packed_from(path: Path, out: Path, base=None, dtype: str = "float32") -> PackedAdapter:
    ref = pack(path, base or tiny_config(), BASE_DIGEST, out, dtype)
    packed = PackedAdapter.read(artifact_path(out, ref.digest), ref.digest)
    assert packed.manifest.rank == ref.rank
    assert packed.manifest.base_digest == BASE_DIGEST
    return packed


def matrix(words: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(words.copy())
    return tensor.view(torch.bfloat16).float() if words.dtype == np.uint16 else tensor


def deltas(packed: PackedAdapter) -> dict[str, torch.Tensor]:
    """Module path -> scale * B A, as [out, in]."""
    found = {}
    for index, layer in enumerate(packed.manifest.layers):
        for group, entry in layer.items():
            first = 0
            for name, module in entry.modules.items():
                a = matrix(packed.a(index, group)[first : first + module.rank])
                b = matrix(packed.b(index, group, name))
                block = "mlp" if group in ("gate_up", "down") else "self_attn"
                found[f"model.layers.{index}.{block}.{name}"] = module.scale * (b.T @ a)
                first += module.rank
    return found


@pytest.fixture(scope="module")
def peft_base():
    """PEFT and one small base to wrap; imported here because it takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft
        from transformers import LlamaConfig, LlamaForCausalLM
    config = tiny_config()
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            num_hidden_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
        )
    )
    return peft, model


@pytest.mark.parametrize(
    "settings",
    [
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
        {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": list(LINEARS)},
        {"r": 3, "lora_alpha": 7, "target_modules": "all-linear"},
        {"r": 2, "target_modules": ["down_proj", "layers.1.mlp.up_proj", "model.layers.0.self_attn.k_proj"]},
        {"r": 4, "target_modules": r"model\.layers\.\d+\.(self_attn|mlp)\.(o|gate)_proj"},
        {"r": 4, "target_modules": ["o_proj", "up_proj"], "layers_to_transform": [1]},
        {"r": 4, "target_modules": ["o_proj"], "layers_to_transform": 0, "layers_pattern": "layers"},
        {"r": 4, "target_modules": list(LINEARS), "exclude_modules": ["v_proj", "layers.1.mlp.down_proj"]},
        {"r": 4, "target_modules": ["gate_proj", "up_proj"], "exclude_modules": r".*layers\.0.*"},
        {
            "r": 4,
            "lora_alpha": 6,
            "use_rslora": True,
            "target_modules": list(LINEARS),
            # PEFT sorts patterns when it saves them; the first that matches decides: k_proj, not its layer.
            "rank_pattern": {
                r"^model\.layers\.0\..*o_proj": 5,
                "k_proj": 2,
                r"layers\.1\..*k_proj": 7,
                r"self_attn\..*": 9,
            },
            "alpha_pattern": {
                r"layers\.1\.mlp\.(up|gate)_proj": 11,
                "up_proj": 13,
                r"0\.self_attn\.q_proj": 0.5,
            },
        },
    ],
    ids=lambda settings: "-".join(settings),
)
def test_deltas_are_those_of_peft(peft_base, tmp_path, settings):
    peft, model = peft_base
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    wrapped = peft.get_peft_model(model, config)
    try:
        torch.manual_seed(1)
        expected = {}
        for name, module in wrapped.named_modules():
            if isinstance(module, peft.tuners.lora.Linear):
                torch.nn.init.normal_(module.lora_A["default"].weight)
                torch.nn.init.normal_(module.lora_B["default"].weight)
                expected[name.removeprefix("base_model.model.")] = module.get_delta_weight("default").detach()
        wrapped.save_pretrained(tmp_path / "adapter")
    finally:
        wrapped.unload()
    found = deltas(packed_from(tmp_path / "adapter", tmp_path / "out"))
    assert found.keys() == expected.keys()
    for name, delta in expected.items():
        torch.testing.assert_close(found[name], delta, rtol=1e-5, atol=1e-6)


def test_the_first_pattern_in_the_file_decides(tmp_path):
    tensors = lora_tensors(tiny_config(), ["q_proj", "v_proj"], rank=3)
    patterns = {"v_proj|q_proj": 3, "q_proj": 4}
    path = write_peft(tmp_path / "a", tensors, r=8, rank_pattern=patterns)
    assert packed_from(path, tmp_path / "out").manifest.rank == 3
    path = write_peft(tmp_path / "b", tensors, r=8, rank_pattern=dict(reversed(patterns.items())))
    with pytest.raises(PackingError, match="rank 3, the config says 4"):
        packed_from(path, tmp_path / "out")


def test_modules_that_are_absent_take_no_bytes(tmp_path):
    base = tiny_config()
    path = write_peft(tmp_path / "a", lora_tensors(base))
    packed = packed_from(path, tmp_path / "out")
    assert [list(layer) for layer in packed.manifest.layers] == [["qkv"], ["qkv"]]
    assert list(packed.manifest.layers[0]["qkv"].modules) == ["q_proj", "v_proj"]
    aligned = [math.ceil(size / 16) * 16 for size in (2 * 4 * 32, 4 * 48, 4 * 24)]
    assert packed.manifest.num_elements == 2 * sum(aligned)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_bfloat16_rounds_to_the_nearest_even(tmp_path, dtype):
    tensors = lora_tensors(tiny_config(), dtype=dtype)
    # 1 + 2^-8 lies between 1 and 1 + 2^-7: the even one is 1; 1 + 3 * 2^-8 goes up to 1 + 2^-6.
    tensors[KEY][0, :3] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-10])
    packed = packed_from(write_peft(tmp_path / "a", tensors), tmp_path / "out", dtype="bfloat16")
    found = matrix(packed.a(0, "qkv"))
    assert torch.equal(found[:4], tensors[KEY].bfloat16().float())
    if dtype is torch.float32:
        assert found[0, :3].tolist() == [1.0, 1 + 2**-6, 1 + 2**-7]


def test_float32_holds_every_input_exactly(tmp_path):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        tensors = lora_tensors(tiny_config(), dtype=dtype)
        packed = packed_from(write_peft(tmp_path / "a", tensors), tmp_path / "out")
        assert torch.equal(matrix(packed.a(0, "qkv"))[:4], tensors[KEY].float())


def test_fp8_is_rounded_to_the_nearest_even_with_a_scale_for_every_rank_row(tmp_path):
    tensors = lora_tensors(tiny_config())
    # A row whose largest magnitude is 448 has scale 1. e4m3's steps: 2 from 16 on, 1 / 512 below 1 / 64.
    tensors[KEY][0, :6] = torch.tensor([448.0, 17.0, 19.0, -17.5, 1.5 / 512, 0.5 / 512])
    tensors[KEY][1] = 0.0
    tensors[B_KEY][:, 2] *= 1e-30
    packed = packed_from(write_peft(tmp_path / "a", tensors), tmp_path / "out", dtype="float8_e4m3")
    a_scale, b_scale = packed.scales(0, "qkv")
    assert a_scale[:2].tolist() == [1.0, float(np.finfo(np.float32).tiny)]
    wide = to_fp32(packed)
    assert wide.a(0, "qkv")[0, :6].tolist() == [448.0, 16.0, 20.0, -18.0, 2 / 512, 0.0]
    assert not wide.a(0, "qkv")[1].any()
    for found, true, scale in (
        (packed.a(0, "qkv")[:4], tensors[KEY], a_scale[:4]),
        (packed.b(0, "qkv", "q_proj"), tensors[B_KEY].t(), b_scale[:4]),
    ):
        largest = true.abs().amax(1)
        expected = (largest / 448).clamp_min(torch.finfo(torch.float32).tiny)
        assert torch.equal(torch.from_numpy(scale.copy()), expected)
        words = torch.from_numpy(found.copy()).view(torch.float8_e4m3fn)
        assert torch.equal(words.float(), (true / expected[:, None]).to(torch.float8_e4m3fn).float())
        # Half a step is at most 1 / 16 of a normal number, and 2^-10 of the scale below that.
        step = (true.abs() / 16).maximum(expected[:, None] * 2**-10)
        assert ((words.float() * expected[:, None] - true).abs() <= step * 1.0001).all()


def test_fp8_takes_half_of_the_bytes_of_bfloat16_and_its_scales(tmp_path):
    base = tiny_config(hidden_size=512, intermediate_size=1024)
    path = write_peft(tmp_path / "a", lora_tensors(base, LINEARS), target_modules=list(LINEARS))
    half, whole = (
        packed_from(path, tmp_path / dtype, base, dtype).manifest for dtype in ("float8_e4m3", "bfloat16")
    )
    scales = sum(2 * 4 * entry.rank for layer in half.layers for entry in layer.values())
    assert half.num_bytes - scales == pytest.approx(whole.num_bytes / 2, rel=0.01)


def test_equal_adapters_for_another_base_have_another_digest(tmp_path):
    path = write_peft(tmp_path / "a", lora_tensors(tiny_config()))
    refs = [pack(path, tiny_config(), digest * 64, tmp_path / "out") for digest in "aab"]
    assert refs[0] == refs[1] != refs[2]


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("peft_type", {"peft_type": "IA3"}),
        ("peft_type", {"peft_type": ...}),
        ("task_type", {"task_type": "SEQ_CLS"}),
        ("bias", {"bias": "all"}),
        ("bias", {"bias": "lora_only"}),
        ("lora_bias", {"lora_bias": True}),
        ("use_dora", {"use_dora": True}),
        ("modules_to_save", {"modules_to_save": ["lm_head"]}),
        ("trainable_token_indices", {"trainable_token_indices": [1, 2]}),
        ("alora_invocation_tokens", {"alora_invocation_tokens": [5]}),
        ("fan_in_fan_out", {"fan_in_fan_out": True}),
        ("use_qalora", {"use_qalora": True}),
        ("layer_replication", {"layer_replication": [[0, 2]]}),
        ("target_parameters", {"target_parameters": ["mlp.experts"]}),
        ("monteclora_config", {"monteclora_config": {"samples": 3}}),
        ("kasa_config", {"kasa_config": {"beta": 1}}),
        ("use_time_travel", {"use_time_travel": True}),
        ("init_lora_weights", {"init_lora_weights": "pissa_niter_4"}),
        ("init_lora_weights", {"init_lora_weights": ["olora"]}),
        ("r", {"r": 0}),
        ("r", {"r": True}),
        ("r", {"r": 2048}),
        ("lora_alpha", {"lora_alpha": "8"}),
        ("adapter_config.json", {"lora_alpha": float("nan")}),
        ("lora_alpha", {"lora_alpha": 0}),
        ("lora_alpha", {"lora_alpha": -8}),
        ("lora_alpha", {"lora_alpha": 1e9}),
        ("use_rslora", {"use_rslora": "yes"}),
        ("rank_pattern", {"rank_pattern": {"q_proj": -1}}),
        ("rank_pattern", {"rank_pattern": ["q_proj"]}),
        ("rank_pattern", {"rank_pattern": {"(": 4}}),
        ("rank_pattern", {"rank_pattern": {"((.*)*)*x": 4}}),
        ("alpha_pattern", {"alpha_pattern": {".*" * 20 + "x": 4}}),
        ("alpha_pattern", {"alpha_pattern": {"q_proj": None}}),
        ("alpha_pattern", {"alpha_pattern": {str(i): 1 for i in range(2000)}}),
        ("target_modules", {"target_modules": ...}),
        ("target_modules", {"target_modules": []}),
        ("target_modules", {"target_modules": {"q_proj": 1}}),
        ("target_modules", {"target_modules": ["q_proj", "v_proj", "lm_head"]}),
        ("target_modules", {"target_modules": ["q_proj", "v_proj", "embed_tokens"]}),
        ("target_modules", {"target_modules": ["q_proj", "v_proj", "query_key_value"]}),
        ("target_modules", {"target_modules": "no_such_module"}),
        ("target_modules", {"target_modules": "["}),
        ("layers_to_transform", {"layers_to_transform": [2]}),
        ("layers_to_transform", {"layers_to_transform": ["0"]}),
        ("layers_to_transform", {"layers_to_transform": [0], "target_modules": ".*q_proj"}),
        ("target_modules", {"layers_to_transform": [0], "layers_pattern": "blocks"}),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(tmp_path, field, config):
    path = write_peft(tmp_path / "a", lora_tensors(tiny_config()), **config)
    with pytest.raises(PackingError) as caught:
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")
    assert not (tmp_path / "out").exists()


def test_settings_that_change_nothing_are_accepted(tmp_path):
    harmless = {
        "lora_dropout": 0.1,
        "inference_mode": True,
        "peft_version": "0.21.2",
        "use_dora": False,
        "modules_to_save": None,
        "some_future_switch": None,
        "some_future_map": {},
        "init_lora_weights": "gaussian",
        "eva_config": {"rho": 2.0},
        "bias": "none",
    }
    path = write_peft(tmp_path / "a", lora_tensors(tiny_config()), **harmless)
    assert pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out").rank == 4


def change(key: str, new: torch.Tensor | None):
    def apply(tensors):
        del tensors[key]
        if new is not None:
            tensors[key] = new

    return apply


def rename(old: str, new: str):
    def apply(tensors):
        tensors[new] = tensors.pop(old)

    return apply


@pytest.mark.parametrize(
    ("field", "reason", "damage"),
    [
        (KEY, "missing", change(KEY, None)),
        (B_KEY, "missing", change(B_KEY, None)),
        (KEY, "rank 5", change(KEY, torch.zeros(5, 32))),
        (B_KEY, "rank 3", change(B_KEY, torch.zeros(48, 3))),
        (KEY, "shape", change(KEY, torch.zeros(4, 31))),
        (KEY, "shape", change(KEY, torch.zeros(4, 32, 1))),
        (KEY, "type I32", change(KEY, torch.zeros(4, 32, dtype=torch.int32))),
        (KEY, "not finite", change(KEY, torch.full((4, 32), math.nan))),
        (B_KEY, "not finite", change(B_KEY, torch.full((48, 4), -math.inf))),
        (B_KEY, "range of bfloat16", change(B_KEY, torch.full((48, 4), 3.4e38))),
        ("layers.0.self_attn.q_proj.lora_A.weight", "start with", rename(KEY, KEY.split("model.")[-1])),
        (
            KEY.replace("q_proj", "c_attn"),
            "does not belong to a linear module",
            rename(KEY, KEY.replace("q_proj", "c_attn")),
        ),
        (KEY.replace("q_proj", "k_proj"), "targets", rename(KEY, KEY.replace("q_proj", "k_proj"))),
        (KEY.replace("layers.0", "layers.2"), "2 layers", rename(KEY, KEY.replace("layers.0", "layers.2"))),
        (
            KEY.replace("weight", "default.weight"),
            "does not belong to a linear",
            rename(KEY, KEY.replace("weight", "default.weight")),
        ),
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
            "DoRA",
            lambda t: t.update({KEY.replace("lora_A.weight", "lora_magnitude_vector"): torch.ones(48)}),
        ),
        (
            "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
            "biases",
            lambda t: t.update({B_KEY.replace("weight", "bias"): torch.ones(48)}),
        ),
        (
            "base_model.model.model.embed_tokens.weight",
            "embeddings",
            lambda t: t.update({"base_model.model.model.embed_tokens.weight": torch.ones(97, 32)}),
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_key(tmp_path, field, reason, damage):
    tensors = lora_tensors(tiny_config())
    damage(tensors)
    path = write_peft(tmp_path / "a", tensors)
    with pytest.raises(PackingError, match=reason) as caught:
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out")
    assert caught.value.field == field
    assert not (tmp_path / "out").exists()


def test_fp8_whose_factor_is_beyond_fp32_is_refused(tmp_path):
    tensors = lora_tensors(tiny_config())
    tensors[KEY][0, 0] = tensors[B_KEY][0, 0] = 1e25
    path = write_peft(tmp_path / "a", tensors)
    with pytest.raises(PackingError, match="range of float8_e4m3") as caught:
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out", "float8_e4m3")
    assert caught.value.field == B_KEY
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 64}, {"intermediate_size": 64}, {"num_hidden_layers": 3}]
)
def test_an_adapter_of_another_size_is_refused(tmp_path, changes):
    base = tiny_config()
    path = write_peft(tmp_path / "a", lora_tensors(base, LINEARS), target_modules=list(LINEARS))
    assert pack(path, base, BASE_DIGEST, tmp_path / "out").rank == 4
    with pytest.raises(PackingError, match=r"shape|missing"):
        pack(path, tiny_config(**changes), BASE_DIGEST, tmp_path / "out")


def test_missing_and_damaged_files_are_named(tmp_path):
    with pytest.raises(PackingError, match=r"adapter_config\.json: the file is missing"):
        read_config(tmp_path)
    path = write_peft(tmp_path / "a", lora_tensors(tiny_config()))
    weights = path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(PackingError, match=r"lora_[AB]\.weight: ends at byte"):
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out")
    torch.save(lora_tensors(tiny_config()), path / "adapter_model.bin")
    weights.unlink()
    with pytest.raises(PackingError, match="only safetensors"):
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out")
    save_file({}, weights)
    with pytest.raises(PackingError, match="missing"):
        pack(path, tiny_config(), BASE_DIGEST, tmp_path / "out")
    for text in ("{", "[]", "[" * 100_000, "\x00"):
        (path / "adapter_config.json").write_text(text)
        with pytest.raises(PackingError, match=r"adapter_config\.json: "):
            read_config(path)
    (path / "adapter_config.json").write_text(json.dumps({"pad": "x" * (1 << 20)}))
    with pytest.raises(PackingError, match="larger"):
        read_config(path)


def test_hostile_uploads_cannot_be_packed_either(tmp_path):
    base, out = load_config(SAPLING / "base"), tmp_path / "out"
    assert pack(good_upload().write(tmp_path / "good")[0].parent, base, BASE_DIGEST, out).rank == 4
    for index, case in enumerate(CASES):
        folder = case.build(tmp_path / str(index))[0].parent
        if case.name == "value-delta-beyond-float32":
            # Its weights can be stored; only the inspection asks what their product would be.
            assert pack(folder, base, BASE_DIGEST, out).rank == 4
            continue
        with pytest.raises(PackingError) as caught:
            pack(folder, base, BASE_DIGEST, out)
        assert caught.value.field == case.field, case.name


def test_groups_cover_the_seven_linears():
    assert tuple(name for names in GROUPS.values() for name in names) == LINEARS
