"""One run of a case on some device against the naive statement."""

from __future__ import annotations

import torch

from kernels.lora.device_cases import DeviceCase, DeviceRun, make_table, naive_device_lora


def run_case(case: DeviceCase, device: str | torch.device, dtype: torch.dtype, tolerance: float) -> None:
    """Near the naive statement, the same bits twice, and rows of the base alone untouched.

    `tolerance`: of each output, relative to the sum of its terms' magnitudes. Scratch memory and the arena's
    gaps begin as NaN, and so do the inputs of rows without an adapter.
    """
    here = make_table(case.slots, case.width_in, case.widths)
    expected, size = naive_device_lora(case, here, dtype=dtype)
    there = make_table(case.slots, case.width_in, case.widths, device)
    run = DeviceRun(there, case.width_in, case.num_tokens, batch_invariant=case.batch_invariant)
    x, base, scale = case.inputs(device, dtype)
    run.begin(case.padded_slots())
    out = base.clone()
    run.add(x, out, case.widths, scale)
    error = (out.cpu().double() - expected).abs() / size.clamp_min(1e-30)
    assert float(error.max()) <= tolerance, float(error.max())
    bare = torch.from_numpy(case.padded_slots() < 0)
    assert torch.equal(out.cpu()[bare], base.cpu()[bare])
    again = base.clone()
    run.add(x, again, case.widths, scale)
    assert torch.equal(again, out)
