"""Lets kernels begin while the one before them ends.

Between two kernels of one stream the memory is idle for a microsecond or two: the last blocks end, the next
kernel is launched, its first loads travel. Programmatic dependent launch lets a kernel's blocks start as soon
as all blocks of the kernel before it have called `gdc_launch_dependents` or ended; it then does what needs
nothing of that kernel (read weights), waits (`gdc_wait`), and continues. Rules, because a mistake here is a
race that shows once a week:

- A kernel launched with `launch_pdl=True` calls `gdc_wait` in every block, before it writes anything and
  before it reads what another kernel of the step writes; what it reads before is written between steps.
- It may call `gdc_launch_dependents` at any time, because a kernel that starts early waits for its end all
  the same. When it does is a question of speed: kernels that start early take bandwidth from those that still
  run.
- LoRA's kernels beside a product (`DeviceLora.delta`) are the exception. That product calls it only after its
  own `gdc_wait`: by then all kernels before it have ended, what they wrote is there, and what they read may
  be overwritten. Shrink needs no more, expand waits for shrink's words, and both write memory that only
  expand and the op behind it read. One block of each calls `gdc_wait` at its end: a kernel ends when its
  last block does, so the op that waits for expand's end has waited for the product, too.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def starts_early(tensor: Tensor) -> bool:
    """Returns whether kernels on this tensor's device are launched as dependents: Hopper and later."""
    return launches_dependents(tensor.device)


@cache
def launches_dependents(device: torch.device) -> bool:
    """Returns whether a kernel can begin before the one in front of it has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
