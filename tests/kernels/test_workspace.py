"""Scratch memory: one buffer per name, the same view again, no view of a buffer that has been replaced."""

import torch

from kernels.workspace import MAX_VIEWS, Workspace


def test_a_name_has_one_memory_whatever_the_shape() -> None:
    workspace = Workspace()
    wide = workspace.take("x", (4, 8))
    wide.fill_(7)
    narrow = workspace.take("x", (2, 3))
    assert narrow.shape == (2, 3)
    assert (narrow == 7).all()
    assert workspace.take("x", (4, 8)) is wide
    assert workspace.take("y", (4, 8)).data_ptr() != wide.data_ptr()
    assert workspace.take("x", (4, 8), torch.int64).dtype is torch.int64


def test_after_growth_no_view_of_the_old_buffer_is_handed_out() -> None:
    workspace = Workspace()
    workspace.take("x", (2, 3))
    large = workspace.take("x", (100, 100))
    small = workspace.take("x", (2, 3))
    assert small.data_ptr() == large.data_ptr()
    assert workspace.num_bytes == 100 * 100 * 4


def test_views_do_not_pile_up() -> None:
    workspace = Workspace()
    large = workspace.take("x", (2 * MAX_VIEWS + 2,))
    for width in range(1, 2 * MAX_VIEWS):
        assert workspace.take("x", (width,)).data_ptr() == large.data_ptr()
    assert len(workspace._views) <= MAX_VIEWS
