"""Packs a linear layer's weight in 4 bits with a scale, and optionally a zero point, per 128 inputs.

The codes' order in memory is made for tensor cores.

Words: the `[N, K]` codes are padded (N to a multiple of 128, K of 256) and cut into blocks of 16 rows by 128
inputs, one kilobyte each, stored `[N / 128, K / 128, 8, 256 words]`, so that a tile of rows streams through
K. Within a block, row r + 8 i, quad c and word w are at word `128 i + 16 r + 4 c + w`. Its nibbles:

    for bf16 activations    nibble j + 4 p is input 32 w + 16 (j / 2) + 8 (j % 2) + 2 c + p
    for FP8 activations     nibble 2 b + j is input 32 w + 16 j + 4 c + b
    the same, signed        its sign is bit 8 b + 7 - 4 j, its magnitude from bit 8 ((b + 3 j) % 4) + 4 j up

These are the orders of a tensor core's A operand: a thread reads 16 bytes, and a word becomes four registers
of two bf16 by a mask and a subtraction each, or two registers of four FP8 by a mask each. Signed are the
codes for FP8 of a weight without zero points whose codes reach no further than 7 to both sides: what they
spare is a second product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.linear_int4.rounding import GROUP, SYMMETRIC_ZERO, round_to_codes

TILE_ROWS = 128
"""Rows are padded to a multiple."""
MAX_SHARED_TILES = 256
"""Tiles of a launch whose groups are shared out: with more there are blocks enough without."""
STEP_INPUTS = 2 * GROUP
"""Inputs are padded to a multiple: kernels take groups by pairs."""
MAGIC = 128
"""A code OR 0x4300 is the bf16 number 128 + code."""


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """W[n, k] = (code[n, k] - zero[n, k / 128]) * scale[n, k / 128]; the inputs may come in another order."""

    out_features: int
    in_features: int
    words: Tensor
    """int32 [N / 128, G even, 8, 256]: see the module."""
    for_fp8: bool
    """Which of the two orders they have."""
    scales: Tensor
    """int32 [G / 2, N padded]: two groups' scales, the even group's in the low half."""
    scale_dtype: torch.dtype
    """bf16 or fp16: the type of those halves."""
    zeros: Tensor | None
    """int32 [G even, N padded]: what the kernel adds to a code, -(128 + zero) in bf16 twice or -zero / 512 in
    e4m3, the lowest byte. None where every zero is 8; for FP8, where the words are signed besides."""
    bias_N: Tensor | None
    """fp32, added after the product."""
    order_K: Tensor | None
    """int64: column k of the codes multiplies input order_K[k] (GPTQ's activation order)."""
    arrivals: Tensor
    """int32 [MAX_SHARED_TILES]: zero between products; blocks that share a tile count themselves here."""

    @classmethod
    def from_codes(
        cls,
        codes_NK: Tensor,
        scale_NG: Tensor,
        zero_NG: Tensor | None = None,
        bias_N: Tensor | None = None,
        order_K: Tensor | None = None,
        for_fp8: bool | None = None,
    ) -> Int4Weight:
        """Packs codes.

        Args:
            codes_NK: uint8, 0 to 15.
            scale_NG: bf16 or fp16, kept exactly; G = ceil(K / 128).
            zero_NG: integers 0 to 16 (16: what GPTQ's offset of one makes of 15); None for 8 everywhere.
            bias_N: kept in fp32.
            order_K: a permutation of the inputs.
            for_fp8: in the order for products with FP8 activations, not bf16 ones; None: on a GPU that has
                such products.
        """
        if for_fp8 is None:
            for_fp8 = multiplies_fp8(codes_NK)
        num_rows, num_inputs = codes_NK.shape
        num_groups = -(-num_inputs // GROUP)
        if scale_NG.shape != (num_rows, num_groups) or scale_NG.dtype not in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"codes {tuple(codes_NK.shape)} need bf16 or fp16 scales {(num_rows, num_groups)}, "
                f"not {scale_NG.dtype} {tuple(scale_NG.shape)}"
            )
        if not torch.isfinite(scale_NG).all():
            raise ValueError("a scale of a 4-bit weight is not finite")
        if zero_NG is not None and (zero_NG.shape != scale_NG.shape or not _within(zero_NG, 0, 16)):
            raise ValueError(f"zero points must be 0 to 16, of shape {tuple(scale_NG.shape)}")
        symmetric = zero_NG is None or bool((zero_NG == SYMMETRIC_ZERO).all())
        signed = for_fp8 and symmetric and bool((codes_NK > 0).all())
        zeros = None
        if not symmetric or (for_fp8 and not signed):
            zeros = _pack_zeros(
                torch.full_like(scale_NG, SYMMETRIC_ZERO) if zero_NG is None else zero_NG, for_fp8
            )
        return cls(
            out_features=num_rows,
            in_features=num_inputs,
            words=_pack_words(codes_NK, for_fp8, signed),
            for_fp8=for_fp8,
            scales=_pack_pairs(scale_NG),
            scale_dtype=scale_NG.dtype,
            zeros=zeros,
            bias_N=None if bias_N is None else bias_N.float(),
            order_K=order_K,
            arrivals=torch.zeros(MAX_SHARED_TILES, dtype=torch.int32, device=codes_NK.device),
        )

    @classmethod
    def quantize(
        cls,
        weight_NK: Tensor,
        group_size: int = GROUP,
        bias_N: Tensor | None = None,
        symmetric: bool = True,
        for_fp8: bool | None = None,
    ) -> Int4Weight:
        """Rounds to nearest with the scale, per group, of the least squared error.

        Args:
            weight_NK: any float type; must be finite.
            group_size: 128 is what there is.
            symmetric: without zero points; with them the error of lopsided groups is smaller.
            for_fp8: see `from_codes`.
        """
        if group_size != GROUP:
            raise ValueError(f"group_size {group_size}: 4-bit weights have groups of {GROUP}")
        if for_fp8 is None:
            for_fp8 = multiplies_fp8(weight_NK)
        rounded = round_to_codes(weight_NK, symmetric, balanced=symmetric and for_fp8)
        return cls.from_codes(*rounded, bias_N, for_fp8=for_fp8)

    @property
    def num_groups(self) -> int:
        return -(-self.in_features // GROUP)

    @property
    def signed(self) -> bool:
        """Whether the words hold signs and magnitudes."""
        return self.for_fp8 and self.zeros is None

    @property
    def num_bytes(self) -> int:
        """What one product has to read."""
        held = [self.words, self.scales, self.zeros, self.bias_N, self.order_K]
        return sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None)

    def codes(self) -> Tensor:
        """uint8 [N, K], unpacked."""
        return _unpack_words(self.words, self.for_fp8, self.signed)[: self.out_features, : self.in_features]

    def dequantize(self) -> Tensor:
        """fp32 [N, K], columns in the order of the codes (`order_K`)."""
        scale_NG = _unpack_pairs(self.scales, self.scale_dtype)[: self.out_features, : self.num_groups]
        codes = self.codes().float()
        if self.zeros is None:
            codes -= SYMMETRIC_ZERO
        else:
            zero_NG = _unpack_zeros(self.zeros, self.for_fp8)[: self.out_features, : self.num_groups]
            codes -= self._by_input(zero_NG)
        return codes.mul_(self._by_input(scale_NG.float()))

    def _by_input(self, value_NG: Tensor) -> Tensor:
        return value_NG.repeat_interleave(GROUP, 1)[:, : self.in_features]


def multiplies_fp8(tensor: Tensor) -> bool:
    """Whether the tensor's device has tensor cores for FP8: compute capability 8.9 and later."""
    return tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 9)


def _within(values: Tensor, low: int, high: int) -> bool:
    return bool(((values >= low) & (values <= high)).all())


def _pack_words(codes_NK: Tensor, for_fp8: bool, signed: bool) -> Tensor:
    if codes_NK.dtype != torch.uint8 or not _within(codes_NK, 0, 15):
        raise ValueError("codes of a 4-bit weight must be uint8 of 0 to 15")
    num_rows, num_inputs = codes_NK.shape
    pad = (0, -num_inputs % STEP_INPUTS, 0, -num_rows % TILE_ROWS)
    codes = torch.nn.functional.pad(codes_NK, pad, value=SYMMETRIC_ZERO)
    tiles, groups = codes.shape[0] // TILE_ROWS, codes.shape[1] // GROUP
    # rows: tile, block, i, r; inputs: group, w, and by the order j / 2, j % 2, c, p or j, c, b. Packed: tile,
    # group, block, i, r, c, w, and eight nibbles from the lowest up.
    if for_fp8:
        codes = codes.view(tiles, 8, 2, 8, groups, 4, 2, 4, 4).permute(0, 4, 1, 2, 3, 7, 5, 8, 6)
    else:
        codes = codes.view(tiles, 8, 2, 8, groups, 4, 2, 2, 4, 2).permute(0, 4, 1, 2, 3, 8, 5, 9, 6, 7)
    octets = codes.reshape(tiles, groups, 8, 256, 8)
    words = torch.zeros(octets.shape[:-1], dtype=torch.int32, device=codes.device)
    for nibble in range(8):
        code = octets[..., nibble].to(torch.int32)
        if signed:
            magnitude, sign = _places(nibble)
            words |= ((code - SYMMETRIC_ZERO).abs() << magnitude) | ((code < SYMMETRIC_ZERO).int() << sign)
        else:
            words |= code << (4 * nibble)
    return words


def _unpack_words(words: Tensor, for_fp8: bool, signed: bool) -> Tensor:
    tiles, groups = words.shape[:2]
    nibbles = []
    for nibble in range(8):
        if signed:
            magnitude, sign = _places(nibble)
            code = ((words >> magnitude) & 7) * (1 - 2 * ((words >> sign) & 1)) + SYMMETRIC_ZERO
        else:
            code = (words >> (4 * nibble)) & 15
        nibbles.append(code.to(torch.uint8))
    codes = torch.stack(nibbles, -1)
    if for_fp8:
        codes = codes.view(tiles, groups, 8, 2, 8, 4, 4, 4, 2).permute(0, 2, 3, 4, 1, 6, 8, 5, 7)
    else:
        codes = codes.view(tiles, groups, 8, 2, 8, 4, 4, 2, 2, 2).permute(0, 2, 3, 4, 1, 6, 8, 9, 5, 7)
    return codes.reshape(tiles * TILE_ROWS, groups * GROUP)


def _places(nibble: int) -> tuple[int, int]:
    """Lowest bit of the magnitude, and bit of the sign, of signed element 2 b + j."""
    b, j = divmod(nibble, 2)
    return 8 * ((b + 3 * j) % 4) + 4 * j, 8 * b + 7 - 4 * j


def _pack_pairs(value_NG: Tensor) -> Tensor:
    """Two 16-bit numbers of neighbouring groups to a word; padding is zero."""
    num_rows, num_groups = value_NG.shape
    padded = torch.nn.functional.pad(value_NG, (0, num_groups % 2, 0, -num_rows % TILE_ROWS))
    return padded.contiguous().view(torch.int32).t().contiguous()


def _pack_zeros(zero_NG: Tensor, for_fp8: bool) -> Tensor:
    num_rows, num_groups = zero_NG.shape
    padded = torch.nn.functional.pad(zero_NG.to(torch.int32), (0, num_groups % 2, 0, -num_rows % TILE_ROWS))
    zero_GN = padded.t().contiguous()
    if for_fp8:
        return zero_GN | 0x80
    minus = -(zero_GN + MAGIC).to(torch.bfloat16)
    return minus[..., None].expand(-1, -1, 2).contiguous().view(torch.int32)[..., 0]


def _unpack_zeros(words: Tensor, for_fp8: bool) -> Tensor:
    if for_fp8:
        return (words & 0x7F).float().t()
    return -words.view(torch.bfloat16)[:, ::2].float().t() - MAGIC


def _unpack_pairs(words: Tensor, dtype: torch.dtype) -> Tensor:
    return words.t().contiguous().view(dtype)
