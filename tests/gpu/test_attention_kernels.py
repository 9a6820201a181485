"""The attention kernels on the device: against the CPU, in graphs, to the bit whoever shares the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.attention import AttentionPlan, DeviceStep, paged_attention
from kernels.attention.cases import CASES, Case, DeviceBatch
from kernels.workspace import Workspace
from tests.gpu.closeness import assert_near

pytestmark = pytest.mark.gpu
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
RATIO = 1e-2

GROUPS = ((4, 4), (8, 4), (8, 2), (8, 1))
SHAPES = [(*heads, dim, BF16) for dim in (32, 64, 128) for heads in GROUPS]
SHAPES += [(8, 1, 32, FP8), (4, 4, 64, FP8), (8, 2, 128, FP8)]
LENGTHS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 500, 511, 513, 1000, 2048, 4095, 4097)
DECODES = tuple((1, total) for total in LENGTHS)
MIXED = ((1, 300), (40, 40), (1, 5), (2, 2), (65, 900), (1, 1000), (200, 333), (31, 4097), (1, 17))


def on_device(
    case: Case, device: torch.device, cache_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    q, cache = case.inputs(BF16)
    return q.to(device), cache.to(cache_dtype).to(device)


def attend(case: Case, q: torch.Tensor, cache: torch.Tensor, step: DeviceStep) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    paged_attention(q, cache, step, case.head_dim**-0.5, out)
    return out


def reference(case: Case, q: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    """On the CPU, in fp32, from the same rounded inputs."""
    plan = AttentionPlan.build(case.metadata(), case.num_heads, case.num_kv_heads, Workspace())
    out = torch.empty(q.shape)
    paged_attention(q.cpu().float(), cache.cpu().float(), plan, case.head_dim**-0.5, out)
    return out


@pytest.mark.parametrize("seqs", [DECODES, MIXED], ids=["decode", "mixed"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "cache_dtype"), SHAPES)
def test_against_the_cpu(
    heads: int, kv_heads: int, dim: int, seqs: tuple, cache_dtype: torch.dtype, device: torch.device
) -> None:
    case = Case(seqs, heads, kv_heads, dim)
    q, cache = on_device(case, device, cache_dtype)
    got = attend(case, q, case.poison(cache), case.device_step(device, filling=0))
    expected = reference(case, q, cache)
    for token in range(len(q)):
        assert_near(got[token], expected[token], RATIO)


@pytest.mark.parametrize(
    "case",
    [
        *CASES,
        Case(MIXED, 14, 2, 64),
        Case(MIXED, 4, 2, 256),
        Case(MIXED, 4, 2, 48),
        Case(MIXED, 8, 2, 128, 32),
    ],
    ids=str,
)
def test_odd_shapes(case: Case, device: torch.device) -> None:
    q, cache = on_device(case, device, BF16)
    assert_near(
        attend(case, q, case.poison(cache), case.device_step(device)), reference(case, q, cache), RATIO
    )


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "cache_dtype"), SHAPES)
def test_keys_read_ahead(
    heads: int, kv_heads: int, dim: int, cache_dtype: torch.dtype, device: torch.device
) -> None:
    for lengths in (
        (1,),
        (2,),
        (256,),
        (257,),
        (2048,),
        (2049,),
        (1024, 1025),
        (17, 512, 513),
        (1, 2, 300, 512),
    ):
        case = Case(tuple((1, length) for length in lengths), heads, kv_heads, dim)
        q, cache = on_device(case, device, cache_dtype)
        step = case.device_step(device, reads_ahead=True)
        assert step.ahead_items
        got = attend(case, q, case.poison(cache), step)
        expected = reference(case, q, cache)
        for row in range(len(q)):
            assert_near(got[row], expected[row], RATIO)
        assert not step.arrivals_SH.any()


@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
def test_a_row_read_ahead_has_the_same_bits_in_any_company(
    cache_dtype: torch.dtype, device: torch.device
) -> None:
    """Beside long sequences, in other rows, in graphs that launch one kernel or both."""
    case = Case(((1, 300), (1, 512), (1, 5), (1, 9000)), 32, 8, 128)
    q, cache = on_device(case, device, cache_dtype)
    metadata, ones = case.metadata(), np.ones(4, np.int64)
    batch = DeviceBatch(case, 4, 4, metadata.block_tables.shape[1], device, reads_ahead=True)
    batch.set_tables(np.arange(4), metadata.block_tables)
    batch.fill(np.arange(4), ones, metadata.total_lens, 4)
    together = attend(case, q, cache, batch.plan.bucket(4, decode_only=True))
    for rows in ([0, 1, 2], [2, 0], [1, 2, 0]):
        batch.fill(np.array(rows), ones[: len(rows)], metadata.total_lens[rows], 4)
        mine = torch.cat((q[rows], q[:1].expand(4 - len(rows), -1, -1)))
        for has_long in (True, False):
            step, out = batch.plan.bucket(4, True, has_long), torch.empty_like(mine)
            graph = torch.cuda.CUDAGraph()
            attend(case, mine, cache, step)
            with torch.cuda.graph(graph):
                for _ in range(5):
                    mine.mul_(1)  # a launch that is waited for
                    paged_attention(mine, cache, step, case.head_dim**-0.5, out)
            graph.replay()
            assert torch.equal(out[: len(rows)], together[rows])


@pytest.mark.parametrize("total", [100_000, 131_072])
def test_a_long_context(total: int, device: torch.device) -> None:
    case = Case(((1, total), (40, 70_000)), 8, 2, 128)
    q, cache = on_device(case, device, BF16)
    got = attend(case, q, case.poison(cache), case.device_step(device))
    assert_near(got, reference(case, q, cache), RATIO)


@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (8, 4, 32)])
def test_a_decoding_row_has_the_same_bits_in_any_company(
    heads: int, kv_heads: int, dim: int, cache_dtype: torch.dtype, device: torch.device
) -> None:
    """Alone in its bucket, among others, in another row, and beside prefill chunks."""
    decodes = Case(DECODES, heads, kv_heads, dim)
    q, cache = on_device(decodes, device, cache_dtype)
    metadata, num_seqs = decodes.metadata(), len(DECODES)
    together = attend(decodes, q, cache, decodes.device_step(device))
    batch = DeviceBatch(decodes, num_seqs, 256, metadata.block_tables.shape[1], device)
    batch.set_tables(np.arange(num_seqs), metadata.block_tables)
    one = np.array([1])
    for seq in range(num_seqs):
        batch.fill(np.array([seq]), one, metadata.total_lens[[seq]], num_seqs)
        alone = attend(
            decodes, q[[seq] + [0] * (num_seqs - 1)], cache, batch.plan.bucket(num_seqs, decode_only=True)
        )
        assert torch.equal(alone[0], together[seq])
    # Half decode, half are chunks of five: the decoding half as before.
    query_lens = np.where(np.arange(num_seqs) % 2, np.minimum(5, metadata.total_lens), 1)
    starts = np.cumsum(query_lens) - query_lens
    mixed_q = torch.randn(256, heads, dim, device=device, dtype=BF16)
    mixed_q[starts] = q
    batch.fill(np.arange(num_seqs), query_lens, metadata.total_lens, 256)
    mixed = attend(decodes, mixed_q, cache, batch.plan.bucket(256, decode_only=False))
    decoding = np.flatnonzero(query_lens == 1)
    assert torch.equal(mixed[starts[decoding]], together[decoding])


@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
@pytest.mark.parametrize("seqs", [((4, 700),), ((5, 600), (1, 40), (2, 2), (6, 4097), (1, 900))], ids=str)
def test_a_token_of_a_chunk_has_the_bits_of_a_decoding_row(
    seqs: tuple, cache_dtype: torch.dtype, device: torch.device
) -> None:
    """Where keys of one step are read ahead, too: they are not, of a chunk."""
    case = Case(seqs, 32, 8, 128)
    q, cache = on_device(case, device, cache_dtype)
    got = attend(case, q, case.poison(cache), case.device_step(device, reads_ahead=True, decode_only=True))
    assert_near(got, reference(case, q, cache), RATIO)
    metadata, num_tokens = case.metadata(), len(q)
    batch = DeviceBatch(case, num_tokens, num_tokens, metadata.block_tables.shape[1], device)
    batch.set_tables(np.arange(len(seqs)), metadata.block_tables)
    owners = np.repeat(np.arange(len(seqs)), metadata.query_lens)
    alone = batch.plan.bucket(num_tokens, decode_only=True)
    for token, (row, position) in enumerate(zip(owners, metadata.positions, strict=True)):
        batch.fill(np.array([row]), np.array([1]), np.array([position + 1]), num_tokens)
        out = attend(case, q[[token] * num_tokens], cache, alone)
        assert torch.equal(out[0], got[token]), token


@pytest.mark.parametrize("cache_dtype", [BF16, FP8], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (8, 4, 32), (14, 2, 64)])
def test_prefill_chunks_of_any_size_give_the_same_bits(
    heads: int, kv_heads: int, dim: int, cache_dtype: torch.dtype, device: torch.device
) -> None:
    total = 700
    case = Case(((total, total),), heads, kv_heads, dim)
    q, cache = on_device(case, device, cache_dtype)
    whole = attend(case, q, cache, case.device_step(device))
    batch = DeviceBatch(case, 1, total, 64, device)
    batch.set_tables(np.array([0]), case.metadata().block_tables)
    for chunk in (2, 33, 64, 100, 699):
        for first in range(0, total - chunk + 1, chunk):
            batch.fill(np.array([0]), np.array([chunk]), np.array([first + chunk]), chunk)
            part = attend(case, q[first : first + chunk], cache, batch.plan.bucket(chunk, decode_only=False))
            assert torch.equal(part, whole[first : first + chunk]), (chunk, first)


@pytest.mark.parametrize("decode_only", [True, False])
def test_one_graph_serves_steps_of_any_lengths(decode_only: bool, device: torch.device) -> None:
    rows, tokens = 24, 24 if decode_only else 600
    case = Case(((1, 9000),) * rows, 8, 2, 128)
    q, cache = on_device(case, device, BF16)
    q = torch.randn(tokens, 8, 128, device=device, dtype=BF16)
    tables = case.metadata().block_tables
    batch = DeviceBatch(case, rows, tokens, tables.shape[1], device)
    batch.set_tables(np.arange(rows), tables)
    step, out = batch.plan.bucket(tokens, decode_only), torch.empty_like(q)
    quantized = torch.empty(tokens, 8 * 128, device=device, dtype=FP8)
    scale = torch.empty(tokens, device=device)
    options = {"quantized": quantized, "quantized_scale_T": scale}
    batch.fill(np.arange(2), np.array([1, 1]), np.array([1, 300]), tokens)
    paged_attention(q, cache, step, case.head_dim**-0.5, out, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_attention(q, cache, step, case.head_dim**-0.5, out, **options)
    rng = np.random.default_rng(0)
    for num_seqs in (1, 24, 3, 17):
        query_lens = np.ones(num_seqs, int) if decode_only else rng.integers(1, 25, num_seqs)
        total_lens = query_lens + rng.integers(0, 8900, num_seqs)
        chosen = rng.permutation(rows)[:num_seqs]
        out.fill_(float("nan"))
        batch.fill(chosen, query_lens, total_lens, tokens)
        graph.replay()
        used = int(query_lens.sum())
        assert out[used:].isnan().all()
        plain = replace(case, seqs=tuple(zip(query_lens.tolist(), total_lens.tolist(), strict=True)))
        assert_near(out[:used], _gathered(plain, q[:used], cache, tables[chosen]), RATIO)
        # On the host, whose division rounds to nearest: torch on a GPU multiplies by a reciprocal.
        expected_scale = (out[:used].flatten(1).float().abs().amax(1).cpu() / 448).to(device)
        assert torch.equal(scale[:used], expected_scale)
        back = quantized[:used].float() * expected_scale[:, None]
        assert_near(back, out[:used].flatten(1), 4e-2)
        assert not step.arrivals_SH.any()


def _gathered(case: Case, q: torch.Tensor, cache: torch.Tensor, tables: np.ndarray) -> torch.Tensor:
    """`reference` with other block tables: of each sequence its own small cache."""
    parts, first = [], 0
    for (query_len, total_len), table in zip(case.seqs, tables, strict=True):
        one = replace(case, seqs=((query_len, total_len),))
        blocks = table[: -(-total_len // 16)].astype(np.int64)
        own = torch.zeros(one.num_blocks, *cache.shape[1:])
        own[torch.from_numpy(one.metadata().block_tables[0, : len(blocks)]).long()] = (
            cache[blocks].cpu().float()
        )
        parts.append(reference(one, q[first : first + query_len], own))
        first += query_len
    return torch.cat(parts)


def test_nan_in_one_sequence_stays_there(device: torch.device) -> None:
    case = Case(MIXED + DECODES, 8, 2, 64)
    q, cache = on_device(case, device, BF16)
    metadata, step = case.metadata(), case.device_step(device)
    clean = attend(case, q, cache, step)
    for seq in (0, 4, 12):
        spoiled_cache = cache.clone()
        spoiled_cache[int(metadata.block_tables[seq, 0])] = float("nan")
        spoiled = attend(case, q, spoiled_cache, step)
        own = slice(metadata.query_starts[seq], metadata.query_starts[seq] + metadata.query_lens[seq])
        assert spoiled[own].isnan().all()
        spoiled[own] = clean[own]
        assert torch.equal(spoiled, clean)
