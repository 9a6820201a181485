"""What the compiler makes of the LoRA kernels, without a GPU."""

import pytest

from kernels.lora.kernel import COMPILATIONS
from kernels.lora.kernels.expand import expand_rows
from kernels.lora.kernels.shrink import shrink_rows
from kernels.lora.kernels.tiles import expand_tiles


@pytest.mark.parametrize("kernel", [shrink_rows, expand_rows, expand_tiles], ids=lambda one: one.__name__)
def test_units_of_work_carry_nothing_to_each_other(kernel: object) -> None:
    """A pass of Triton 3.6 and 3.7 drops a carried value whose only use is as an inner loop's bound.

    Found as adapters that were all served with the first one's rank. What is not carried is not dropped.
    """
    compilation = next(one for one in COMPILATIONS if one.kernel is kernel and 90 in one.architectures)
    lines = compilation.compile(90).asm["ttir"].splitlines()
    loops = [line for line in lines if "scf.for %unit" in line]
    assert loops
    assert not [line for line in loops if "iter_args" in line]
