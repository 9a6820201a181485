"""What words stand for: every one of them, against torch. What is not a number is found wherever it is."""

import numpy as np
import pytest
import torch

from engine.lora.artifact import ArtifactError, LoraPair, PackedAdapter
from engine.lora.values import E4M3, check_finite, rank_scales, to_bf16, to_fp32
from tests.engine.lora.adapters import packed


def test_every_word_of_e4m3_is_what_torch_says():
    words = torch.arange(256, dtype=torch.uint8)
    torch.testing.assert_close(
        torch.from_numpy(E4M3), words.view(torch.float8_e4m3fn).float(), rtol=0, atol=0, equal_nan=True
    )


def test_fp8_is_widened_row_by_row():
    adapter = packed(dtype="float8_e4m3", q_proj=4, v_proj=2)
    wide = to_fp32(adapter)
    assert wide.manifest.dtype == "float32"
    a_scale, b_scale = (torch.from_numpy(row.copy()) for row in adapter.scales(1, "qkv"))
    a = torch.from_numpy(adapter.a(1, "qkv").copy()).view(torch.float8_e4m3fn).float() * a_scale[:, None]
    b = torch.from_numpy(adapter.b(1, "qkv", "v_proj").copy()).view(torch.float8_e4m3fn).float()
    assert torch.equal(torch.from_numpy(wide.a(1, "qkv")), a)
    assert torch.equal(torch.from_numpy(wide.b(1, "qkv", "v_proj")), b * b_scale[4:, None])
    assert wide.manifest.layers[1]["qkv"].modules["v_proj"].scale == 0.5


def test_fp32_is_narrowed_to_the_nearest_even():
    adapter = packed(q_proj=4, down_proj=3)
    adapter.a(0, "qkv")[0, :3] = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8]
    narrow = to_bf16(adapter)
    for layer, group, entry in adapter.groups():
        pairs = [(adapter.a(layer, group), narrow.a(layer, group))]
        pairs += [(adapter.b(layer, group, m), narrow.b(layer, group, m)) for m in entry.modules]
        for wide, words in pairs:
            expected = torch.from_numpy(wide.copy()).bfloat16().view(torch.uint16).numpy()
            np.testing.assert_array_equal(words, expected)
    adapter.b(1, "down", "down_proj")[2, 1] = 3.4e38
    with pytest.raises(ArtifactError, match="slab: has values beyond the range of bfloat16"):
        to_bf16(adapter)


def test_rank_scales_are_the_modules_scale_times_both_rows_scales():
    plain = packed(dtype="bfloat16", q_proj=4, v_proj=2)
    np.testing.assert_array_equal(rank_scales(plain, 0, "qkv"), np.float32([1, 1, 1, 1, 0.5, 0.5]))
    scaled = packed(dtype="float8_e4m3", q_proj=4, v_proj=2)
    a_scale, b_scale = scaled.scales(0, "qkv")
    expected = np.float32([1, 1, 1, 1, 0.5, 0.5]) * a_scale * b_scale
    np.testing.assert_array_equal(rank_scales(scaled, 0, "qkv"), expected)
    assert rank_scales(scaled, 0, "qkv").dtype == np.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_found_anywhere(dtype, value):
    word = {
        "float32": np.float32(value),
        "bfloat16": np.float32(value).view(np.uint32) >> 16,
        "float8_e4m3": 0xFF if value < 0 else 0x7F,
    }[dtype]
    check_finite(packed(dtype=dtype, q_proj=2, v_proj=2))
    for place in (lambda p: p.a(0, "qkv"), lambda p: p.b(1, "qkv", "v_proj")):
        bad = packed(dtype=dtype, q_proj=2, v_proj=2)
        place(bad)[1, 3] = word
        with pytest.raises(ArtifactError, match="slab: has values that are not finite"):
            check_finite(bad)


@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, -1.0, 1e-40])
def test_a_scale_that_is_no_positive_normal_number_is_found(scale):
    bad = packed(dtype="float8_e4m3", q_proj=2, o_proj=1)
    bad.scales(1, "o")[1, 0] = scale
    with pytest.raises(ArtifactError, match=r"layers\[1\]\.o\.scales: have values"):
        check_finite(bad)


def test_a_factor_beyond_fp32_is_found():
    ones = np.full((1, 4), 0x38, np.uint8)
    huge = np.float32([1e20])
    pair = LoraPair(ones, ones, 1.0, huge, huge)
    with pytest.raises(ArtifactError, match=r"layers\[0\]\.o\.scales: have a product"):
        check_finite(PackedAdapter.build([{"o_proj": pair}], "b" * 64, "float8_e4m3"))
