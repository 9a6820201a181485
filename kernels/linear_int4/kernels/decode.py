"""Decodes 4-bit codes in registers to what tensor cores multiply: a few integer operations for eight codes.

`weight` packs the nibbles in the order that these functions read.
"""

from __future__ import annotations

import triton
import triton.language as tl

# One word to four registers of two bf16 each: OR makes 128 + code of a nibble, and adding -(128 + zero) is
# exact. Multiplied by one and added because sm_80 adds bf16 in no other way; $8 word, $9 both halves
# -(128 + zero).
BF16_NUMBERS = tl.constexpr("""
{
 .reg .b32 shifted, pair0, pair1, pair2, pair3, one;
 mov.b32 one, 0x3f803f80;
 lop3.b32 pair0, $8, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 4;
 lop3.b32 pair1, shifted, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 8;
 lop3.b32 pair2, shifted, 0x000f000f, 0x43004300, 0xea;
 shr.u32 shifted, $8, 12;
 lop3.b32 pair3, shifted, 0x000f000f, 0x43004300, 0xea;
 fma.rn.bf16x2 pair0, pair0, one, $9;
 fma.rn.bf16x2 pair1, pair1, one, $9;
 fma.rn.bf16x2 pair2, pair2, one, $9;
 fma.rn.bf16x2 pair3, pair3, one, $9;
 mov.b32 {$0, $1}, pair0;
 mov.b32 {$2, $3}, pair1;
 mov.b32 {$4, $5}, pair2;
 mov.b32 {$6, $7}, pair3;
}
""")
MINUS_136 = tl.constexpr(0xC308C308 - (1 << 32))
"""bf16, twice: -(128 + 8), where there are no zero points."""

# Four words to eight registers of four bytes: as an e4m3 number, a byte of 0 to 15 is code / 512, since
# subnormals and the first binade are evenly spaced. Register 2 i + j has the low (j = 0) or high nibbles of
# word i.
FP8_CODES = tl.constexpr("""
{
 .reg .b32 shifted;
 and.b32 $0, $8, 0x0f0f0f0f;
 shr.u32 shifted, $8, 4;
 and.b32 $1, shifted, 0x0f0f0f0f;
 and.b32 $2, $9, 0x0f0f0f0f;
 shr.u32 shifted, $9, 4;
 and.b32 $3, shifted, 0x0f0f0f0f;
 and.b32 $4, $10, 0x0f0f0f0f;
 shr.u32 shifted, $10, 4;
 and.b32 $5, shifted, 0x0f0f0f0f;
 and.b32 $6, $11, 0x0f0f0f0f;
 shr.u32 shifted, $11, 4;
 and.b32 $7, shifted, 0x0f0f0f0f;
}
""")
# The same of codes that have a sign: a byte's highest bit and its lowest three are an e4m3 number between
# -7 / 512 and 7 / 512. Turned left by four bits, a word has the other four of them in these places.
FP8_SIGNED = tl.constexpr("""
{
 .reg .b32 turned;
 and.b32 $0, $8, 0x87878787;
 shf.l.wrap.b32 turned, $8, $8, 4;
 and.b32 $1, turned, 0x87878787;
 and.b32 $2, $9, 0x87878787;
 shf.l.wrap.b32 turned, $9, $9, 4;
 and.b32 $3, turned, 0x87878787;
 and.b32 $4, $10, 0x87878787;
 shf.l.wrap.b32 turned, $10, $10, 4;
 and.b32 $5, turned, 0x87878787;
 and.b32 $6, $11, 0x87878787;
 shf.l.wrap.b32 turned, $11, $11, 4;
 and.b32 $7, turned, 0x87878787;
}
""")


@triton.jit
def half_of(words, HALF: tl.constexpr):
    """The 16 bits of a pair of groups that are the even (0) or the odd (1) one's."""
    return (words >> (16 * HALF)) & 0xFFFF


@triton.jit
def to_fp32(bits, HALF: tl.constexpr):
    """16 bits that are an fp16 number (HALF) or a bf16 one."""
    if HALF:
        return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _zeros_of_rows(zeros_at, BLOCK_N: tl.constexpr):
    """[BLOCK_N / 16, 2, 8, 4, 4]: the zero point's word of every row, for each of its words.

    Loaded in this shape and used as it is: anything else sends the numbers through shared memory on their
    way to the tensor core.
    """
    blocks: tl.constexpr = BLOCK_N // 16
    block = tl.arange(0, blocks)[:, None, None, None, None] * 16
    half = tl.arange(0, 2)[None, :, None, None, None] * 8
    row = block + half + tl.arange(0, 8)[None, None, :, None, None]
    return tl.broadcast_to(tl.load(zeros_at + row), (blocks, 2, 8, 4, 4))


@triton.jit
def _bf16_nibble(words, minus_zero, SHIFT: tl.constexpr):
    number = (((words >> SHIFT) & 15) + 128).to(tl.float32)
    return number + (minus_zero << 16).to(tl.float32, bitcast=True)


@triton.jit
def bf16_numbers(words, zeros_at, BLOCK_N: tl.constexpr, INTERPRETING: tl.constexpr):
    """Semantics: [BLOCK_N, 128] numbers code - zero, of `BLOCK_N / 16` blocks of words packed for bf16."""
    words = tl.reshape(words, (BLOCK_N // 16, 2, 8, 4, 4))
    if zeros_at is not None:
        minus = _zeros_of_rows(zeros_at, BLOCK_N)
    else:
        minus = tl.full((BLOCK_N // 16, 2, 8, 4, 4), MINUS_136, tl.int32)
    if INTERPRETING:
        v0, v1 = _bf16_nibble(words, minus, 0), _bf16_nibble(words, minus, 16)
        v2, v3 = _bf16_nibble(words, minus, 4), _bf16_nibble(words, minus, 20)
        v4, v5 = _bf16_nibble(words, minus, 8), _bf16_nibble(words, minus, 24)
        v6, v7 = _bf16_nibble(words, minus, 12), _bf16_nibble(words, minus, 28)
    else:
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            BF16_NUMBERS,
            "=h,=h,=h,=h,=h,=h,=h,=h,r,r",
            [words, minus],
            dtype=(
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
                tl.bfloat16,
            ),
            is_pure=True,
            pack=1,
        )
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    # block, i, r, c, w, p, j % 2, j / 2 -> row (block, i, r), input (w, j / 2, j % 2, c, p)
    return tl.reshape(tl.permute(tl.join(low, high), (0, 1, 2, 4, 7, 6, 3, 5)), (BLOCK_N, 128))


@triton.jit
def _fp8_bytes(words, WORD: tl.constexpr, J: tl.constexpr, SIGNED: tl.constexpr):
    """What register 2 WORD + J has, in fp32: byte b of what is made of that word of every four, at b."""
    place = tl.arange(0, 4)[None, None, None, None, :]
    word = tl.sum(tl.where(place == WORD, words, 0), 4)[:, :, :, :, None]
    if SIGNED:
        magnitude = (word >> (8 * ((place + 3 * J) % 4) + 4 * J)) & 7
        code = magnitude * (1 - 2 * ((word >> (8 * place + 7 - 4 * J)) & 1))
    else:
        code = (word >> (8 * place + 4 * J)) & 15
    return code.to(tl.float32) / 512


@triton.jit
def fp8_codes(words, BLOCK_N: tl.constexpr, SIGNED: tl.constexpr, INTERPRETING: tl.constexpr):
    """Semantics: [BLOCK_N, 128] numbers code / 512, of `BLOCK_N / 16` blocks of words packed for FP8.

    SIGNED: codes are -7 to 7, not 0 to 15.
    """
    words = tl.reshape(words, (BLOCK_N // 16, 2, 8, 4, 4))
    if INTERPRETING:
        v0, v1 = _fp8_bytes(words, 0, 0, SIGNED), _fp8_bytes(words, 0, 1, SIGNED)
        v2, v3 = _fp8_bytes(words, 1, 0, SIGNED), _fp8_bytes(words, 1, 1, SIGNED)
        v4, v5 = _fp8_bytes(words, 2, 0, SIGNED), _fp8_bytes(words, 2, 1, SIGNED)
        v6, v7 = _fp8_bytes(words, 3, 0, SIGNED), _fp8_bytes(words, 3, 1, SIGNED)
    else:
        # A thread has a word's four neighbours next to each other: they are the 16 bytes it loads, and the
        # four bytes of a register of the tensor core's operand. True of what is loaded, not of what is
        # broadcast: the compiler takes elements of that before they are repeated.
        v0, v1, v2, v3, v4, v5, v6, v7 = tl.inline_asm_elementwise(
            FP8_SIGNED if SIGNED else FP8_CODES,
            "=r,=r,=r,=r,=r,=r,=r,=r,r,r,r,r",
            [words],
            dtype=(tl.int8, tl.int8, tl.int8, tl.int8, tl.int8, tl.int8, tl.int8, tl.int8),
            is_pure=True,
            pack=4,
        )
    low = tl.join(tl.join(v0, v1), tl.join(v2, v3))
    high = tl.join(tl.join(v4, v5), tl.join(v6, v7))
    # block, i, r, c, b, j, word % 2, word / 2 -> row (block, i, r), input (word / 2, word % 2, j, c, b)
    codes = tl.reshape(tl.permute(tl.join(low, high), (0, 1, 2, 7, 6, 5, 3, 4)), (BLOCK_N, 128))
    return codes if INTERPRETING else codes.to(tl.float8e4nv, bitcast=True)


@triton.jit
def fp8_minus_zeros(zeros_at, BLOCK_N: tl.constexpr, INTERPRETING: tl.constexpr):
    """Semantics: [BLOCK_N, 128] numbers -zero / 512, the same along a row."""
    minus = _zeros_of_rows(zeros_at, BLOCK_N)
    same = -((minus & 127).to(tl.float32)) / 512 if INTERPRETING else minus.to(tl.int8)
    twice = tl.join(same, same)
    eight = tl.join(tl.join(twice, twice), tl.join(twice, twice))
    numbers = tl.reshape(tl.permute(eight, (0, 1, 2, 7, 6, 5, 3, 4)), (BLOCK_N, 128))
    return numbers if INTERPRETING else numbers.to(tl.float8e4nv, bitcast=True)
