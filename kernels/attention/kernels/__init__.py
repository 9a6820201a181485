"""The Triton kernels of paged attention. `kernels.attention.kernel` launches them."""
