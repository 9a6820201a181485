"""Hands what shrink computed over to expand: in memory that expand reads once shrink has ended, or as words
that it waits for.

Of SIZE ranks every rank sends its part to all, and expand adds the parts up; one rank alone sends to itself.
`kernels.lora.mailbox` says how the words are laid out. SIZE 0 is memory without words.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOW = tl.constexpr(0xFFFFFFFF)


@triton.jit
def exchange_number(number_ptr, SIZE: tl.constexpr):
    """The number of this exchange. Of a group, read it after the wait for the kernels before: they change
    it.
    """
    if SIZE == 0:
        return 0
    else:  # a statement after the branch would be compiled for both
        return tl.load(number_ptr)


@triton.jit
def hand_over(shrunk_ptr, number, at, value, mask, SIZE: tl.constexpr):
    """Semantics: shrunk[at] = value; with words, on every rank, as this rank's part.

    `shrunk_ptr`: fp32, or int64 [SIZE], the ranks' addresses.
    """
    if SIZE == 0:
        tl.store(shrunk_ptr + at, value, mask=mask)
    else:
        bits = value.to(tl.int32, bitcast=True).to(tl.int64) & _LOW
        word = (number.to(tl.int64) << 32) | bits
        for rank in tl.static_range(SIZE):
            outbox_ptr = tl.load(shrunk_ptr + rank).to(tl.pointer_type(tl.int64))
            tl.store(outbox_ptr + at, word, mask=mask, cache_modifier=".wt")


@triton.jit
def take_over(shrunk_ptr, mask, number, SIZE: tl.constexpr, PART_SIZE: tl.constexpr):
    """Semantics: what `shrunk_ptr` points at, 0 where masked; with words, the sum of all ranks' parts, once
    they have come.

    `shrunk_ptr`: one or two axes of pointers to fp32, or to the words of the first of SIZE senders, PART_SIZE
    apart.
    """
    if SIZE == 0:
        return tl.load(shrunk_ptr, mask=mask, other=0.0)
    elif len(mask.shape) == 1:
        # All senders' words at once: one wait.
        SENDERS: tl.constexpr = triton.next_power_of_2(SIZE)
        sender = tl.arange(0, SENDERS)[:, None]
        there = (sender < SIZE) & mask[None, :]
        parts = _words(shrunk_ptr[None, :] + sender * PART_SIZE, there, number)
        return tl.sum(parts, 0)
    else:
        # One after another: many rows' words would not fit the registers.
        total = _words(shrunk_ptr, mask, number)
        for sender in tl.static_range(1, SIZE):
            total += _words(shrunk_ptr + sender * PART_SIZE, mask, number)
        return total


@triton.jit
def _words(ptr, mask, number):
    """Waits for words of this exchange. Returns their values, 0 where masked."""
    words = tl.load(ptr, mask=mask, other=0, volatile=True)
    while tl.max((mask & ((words >> 32).to(tl.int32) != number)).to(tl.int32)) != 0:
        words = tl.load(ptr, mask=mask, other=0, volatile=True)
    return tl.where(mask, (words & _LOW).to(tl.int32).to(tl.float32, bitcast=True), 0.0)
