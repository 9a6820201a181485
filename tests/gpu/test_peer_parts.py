"""Two ranks on linked GPUs write parts of products to one another, and each sums what it has."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, multiprocessing

from engine.model.exchange import MAX_PART_ROWS, Exchange
from engine.model.quantization import Fp8Linear
from engine.model.shards import Shard
from engine.parallel import joining
from kernels.activation import Activation, true_rows
from kernels.linear_fp8 import Fp8Weight
from kernels.rms_norm import rms_norm
from kernels.workspace import Workspace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two linked GPUs"),
]
HIDDEN = 4096
WIDTHS = {"o": 2048, "down": 7168}
"""A rank's inputs of an 8B on two GPUs."""
LAYERS = 6
REPLAYS = 30


class Rank:
    """Products of random weights, one after another, in memory that is used again and again."""

    def __init__(self, rank: int, port: int) -> None:
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        torch.manual_seed(rank)
        self.group = joining.join(joining.connect_store(port), Shard(rank, 2), "nccl", self.device)
        self.exchange = Exchange(self.group, 1000, Workspace(self.device))
        self.linears = {name: Fp8Linear(self._weight(width)) for name, width in WIDTHS.items()}
        self.parts = {
            name: self.exchange.product_parts(name, [linear], HIDDEN) for name, linear in self.linears.items()
        }
        self.ones = {
            width: torch.ones(width, dtype=torch.bfloat16, device=self.device)
            for width in (HIDDEN, *WIDTHS.values())
        }
        """Weights of norms: made here, so that no other kernel stands between those of a step."""

    def _weight(self, width: int) -> Fp8Weight:
        return Fp8Weight.quantize(torch.randn(HIDDEN, width, device=self.device) / width**0.5)

    def check(self, num_rows: int) -> None:
        inputs = {
            name: torch.randn(LAYERS, num_rows, width, device=self.device).bfloat16()
            for name, width in WIDTHS.items()
        }
        expected = self._expected(inputs, num_rows)
        written = self._replayed(inputs, num_rows, are_sent=True)
        read = self._replayed(inputs, num_rows, are_sent=False)
        for residual in written + read:
            assert torch.equal(residual, written[0]), "the same bits in every replay, sent or read"
        off = (written[0].float() - expected).norm(dim=1) / expected.norm(dim=1)
        assert (off < 1e-2).all(), off
        both = torch.stack((written[0], torch.zeros_like(written[0])))
        if self.device.index:
            both = both.flip(0)
        self.group.sum(both)
        assert torch.equal(both[0], both[1]), "the same bits on both ranks"

    def _input(self, x_TK: Tensor) -> Activation:
        shape = x_TK.shape
        return Activation(
            None,
            torch.empty(shape, dtype=torch.float8_e4m3fn, device=self.device),
            torch.empty(shape[0], device=self.device),
        )

    def _quantize(self, x_TK: Tensor, activation: Activation) -> None:
        rms_norm(
            x_TK, self.ones[x_TK.shape[1]], 1e-5, None,
            quantized=activation.quantized_TK, quantized_scale_T=activation.scale_T,
        )  # fmt: skip

    def _expected(self, inputs: dict[str, Tensor], num_rows: int) -> Tensor:
        """Whole products, summed by torch.distributed."""
        total = torch.zeros(num_rows, HIDDEN, device=self.device)
        for name, x_LTK in inputs.items():
            for x_TK in x_LTK:
                activation = self._input(x_TK)
                self._quantize(x_TK, activation)
                out = torch.empty(num_rows, HIDDEN, dtype=torch.bfloat16, device=self.device)
                projection = self.linears[name](activation, out)
                total += true_rows(projection.y_TN, projection.scale_T, None)
        self.group.sum(total)
        return total

    def _replayed(self, inputs: dict[str, Tensor], num_rows: int, *, are_sent: bool) -> list[Tensor]:
        """The residual after each of many replays of a graph of all sums."""
        activations = {name: self._input(x_LTK[0]) for name, x_LTK in inputs.items()}
        out = torch.empty(num_rows, HIDDEN, dtype=torch.bfloat16, device=self.device)
        residual, normed = torch.empty_like(out), torch.empty_like(out)

        def step() -> None:
            self.exchange.begin()
            residual.zero_()
            for layer in range(LAYERS):
                for name, activation in activations.items():
                    self._quantize(inputs[name][layer], activation)
                    parts = self.parts[name].of(self.linears[name], out)
                    assert parts is not None
                    assert len(parts.copies) == 1
                    parts = parts if are_sent else replace(parts, copies=())
                    product = self.linears[name](activation, out, parts)
                    product = replace(product, is_part=True)
                    self.exchange.norm(product, self.ones[HIDDEN], 1e-5, residual, Activation(normed))

        stream = torch.cuda.Stream()
        found = []
        with torch.cuda.stream(stream):
            step()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                step()
            for _ in range(REPLAYS):
                graph.replay()
                found.append(residual.clone())
            stream.synchronize()
        return found


def _run(rank: int, port: int) -> None:
    one = Rank(rank, port)
    for num_rows in (1, 3, MAX_PART_ROWS):
        one.check(num_rows)
    torch.cuda.synchronize()
    joining.leave()


def test_parts_reach_the_other_rank() -> None:
    store = joining.open_store()
    multiprocessing.spawn(_run, (store.port,), nprocs=2, join=True)
