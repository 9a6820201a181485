"""Computes the linear layers of a model, with their adapters beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.exchange import Exchange
from engine.model.product_parts import ProductParts
from engine.model.quantization import Linear
from kernels.activation import Activation, Parts, Projection
from kernels.lora import LoraContext
from kernels.lora.device import DeviceLora
from kernels.workspace import Workspace

Adapters = LoraContext | DeviceLora
"""Applies adapters: from stacks of the resident ones on a CPU, from a table of them on a GPU."""

SUMMED = ("o", "down")
"""Products that the ranks of a group sum."""
ADDED_BEHIND = ("qkv", "o", "down")
"""Products that may be left in parts for the op behind them to add. gate_up has too many columns for the one
program a row that reads it.
"""


class Products:
    """One model's, by group of fused linears: qkv, o, gate_up and down of each layer."""

    def __init__(
        self,
        config: ModelConfig,
        linears: Mapping[str, Sequence[Linear]],
        dtype: torch.dtype,
        workspace: Workspace,
        exchange: Exchange | None,
    ) -> None:
        """`linears`: those that will be computed, by group."""
        self.rows: int | None = None
        """Of every product, where its shape must not depend on the batch; None: as many as the step has.
        Steps then have a multiple of it.
        """
        self._widths = config.group_widths
        self._dtype = dtype
        self._workspace = workspace
        self._exchange = exchange
        self._side = torch.cuda.Stream(workspace.device) if workspace.device.type == "cuda" else None
        self._parts = {group: self._parts_of(group, linears[group]) for group in ADDED_BEHIND}

    def compute(
        self,
        layer: int,
        group: str,
        linear: Linear,
        x: Activation,
        num_rows: int,
        lora: Adapters | None,
    ) -> Projection:
        """Returns the product of `num_rows` rows, with what their adapters add."""
        widths = self._widths[group]
        workspace = self._workspace
        if self._exchange is not None and group in SUMMED:
            workspace = self._exchange.parts
        out_TN = workspace.take(group, (num_rows, sum(widths)), self._dtype)
        parts = None
        if group in ADDED_BEHIND and self.rows is None:
            parts = self._parts[group].of(linear, out_TN)
        if lora is None:
            return self._product(linear, x, out_TN, parts)
        assert x.x_TK is not None
        if isinstance(lora, DeviceLora) and lora.runs_beside(num_rows):
            product = linear.letting_in(x, out_TN, parts)
            if product is not None:
                return replace(product, delta=lora.delta(layer, group, x.x_TK, widths))
        reads_TK, adds_TN = x.x_TK, out_TN
        if parts is not None:
            # Adapters add to the first part after the product, which therefore does not send it.
            adds_TN, parts = parts.y_PTN[0], replace(parts, copies=())
        if self._exchange is not None:
            reads_TK, adds_TN = self._exchange.adapter_parts(reads_TK, adds_TN, is_summed=group in SUMMED)
            widths = (adds_TN.shape[1],) if group in SUMMED else widths
        if self._side is None:
            lora.shrink(layer, group, reads_TK)
            out = self._product(linear, x, out_TN, parts)
        else:
            # The shrink does not depend on the product: both run at once.
            here = torch.cuda.current_stream()
            self._side.wait_stream(here)
            with torch.cuda.stream(self._side):
                lora.shrink(layer, group, reads_TK)
            out = self._product(linear, x, out_TN, parts)
            here.wait_stream(self._side)
        lora.expand(layer, group, adds_TN, widths, out.scale_T)
        return out

    def slices(self, num_rows: int) -> list[slice]:
        """Returns the rows of each product of a step."""
        step = self.rows or num_rows
        return [slice(first, first + step) for first in range(0, num_rows, step)]

    def _product(self, linear: Linear, x: Activation, out_TN: Tensor, parts: Parts | None) -> Projection:
        slices = self.slices(len(out_TN))
        if len(slices) == 1:
            return linear(x, out_TN, parts)
        sliced = [linear(x.rows(rows), out_TN[rows]) for rows in slices]
        return Projection(out_TN, None if sliced[0].scale_T is None else x.scale_T)

    def _parts_of(self, group: str, linears: Sequence[Linear]) -> ProductParts:
        width = sum(self._widths[group])
        if self._exchange is not None and group in SUMMED:
            return self._exchange.product_parts(group, linears, width)
        return ProductParts(linears, width, lambda numel: (self._workspace.take("parts", (numel,)), ()))
