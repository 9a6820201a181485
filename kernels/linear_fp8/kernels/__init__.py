"""Kernels of linear_fp8 in Gluon, Triton's own lower level."""
